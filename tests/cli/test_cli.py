"""The command line as a person meets it: help, errors, overrides, files."""

import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib

import pytest
import torch
from forked import Command
from toys import run_command as run

import nestruct
from nestruct.cli import VERBS
from nestruct.data import CATALOGUE
from nestruct.data.treebank import sentence_of

SMALL = ["data.num_train=64", "data.num_validation=32", "data.num_test=32", "model.hidden_size=4"]
QUICK = [*SMALL, "estimator.population_size=4", "training.batch_size=8"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert run("train", "graph-layout-tiny", *QUICK, "--run", folder, "--max-steps", 6) == 0
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb, capsys):
    assert run(verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"nestruct {verb}" in text
    assert "None}" not in text.replace("(default: None)", "")  # no types where a name helps


def test_the_verbs_are_listed(capsys):
    assert run("--help") == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert list(lines) == list(VERBS)  # each in one line
    assert lines["train"].endswith("Train a recipe in a new run folder, or continue a run.")
    assert run() == 2
    assert capsys.readouterr().err == text


def test_the_version_is_told(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"nestruct {nestruct.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian graph-layout-tiny", "The verb 'trian' is not known; did you mean 'train'?"),
        ("reproduce tabel3", "The table or figure 'tabel3' is not known; did you mean 'table3'?"),
        ("bench scalin", "The benchmark 'scalin' is not known; did you mean 'scaling'?"),
        ("bench scaling --task projectiv", "The task 'projectiv' is not known; did you mean"),
        ("data make pattern", "The data set 'pattern' is not known; did you mean 'patterns'?"),
    ],
)
def test_a_word_that_is_not_understood(words, message, capsys):
    assert run(*words.split()) == 2
    assert capsys.readouterr().err.startswith(f"nestruct: {message}")


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("bench scaling", "bench [-h] [OPTIONS] NAME"),
        ("data list", "data [-h] [list|make|get] [NAME] [--yes]"),
        ("recipes", "recipes [-h] [RECIPE]"),
        ("train", "train [-h] [OPTIONS] [RECIPE] [KEY=VALUE ...]"),
    ],
)
def test_the_usage_line_has_every_word(words, usage, capsys):
    assert run(*words.split(), "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: nestruct {usage}\n")


def test_recipes(capsys):
    assert run("recipes") == 0
    assert "graph-layout-tiny" in capsys.readouterr().out
    assert run("recipes", "graph-layout-tiny") == 0
    assert tomllib.loads(capsys.readouterr().out)["estimator"]["name"] == "NES"


def test_train_evaluate_report_load(trained, tmp_path, capsys):
    config = tomllib.loads((trained / "config.toml").read_text())
    assert config["training"]["max_steps"] == 6
    assert config["data"]["num_train"] == 64
    assert run("evaluate", trained, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["split"] == "test"
    assert found["f1_map"] == last["f1_map"]
    assert found["loss"] == pytest.approx(last["loss"])
    assert run("evaluate", trained, "--split", "validation", "--checkpoint", "last") == 0
    assert "f1_sample" in capsys.readouterr().out
    assert run("report", trained, "-o", tmp_path / "page.html") == 0
    assert "<html" in (tmp_path / "page.html").read_text()

    model = nestruct.load(trained)
    batch = {"x": torch.rand(3, 5, 10, 2)}
    assert model.structure.contains(model.infer(batch)).all()
    samples = model.sample(batch, 2)
    assert samples.shape == (2, 3, 10)
    assert torch.equal(samples, model.sample(batch, 2, nestruct.Noise(seed=0)))
    assert not model.training


def test_seed_and_init_from(trained, tmp_path):
    words = ["train", "graph-layout-tiny", *QUICK, "--max-steps", 0, "--run"]
    assert run(*words, tmp_path / "a", "--seed", 1) == 0
    assert run(*words, tmp_path / "b", "--seed", 1, "--init-from", trained) == 0
    parent, a, b = (nestruct.load(p) for p in (trained, tmp_path / "a", tmp_path / "b"))
    for mine, theirs, inherited in zip(
        a.parameters(), parent.parameters(), b.parameters(), strict=True
    ):
        assert torch.equal(inherited, theirs)
        assert mine.numel() < 5 or not torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "Say which recipe to train"),
        (
            ["train", "graph-layout-tiny"],
            "Say where to: nestruct train graph-layout-tiny --run DIR",
        ),
        (["train", "graph-layout-tny", "--run", "x"], "did you mean 'graph-layout-tiny'?"),
        (["train", "graph-layout-tiny", "--run", "x", "model.hiden_size=3"], "'hidden_size'"),
        (["train", "graph-layout-tiny", "--run", "x", "--device", "cuda:x"], "device must be"),
        (
            ["train", "graph-layout-tiny", "--run", "x", "--init-from", "no"],
            "no is not a run folder",
        ),
        (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["train", "a", "--resume", "b"], "--resume continues a run as it began"),
        (["train", "no.toml", "--run", "x"], "no.toml cannot be read: No such file or directory."),
        (["evaluate", "nowhere"], "nowhere is not a run folder"),
        (["report", "nowhere", "-o", "x.html"], "nowhere"),
        (["sweep", "graph-layout-tiny", "seed", "--run", "x"], "KEY=A,B,C"),
        (["sweep", "graph-layout-tiny", "sede=1,2", "--run", "x"], "did you mean 'seed'?"),
        (["sweep", "graph-layout-tiny", "seed=1,1", "--run", "x"], "every value once"),
        (["sweep", "graph-layout-tiny", "seed=1,2", "--run", "x", "--jobs", "0"], "at least 1"),
        (["sweep", "a", "seed=1,2", "--run", "x", "--processes", "0"], "--processes must be"),
        (
            ["sweep", "a", "training.max_steps=3,5", "--run", "x", "--max-steps", "4"],
            "leave one of the two out",
        ),
        (["train", "graph-layout-tiny", "--run", "x", "training.metric=f1_mp"], "'f1_map'"),
        (["train", "graph-layout-tiny", "--run", "x", "scheduler.T_max=0"], "cannot take a step"),
        (["check-gradient", "graph-layout-tny"], "did you mean 'graph-layout-tiny'?"),
    ],
)
def test_mistakes_end_in_one_sentence_and_leave_nothing(
    words, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 1
    output = capsys.readouterr()
    assert output.err.startswith("nestruct: ")
    assert message in output.err
    assert len(output.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_does_not_exist(capsys):
    assert run("train", "graph-layout-tiny", "--sed", "3") == 2
    text = capsys.readouterr().err
    assert "--seed" in text
    assert "reproduce" not in text  # other verbs have options like it


def test_a_number_that_is_none(capsys):
    assert run("train", "graph-layout-tiny", "--run", "r", "--seed", "one") == 2
    assert "Error parsing --seed: 'one' is not a whole number." in capsys.readouterr().err


def test_options_of_the_recipe_can_be_written_as_flags(tmp_path):
    words = ["train", "graph-layout-tiny", *QUICK, "--run", tmp_path / "run", "--max-steps", 1]
    assert run(*words, "--estimator.sigma", "0.5", "--optimizer.lr=0.5") == 0
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (config["estimator"]["sigma"], config["optimizer"]["lr"]) == (0.5, 0.5)


def test_a_run_is_continued_for_longer(tmp_path, capsys):
    folder = tmp_path / "run"
    assert run("train", "graph-layout-tiny", *QUICK, "--run", folder, "--max-steps", 2) == 0
    assert run("train", "--resume", folder) == 0
    assert "nothing is left to do" in capsys.readouterr().out
    assert run("train", "--resume", folder, "--max-steps", 4, "--tensorboard") == 0
    assert "Finished after 4 steps" in capsys.readouterr().out
    assert list((folder / "tensorboard").iterdir())


def test_a_longer_run_is_remembered_after_it_was_stopped(tmp_path):
    folder = tmp_path / "run"
    assert run("train", "graph-layout-tiny", *QUICK, "--run", folder, "--max-steps", 2) == 0
    assert run("train", "--resume", folder, "--max-steps", 5) == 0
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["training"]["max_steps"] == 5
    assert config["scheduler"]["T_max"] == 2


def test_a_reader_that_goes_away_does_not_stop_training(tmp_path):
    folder = tmp_path / "run"
    words = ["train", "graph-layout-tiny", *QUICK, "--run", str(folder), "--max-steps", "40"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nestruct", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 141
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert '"split": "test"' in (folder / "metrics.jsonl").read_text()


def test_a_sweep_names_what_failed_and_does_only_that_again(tmp_path, capfd):
    (tmp_path / "seed=0").mkdir()
    (tmp_path / "seed=0" / "config.toml").write_text("broken")
    words = ["sweep", "graph-layout-tiny", "seed=0,1", "estimator.sigma=0.1", *QUICK]
    words += ["--run", tmp_path, "--max-steps", 1, "--jobs", 2]
    assert run(*words) == 1
    output = capfd.readouterr().out
    assert "failed (status 1)" in output
    assert "seed=1: best validation loss" in output
    shutil.rmtree(tmp_path / "seed=0")
    assert run(*words) == 0
    output = capfd.readouterr().out
    assert "seed=0: best validation loss" in output
    assert output.count("already done") == 1
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["seed=0", "seed=1"]
    assert run(*words) == 0
    assert capfd.readouterr().out.count("already done") == 2


@pytest.mark.parametrize(
    ("number", "processes"),
    [
        (signal.SIGINT, 1),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
    ],
)
def test_a_signal_reaches_the_runs_of_a_sweep_and_the_same_command_continues(
    tmp_path, number, processes
):
    command, process = start_sweep(tmp_path, processes)
    process.send(number)
    assert process.wait() == 130
    assert "seed=0: stopped, saved" in process.output
    assert "Stopped; the same command continues." in process.output
    assert "Stopped at step" in (tmp_path / "seed=0.log").read_text()
    assert not (tmp_path / "seed=1").exists()
    continue_sweep(command, tmp_path)


@pytest.mark.slow
def test_the_runs_of_a_sweep_that_is_killed_are_saved_and_the_same_command_continues(tmp_path):
    command, process = start_sweep(tmp_path)
    process.kill()
    until = time.monotonic() + 60
    while "Stopped at step" not in (tmp_path / "seed=0.log").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    continue_sweep(command, tmp_path)


def start_sweep(folder, processes=1):
    """The command of a long sweep, and its process once the first run has begun."""
    command = ["sweep", "graph-layout-tiny", "seed=0,1", *QUICK, "--run", folder]
    command += ["training.log_interval=1", "--processes", processes, "--max-steps"]
    process = Command(*command, 100000, said=folder / "said")
    log = folder / "seed=0" / "metrics.jsonl"
    while process.poll() is None and (not log.exists() or log.stat().st_size < 2000):
        time.sleep(0.01)
    return command, process


def continue_sweep(command, folder):
    log = folder / "seed=0" / "metrics.jsonl"
    step = json.loads(log.read_text().splitlines()[-1])["step"]
    process = Command(*command, step + 1, said=folder / "said")
    assert process.wait() == 0
    assert process.output.count("best validation loss") == 2
    assert f"Continuing at step {step}." in (folder / "seed=0.log").read_text()


def test_check_gradient(capsys):
    words = [
        "data.num_nodes=3",
        "data.num_times=2",
        "model.num_rollout_steps=1",
        "data.num_train=8",
    ]
    words += ["model.hidden_size=1", "model.batch_norm=false", "estimator.shaping=none"]
    words += ["estimator.sigma=0.3", "model.variance=1"]
    words += [
        "model.score_scale=1",
        "model.pull=0",
        "estimator.minibatch=shared",
        "estimator.pair_batch_size=none",
    ]
    code = run("check-gradient", "graph-layout-tiny", *words, "--num-trials", 60, "--batch-size", 2)
    output = capsys.readouterr().out
    assert "cosine to the truth" in output
    assert (code == 0) == ("passed" in output)
    assert code == 0


def test_it_is_a_program():
    answer = subprocess.run(
        [sys.executable, "-m", "nestruct", "recipes"], capture_output=True, text=True, check=True
    )
    assert "graph-layout-tiny" in answer.stdout


def test_data_sets_are_listed_and_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path))
    monkeypatch.setenv("NESTRUCT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "mnist.npz").write_bytes(b"no archive")
    assert run("data", "list") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == {"NESTRUCT_DATA", *CATALOGUE}
    assert "made here (Table 1" in lines["graph-layout"]
    assert "missing (Table 2: word vectors): get cc.ru.300.vec.gz" in lines["vectors-ru"]
    assert "missing (the paper's appendix): put" in lines["kmnist"]
    assert "codh.rois.ac.jp/kmnist" in lines["kmnist"]
    assert "damaged (not in the paper)" in lines["mnist"]
    assert run("data", "make", "patterns") == 0
    assert str(tmp_path / "cache") in capsys.readouterr().out
    assert run("data", "make", "kmnist") == 1
    assert "read, not made" in capsys.readouterr().err
    monkeypatch.delenv("NESTRUCT_DATA")
    assert run("data", "make", "gl_ctg") == 1
    assert capsys.readouterr().err.endswith(
        ": get gl_ctg-ud-train.conllu and gl_ctg-ud-test.conllu from github.com/"
        "UniversalDependencies and put them into $NESTRUCT_DATA/ud/gl_ctg.\n"
    )
    assert run("data", "make") == 1
    assert "graph-layout, patterns" in capsys.readouterr().err


def test_a_data_folder_that_is_none_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path / "no"))
    assert run("data") == 0
    assert f"NESTRUCT_DATA = {tmp_path / 'no'}, which is no folder" in capsys.readouterr().out
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path))
    (tmp_path / "emb").mkdir()
    (tmp_path / "emb" / "cc.gl.300.vec.gz").write_bytes(bytes(2_000_000))
    assert run("data") == 0
    assert "vectors-gl     found (Table 2: word vectors): 2.0 MB" in capsys.readouterr().out


def test_a_treebank_is_found_where_training_can_use_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path))
    folder = tmp_path / "ud" / "gl_ctg"
    folder.mkdir(parents=True)

    def state() -> str:
        assert run("data") == 0
        lines = capsys.readouterr().out.splitlines()
        return next(line for line in lines if line.startswith("gl_ctg"))

    (folder / "train.conllu").write_text("x")
    assert "missing (Table 2: dependency trees): get gl_ctg-ud-test.conllu from" in state()
    (folder / "test.conllu").touch()
    assert "missing (Table 2: dependency trees): get gl_ctg-ud-test.conllu from" in state()
    sentence = bytes(sentence_of(["Dogs", "bark"], [2, 0], ["nsubj", "root"]))
    (folder / "test.conllu").write_bytes(sentence)
    assert "damaged" in state()
    assert "train.conllu, line 1: it has 1 column" in state()
    (folder / "train.conllu").write_bytes(50_000 * sentence)
    assert "found (Table 2: dependency trees): 2.7 + 0.0 MB to train and test on" in state()


def test_doctor_finds_nothing_wrong(monkeypatch, capsys):
    monkeypatch.delenv("NESTRUCT_DATA", raising=False)
    assert run("doctor") == 0
    text = capsys.readouterr().out
    for expected in (f"nestruct {nestruct.__version__}", torch.__version__, "NESTRUCT_DATA is not"):
        assert expected in text
    assert text.count("works (") == 2
    assert text.endswith("All that is needed works.\n")


def test_doctor_says_what_is_broken(monkeypatch, capsys):
    def fails(*_, **__):
        raise OSError("no such library")

    monkeypatch.setattr(nestruct.SpanningTree, "argmax", fails)
    assert run("doctor") == 1
    text = capsys.readouterr().out
    assert "BROKEN: OSError: no such library" in text
    assert text.endswith("Broken: a solver.\n")


@pytest.mark.slow
def test_out_of_memory_is_said_in_one_sentence(tmp_path):
    """A real one: the process may have 12 GB of addresses, and asks for more."""
    sizes = ["data.num_train=50", "data.num_validation=10", "data.num_test=10"]
    answer = subprocess.run(
        [
            *("bash", "-c", 'ulimit -v 12000000; exec "$@"', "bash"),
            *(sys.executable, "-m", "nestruct", "train", "table1-structure-nes"),
            *("data.num_nodes=5", "model.hidden_size=8", *sizes),
            *("estimator.num_samples=3000000", "--device", "cpu", "--run", str(tmp_path / "run")),
        ],
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith("nestruct: out of memory. Evaluate fewer at a time")
    assert len(answer.stderr.splitlines()) == 1
