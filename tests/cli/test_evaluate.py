"""``nestruct evaluate`` of a parser: splits that are there, files of one's own, hidden trees."""

import json
import shutil

import pytest
from toys import run_command as run

from nestruct.data import Grammar
from nestruct.data.treebank import write_treebank


@pytest.fixture(scope="module")
def parser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "parser"
    assert run("train", "parser-tiny", "--run", folder, "training.max_epochs=1") == 0
    return folder


def said(capsys, *words) -> tuple[int, str, str]:
    capsys.readouterr()
    status = run(*words)
    out, err = capsys.readouterr()
    return status, out, err


def test_a_file_of_ones_own_is_compared_with(parser, tmp_path, capsys):
    trees = Grammar().texts.target_test
    write_treebank(tmp_path / "own.conllu.gz", trees)
    _, out, _ = said(capsys, "evaluate", parser, "--file", tmp_path / "own.conllu.gz", "--json")
    found = json.loads(out)
    _, out, _ = said(capsys, "evaluate", parser, "--json")
    expected = json.loads(out)
    assert found["uas"] == pytest.approx(expected["uas"])
    assert found["las"] == pytest.approx(expected["las"])
    write_treebank(tmp_path / "bad.conllu", [trees[0], b"1\tx\n\n"])
    status, _, err = said(capsys, "evaluate", parser, "--file", tmp_path / "bad.conllu")
    assert status != 0
    assert f"line {len(trees[0]) + 2}" in err
    assert said(capsys, "evaluate", parser, "--skip-bad", "--file", tmp_path / "bad.conllu")[0] == 0
    (tmp_path / "empty.conllu").touch()
    status, _, err = said(capsys, "evaluate", parser, "--file", tmp_path / "empty.conllu")
    assert "has no sentences" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--file", "own.conllu", "--split", "test"], "leave out --split test"),
        (["--skip-bad"], "say which with --file"),
    ],
)
def test_options_that_would_be_ignored_are_refused(words, message, capsys):
    status, _, err = said(capsys, "evaluate", "nowhere", *words)
    assert status == 1
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_model_that_reads_no_files_says_so(tmp_path, capsys):
    sizes = [f"data.num_{split}=8" for split in ("train", "validation", "test")]
    assert run("train", "categorical-tiny", *sizes, "--max-steps", 0, "--run", tmp_path / "a") == 0
    status, _, err = said(capsys, "evaluate", tmp_path / "a", "--file", tmp_path / "own.conllu")
    assert status == 1
    assert "holds a CategoricalVAE, which reads no files" in err


def test_nothing_to_attach_is_no_share_of_zero(parser, tmp_path, capsys):
    (tmp_path / "own.conllu").write_text("1\t.\t.\tPUNCT\t_\t_\t0\troot\t_\t_\n\n")
    status, out, _ = said(capsys, "evaluate", parser, "--file", tmp_path / "own.conllu")
    assert status == 0
    assert "uas not finite" in out
    _, out, _ = said(capsys, "evaluate", parser, "--file", tmp_path / "own.conllu", "--json")
    assert json.loads(out)["uas"] is None
    assert "NaN" not in out


def test_hidden_trees_are_not_compared_with(parser, tmp_path, capsys):
    start = ["--init-from", parser, "--run", tmp_path / "nes", "estimator.population_size=4"]
    assert run("train", "parser-tiny-nes", *start, "training.max_epochs=1") == 0
    status, _, err = said(capsys, "evaluate", tmp_path / "nes", "--split", "train")
    assert status != 0
    assert "does not tell its true structures" in err


def test_without_the_best_checkpoint_the_last_is_named_and_noted(parser, tmp_path, caplog):
    copy = shutil.copytree(parser, tmp_path / "copy")
    file = copy / "details.json"
    before = json.loads(file.read_text())["models"]
    for path in (copy / "checkpoints").glob("best*"):
        shutil.rmtree(path)
    models = before | {"last": {"step": -1}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"models": models}))
    assert run("evaluate", copy) == 0
    step = before["last"]["step"]
    assert f"no checkpoint 'best' that can be used: taking 'last', of step {step}" in caplog.text
    assert json.loads(file.read_text())["models"] == before


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("model.objective=vae", "cannot be differentiated"),
        ("estimator.name=DPP", "has no latent tree"),
        ("estimator.name=StructureNES", "has no latent tree"),
    ],
)
def test_what_is_refused_at_its_first_step_leaves_no_run(tmp_path, capsys, option, reason):
    status, _, err = said(capsys, "train", "parser-tiny", option, "--run", tmp_path / "a")
    assert status != 0
    assert reason in err
    assert not (tmp_path / "a").exists()


def test_a_long_evaluation_shows_that_it_lives(parser, capsys, monkeypatch):
    monkeypatch.setattr("nestruct.cli.life._SILENCE", 0.001)
    status, out, err = said(capsys, "evaluate", parser, "--json")
    assert status == 0
    assert json.loads(out)["step"] > 0
    assert err.startswith("Evaluating for ")
