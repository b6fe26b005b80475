"""``nestruct parse`` and the phases of the parsing VAE, on a generated treebank."""

import gzip
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from toys import run_command as run

import nestruct
from nestruct.data import Grammar
from nestruct.data.treebank import Reader, read_treebank, sentence_of, write_treebank
from nestruct.models import ParserVAE
from nestruct.training import evaluate_run


@pytest.fixture(scope="module")
def phases(tmp_path_factory):
    """Runs of the three phases, the last for a few steps only."""
    folder = tmp_path_factory.mktemp("runs")
    assert run("train", "parser-tiny", "--run", folder / "parser") == 0
    before = ["--init-from", folder / "parser", "--run", folder / "decoder"]
    assert run("train", "parser-tiny-decoder", *before, "training.max_epochs=1") == 0
    before = ["--init-from", folder / "decoder", "--run", folder / "nes"]
    few = ["training.max_epochs=1", "estimator.population_size=8"]
    assert run("train", "parser-tiny-nes", *before, *few) == 0
    return folder


def scores(path) -> dict[str, float]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in lines if line["split"] == "validation")


def test_a_parser_learns_the_grammar(phases, capsys):
    assert run("evaluate", phases / "parser") == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert float(lines["uas"]) > 0.9
    assert float(lines["las"]) > 0.9
    assert set(lines) == {"loss", "uas", "las", "uas_all", "las_all", "nll"}


def test_each_phase_starts_where_the_last_ended(phases):
    parser, decoder, nes = (nestruct.load(phases / n) for n in ("parser", "decoder", "nes"))
    for (name, one), two in zip(parser.named_parameters(), decoder.parameters(), strict=True):
        assert one.equal(two) == (not name.startswith("decoder.")), name
    assert scores(phases / "nes")["nll"] == pytest.approx(nll(phases / "decoder"))
    frozen = [n for n, p in nes.named_parameters() if n.startswith(("decoder.", "parser.label"))]
    for name in frozen:
        assert nes.get_parameter(name).equal(decoder.get_parameter(name))


def nll(folder) -> float:
    return evaluate_run(folder, split="validation")[1]["nll"]


def test_parses_a_file_and_keeps_the_rest(phases, tmp_path, capsys):
    gold = Grammar(num_target=30).texts.target_test[:30]
    source, target = tmp_path / "in.conllu", tmp_path / "out.conllu.gz"
    text = "# newdoc\n1-2\tab\t_\t_\t_\t_\t_\t_\t_\tX=1\n"
    content = b"".join(
        text.encode() + bytes(s.with_tree([0] * len(s), ["_"] * len(s))) for s in gold
    )
    content += b"# nothing here\n\n" + content[:40].splitlines()[0] + b"\n"
    source.write_bytes(content)
    assert run("parse", phases / "parser", source, "-o", target) == 0
    assert "Parsed 30 sentences, " in capsys.readouterr().err
    found = read_treebank(target)
    right = sum(
        a == b
        for s, t in zip(gold, found, strict=True)
        for a, b in zip(s.heads, t.heads, strict=True)
    )
    assert right > 0.9 * sum(map(len, gold))
    same = b"".join(bytes(s.with_tree([0] * len(s), ["_"] * len(s))) for s in found)
    assert same + b"# nothing here\n\n# newdoc\n" == content
    assert gzip.decompress(target.read_bytes()).count(b"X=1") == 30


def test_standard_input_to_standard_output(phases, tmp_path, capsysbinary, monkeypatch):
    long = sentence_of(["banoun"] * 250, [0] * 250, ["_"] * 250)
    short = sentence_of(["Unheard-of"], [0], ["_"])
    write_treebank(tmp_path / "a.conllu", [long, short])
    with (tmp_path / "a.conllu").open() as content:
        monkeypatch.setattr(sys, "stdin", content)
        assert run("parse", phases / "parser", "-") == 0
    output = io.BytesIO(capsysbinary.readouterr().out)
    assert [len(sentence) for sentence in Reader(output)] == [250, 1]


GOOD = bytes(sentence_of(["banoun", "."], [0, 1], ["a", "b"]))


def test_output_does_not_wait_for_more_input(phases):
    command = [sys.executable, "-c", "from nestruct.cli import main; main()", "parse"]
    pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
    process = subprocess.Popen([*command, phases / "parser", "-"], **pipes)
    process.stdin.write(GOOD)
    process.stdin.flush()
    assert select.select([process.stdout], [], [], 60)[0]
    first = [process.stdout.readline() for _ in range(3)]  # while the input is still open
    assert first[2] == b"\n"
    # The reader of the output goes: a thread that waits for input is no reason to crash.
    process.stdout.close()
    process.stdin.write(GOOD)
    process.stdin.flush()
    assert process.wait() == 141
    assert process.stderr.read() == b""
    process.stdin.close()
    process.stderr.close()


@pytest.mark.parametrize("name", ["input", "output"])
def test_closed_streams(phases, tmp_path, capsys, monkeypatch, name):
    (tmp_path / "a.conllu").write_bytes(GOOD)
    monkeypatch.setattr(sys, {"input": "stdin", "output": "stdout"}[name], None)
    assert run("parse", phases / "parser", "-" if name == "input" else tmp_path / "a.conllu") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"nestruct: Standard {name} is closed: ")
    assert error.count("\n") == 1


def test_bad_sentences(phases, tmp_path, capsys):
    path, out = tmp_path / "a.conllu", tmp_path / "b.conllu"
    path.write_bytes(GOOD + b"1\tbroken\n\n" + GOOD)
    assert run("parse", phases / "parser", path, "-o", out) == 1
    assert "a.conllu, line 4: it has 2 columns" in capsys.readouterr().err
    assert not out.exists()
    assert run("parse", phases / "parser", path, "-o", out, "--skip-bad") == 0
    words = capsys.readouterr().err
    assert "Parsed 2 sentences, 4 words; 1 malformed left as it is (" in words
    assert words.endswith("between tabs).\n")
    assert b"1\tbroken\n\n" in out.read_bytes()
    path.write_bytes(b"")
    assert run("parse", phases / "parser", path, "-o", out) == 0
    assert out.read_bytes() == b""
    assert run("parse", phases / "parser", tmp_path / "none.conllu") == 1
    assert "cannot be read: No such file" in capsys.readouterr().err
    assert run("parse", phases / "parser", "") == 1
    assert capsys.readouterr().err == "nestruct: '' cannot be read: No such file or directory.\n"


BAD = [
    GOOD.replace(b"banoun", b"ba\rnoun"),
    GOOD.replace(b"banoun", b"ba\0noun"),
    GOOD.replace(b"banoun", b"ba\xffnoun"),
    GOOD.replace(b"banoun", b""),
    GOOD.replace(b"2\t.", b"7\t."),
    b"# \xff\n" + GOOD,
    b"4-9\tx" + b"\t_" * 8 + b"\n" + GOOD,
    b"1\n\n",
    b"1\t" + b"a" * 2**15 + b"\n\n",
    bytes(sentence_of(["banoun"] * 21, range(21), ["a"] * 21)),
]


def test_whatever_is_bad_in_a_sentence_is_passed_through_and_counted(phases, tmp_path, capsys):
    path, out = tmp_path / "a.conllu", tmp_path / "b.conllu"
    path.write_bytes(b"".join(GOOD + bad for bad in BAD) + GOOD)
    words = ["parse", phases / "parser", path, "-o", out, "--max-words", 20]
    assert run(*words) == 1
    error = capsys.readouterr().err
    assert "a.conllu, line 4: it has a carriage return or a NUL in a column." in error
    assert run(*words, "--skip-bad") == 0
    assert f"Parsed 11 sentences, 22 words; {len(BAD)} malformed left" in capsys.readouterr().err
    found = out.read_bytes()
    good = found[: found.index(b"\n\n") + 2]
    assert good.split(b"\t")[:6] == GOOD.split(b"\t")[:6]
    assert found == b"".join(good + bad for bad in BAD) + good
    words = ["evaluate", phases / "parser", "--file", path, "--max-words", 20]
    assert run(*words) == 1
    assert "a.conllu, line 4: " in capsys.readouterr().err
    assert run(*words, "--skip-bad") == 0
    assert run(*words[:2], "--max-words", 20) == 1
    assert "--max-words is about the examples of a file" in capsys.readouterr().err


def test_a_signal_leaves_no_file(phases, tmp_path):
    source, out = tmp_path / "pipe", tmp_path / "out.conllu"
    os.mkfifo(source)
    command = [sys.executable, "-c", "from nestruct.cli import main; main()", "parse"]
    process = subprocess.Popen(
        [*command, phases / "parser", source, "-o", out], stderr=subprocess.PIPE
    )
    with source.open("wb") as file:  # which waits until the other end is open
        file.write(GOOD)
        file.flush()
        while len(os.listdir(tmp_path)) < 2:
            assert process.poll() is None
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    assert process.stderr.read() == b""
    process.stderr.close()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_long_parse_shows_that_it_lives(phases, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("nestruct.cli.life._SILENCE", 0.01)
    path = tmp_path / "a.conllu"
    path.write_bytes(bytes(sentence_of(["banoun"] * 520, range(520), ["a"] * 520)) * 2)
    assert run("parse", phases / "parser", path, "-o", tmp_path / "b.conllu") == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "Parsed 0 sentences, 0 words so far."
    assert "Parsed 1 sentence, 520 words so far." in lines
    assert lines[-1] == "Parsed 2 sentences, 1,040 words."


def test_good_sentences_before_a_bad_one_are_on_standard_output(phases, tmp_path, capsysbinary):
    (tmp_path / "a.conllu").write_bytes(GOOD + b"1\tbroken\n\n" + GOOD)
    assert run("parse", phases / "parser", tmp_path / "a.conllu") == 1
    found = capsysbinary.readouterr()
    assert [len(sentence) for sentence in Reader(io.BytesIO(found.out))] == [2]
    assert b"a.conllu, line 4: " in found.err


def test_needs_no_data(phases, tmp_path, monkeypatch):
    """All that parsing takes is in the run folder, even where its data are gone."""
    monkeypatch.setattr(Grammar, "_read", lambda self: 1 / 0)
    write_treebank(tmp_path / "a.conllu", [sentence_of(["banoun"], [0], ["_"])])
    assert run("parse", phases / "nes", tmp_path / "a.conllu", "-o", tmp_path / "b.conllu") == 0
    assert read_treebank(tmp_path / "b.conllu")[0].heads == (0,)


def test_other_runs_are_no_parsers(tmp_path, capsys):
    options = ["data.num_train=64", "data.num_validation=8", "data.num_test=8", "--max-steps", 0]
    assert run("train", "categorical-tiny", *options, "--run", tmp_path / "a") == 0
    assert run("parse", tmp_path / "a", "-") == 1
    assert "holds no parser but a CategoricalVAE" in capsys.readouterr().err


def test_another_vocabulary_is_refused(phases, tmp_path, capsys):
    before = ["--init-from", phases / "parser", "--run", tmp_path / "x"]
    assert run("train", "parser-tiny-decoder", *before, "data.num_train=30") == 1
    error = capsys.readouterr().err
    assert "are not those of this ParserVAE: they know other words" in error


def test_another_model_is_refused_in_one_short_sentence(phases, tmp_path, capsys):
    words = [
        "train",
        "graph-layout-tiny",
        "--init-from",
        phases / "parser",
        "--run",
        tmp_path / "x",
    ]
    assert run(*words) == 1
    error = capsys.readouterr().err
    assert "are not those of this RelationalVAE: Missing key(s) in state_dict:" in error
    assert len(error) < 400
    assert error.endswith('" and others.\n')
    assert error.count('"') == 2  # one tensor is named, not all


def test_a_later_phase_without_the_one_before_says_so(phases, tmp_path, capsys):
    nothing = ["training.max_epochs=none", "--max-steps", 0]
    words = ["train", "parser-tiny-decoder", "data.num_train=30", *nothing]
    assert run(*words, "--run", tmp_path / "x") == 0
    assert "Is --init-from DIR missing?" in capsys.readouterr().out
    assert run("train", "parser-tiny", *words[2:], "--run", tmp_path / "y") == 0
    assert "--init-from" not in capsys.readouterr().out
    words = ["train", "parser-tiny-nes", *nothing]
    assert run(*words, "--init-from", phases / "parser", "--run", tmp_path / "z") == 0
    assert "trained a parser, no decoder" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no/b", "no/b cannot be written: No such file or directory."),
        (".", ". cannot be written: Is a directory."),
        ("", "The file to write has an empty name: give one, or - for standard output."),
    ],
)
def test_what_cannot_be_written_is_named_first(
    phases, tmp_path, capsys, monkeypatch, target, reason
):
    monkeypatch.chdir(tmp_path)
    write_treebank("a.conllu", [sentence_of(["banoun"], [0], ["_"])])
    monkeypatch.setattr(ParserVAE, "parse", lambda *_: 1 / 0)
    assert run("parse", phases / "nes", "a.conllu", "-o", target) == 1
    assert capsys.readouterr().err == f"nestruct: {reason}\n"
    assert os.listdir(tmp_path) == ["a.conllu"]


def test_pipes_and_links_stay_what_they_are(phases, tmp_path, capsys):
    source, pipe, link = (tmp_path / name for name in ("a.conllu", "pipe", "link"))
    source.write_bytes(GOOD)
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert run("parse", phases / "nes", source, "-o", pipe) == 0
    reader.join(60)
    assert pipe.is_fifo()
    link.symlink_to("real")
    (tmp_path / "real").touch(mode=0o640)
    assert run("parse", phases / "nes", source, "-o", link) == 0
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == found[0]
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    assert len(os.listdir(tmp_path)) == 4
    assert capsys.readouterr().err == 2 * "Parsed 1 sentence, 2 words.\n"


def test_missing_treebanks(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path))
    assert run("train", "parser-source", "--run", tmp_path / "x") == 1
    words = capsys.readouterr().err
    assert "ud/gl_ctg/train.conllu.gz is missing; get gl_ctg-ud-train.conllu from github" in words
    assert not (tmp_path / "x").exists()


def test_sweep_from_a_run(phases, tmp_path):
    sweep = ["estimator.sigma=0.1", "--run", tmp_path, "--max-steps", 1]
    assert run("sweep", "parser-tiny-nes", *sweep, "--init-from", phases / "decoder") == 0
    assert scores(tmp_path / "estimator.sigma=0.1")["uas"] > 0.9


def text_file(folder, content: str | bytes = "banoun .\n\nUnheard-of, banoun!\n"):
    path = folder / "a.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_text_becomes_conllu(phases, tmp_path, capsys):
    path, out = text_file(tmp_path), tmp_path / "b.conllu"
    words = ["parse", phases / "parser", "--text", path, "-o", out]
    assert run(*words) == 0
    assert capsys.readouterr().err == "Parsed 2 sentences, 4 words, 2 of them unknown.\n"
    assert [s.forms for s in read_treebank(out)] == [("banoun", "."), ("Unheard-of,", "banoun!")]
    assert run(*words, "--tokenise") == 0
    second = read_treebank(out)[1]
    assert second.forms == ("Unheard-of", ",", "banoun", "!")
    model = nestruct.load(phases / "parser")
    assert isinstance(model, ParserVAE)
    parsed = model.parse(second.forms)
    assert (parsed.heads, parsed.labels) == (second.heads, second.labels)
    assert bytes(second).startswith(b"# sent_id = 3\n# text = Unheard-of, banoun!\n")


def test_drawings_of_text_and_of_conllu(phases, tmp_path, capsys):
    path, out = text_file(tmp_path), tmp_path / "b.svg"
    assert run("parse", phases / "parser", "--text", path, "--format", "tree") == 0
    printed = capsys.readouterr().out
    assert printed.count("\n\n") == 2
    assert "banoun" in printed
    (tmp_path / "a.conllu").write_bytes(GOOD)
    assert run("parse", phases / "parser", tmp_path / "a.conllu", "--format", "svg", "-o", out) == 0
    assert out.read_text().startswith("<svg ")
    assert out.read_text().count('class="tip"') == 2
    text_file(tmp_path, "a\n" * 201)
    words = ["parse", phases / "parser", "--text", path, "--format", "svg", "-o", tmp_path / "c"]
    assert run(*words) == 1
    assert "at most 200 sentences, not 201" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_bad_lines_of_text(phases, tmp_path, capsys):
    path = text_file(tmp_path, b"banoun\n\x1b[31m\nban\xffoun\n" + b"a " * 1001 + b"\n.\n")
    assert run("parse", phases / "parser", "--text", path) == 1
    found = capsys.readouterr()
    assert "line 2: it has the control character U+001B." in found.err
    assert found.out.count("sent_id") == 1  # what was good before it
    assert run("parse", phases / "parser", "--text", path, "--skip-bad") == 0
    assert "Parsed 2 sentences, 2 words; 3 malformed left out (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Say what to parse: FILE.conllu, or --text FILE; - is standard input."),
        (["a.conllu", "--text", "b"], "Give a CoNLL-U file or --text FILE, not both."),
        (["a.conllu", "--tokenise"], "--tokenise is about --text"),
    ],
)
def test_one_thing_is_parsed(tmp_path, capsys, words, message):
    assert run("parse", tmp_path, *words) == 2
    assert message in capsys.readouterr().err


def test_words_that_training_did_not_know_are_looked_up(phases, tmp_path, capsys, monkeypatch):
    """Which vectors these are, NESTRUCT_DATA says, or an option: of a run the language counts."""
    path, model = text_file(tmp_path, "banoun zebra\n"), nestruct.load(phases / "parser")
    assert isinstance(model, ParserVAE)
    known, run_folder = model.vocabulary.words[2:], tmp_path / "run"
    vectors = np.concatenate([model.vectors[2:].half().numpy(), model.vectors[5:6].half().numpy()])
    emb = tmp_path / "data" / "emb" / "zz_vectors.npz"
    emb.parent.mkdir(parents=True)
    np.savez(emb, words=np.array([*known, "zebra"]), vectors=vectors)
    words = ["parse", phases / "parser", "--text", path]
    assert run(*words) == 0
    assert "2 words, 1 of them unknown." in capsys.readouterr().err
    assert run(*words, "--vectors", emb) == 0
    expected = f"1 of 1 new words known by {emb}.\nParsed 1 sentence, 2 words.\n"
    assert capsys.readouterr().err == expected
    shutil.copytree(phases / "parser", run_folder)
    config = run_folder / "config.toml"
    own = '[data]\nname = "treebanks"\nembeddings = "auto"\nsource = "SOURCE"\n\n['
    text = re.sub(r"\[data\][^\[]*\[", own, config.read_text())
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(nestruct.training.run.verify.log, "warning", lambda *_: None)
    for source, found in (("zz_own", True), ("yy_own", False), (f"{emb.parent}/zz", True)):
        config.write_text(text.replace("SOURCE", source))
        assert run("parse", run_folder, "--text", path) == 0
        assert ("of them unknown" not in capsys.readouterr().err) == found
    np.savez(emb, words=np.array([*known, "zebra"]), vectors=vectors[::-1])
    assert run("parse", run_folder, "--text", path) == 0  # not the user's word, so no error
    error = capsys.readouterr().err
    assert "No word vectors are used: " in error
    assert "2 words, 1 of them unknown." in error
    assert run(*words, "--vectors", emb) == 1
