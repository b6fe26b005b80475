"""A changed digit in a run's files is noticed and said; folders of version 0.1 are still read."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from fits import HELD_OUT, CrashError, crash_at, metrics, train

import nestruct
from nestruct.reports.runs import read_runs
from nestruct.training import Recipe, evaluate_run, read_config, read_recipe
from nestruct.training import train as train_recipe
from nestruct.training.run import read_checkpoint

OPTIONS = [
    *("device=cpu", "data.num_train=32", "data.num_validation=16", "data.num_test=8"),
    *("training.max_steps=4", "training.eval_interval=2", "training.log_interval=1"),
]
OLD = Path(__file__).parents[2] / "fixtures" / "version-0.1"
FREE = re.compile("title|device|max_steps|checkpoint_seconds|interval|eval_batch_size")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    train_recipe(Recipe.from_tables(read_recipe("graph-layout-5", OPTIONS)), run, progress=False)
    return run


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def resume(run, **options):
    """As ``nestruct train --resume`` does."""
    return train_recipe(Recipe.from_tables(read_config(run)), run, resume=True, **options)


def cut(run, **options):
    """A run that crashed at step 9 of 12."""
    options = {"log_interval": 1, "checkpoint_seconds": 0} | options
    with pytest.raises(CrashError):
        train(run=run, callbacks=[crash_at(9)], **options)


def change(file: Path, place: int) -> str:
    """Adds 1 to a digit; the line that it is in."""
    text = file.read_text()
    file.write_text(f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}")
    return text[text.rfind("\n", 0, place) + 1 :].splitlines()[0]


def digits(file: Path) -> list[int]:
    return [match.start() for match in re.finditer(r"\d", file.read_text())]


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_changed_digit_of_the_configuration_is_said(trained, tmp_path, caplog, capsys, every):
    """Resuming is refused where the run would be another; evaluations and reports say it."""
    refusals: list[str] = []
    for place in digits(trained / "config.toml")[::every]:
        run = tmp_path / str(place)
        shutil.copytree(trained, run)
        line = change(run / "config.toml", place)
        caplog.clear()
        try:
            read_runs([run])
            Recipe.from_tables(read_config(run))
        except nestruct.InputError:
            continue  # no value that the setting can have
        assert f"{run}: config.toml was changed:" in caplog.text, line
        if FREE.search(line.split(" = ")[0]):
            resume(run)
            said = " ".join(capsys.readouterr().out.split())
            assert "config.toml was changed since the last checkpoint:" in said, line
        else:
            with pytest.raises(nestruct.InputError) as refusal:
                resume(run, progress=False)
            refusals.append(str(refusal.value))
    named = [text for text in refusals if "config.toml was changed after the checkpoint" in text]
    assert len(named) > 0.7 * len(refusals) > 0  # some cannot be built at all


def test_evaluating_with_another_configuration_is_said(run, caplog):
    step, values = evaluate_run(run)
    assert "was changed" not in caplog.text
    file = run / "config.toml"
    variance = read_config(run)["model"]["variance"]
    file.write_text(file.read_text().replace(f"variance = {variance}", "variance = 0.5"))
    assert evaluate_run(run)[1] != values
    assert f"model.variance is 0.5, was {variance}" in caplog.text
    caplog.clear()
    nestruct.load(run)
    assert f"{file} was changed after the checkpoint of step {step}" in caplog.text


def test_a_changed_configuration_is_put_back_by_a_call_that_knows_it(tmp_path, capsys):
    cut(tmp_path)
    file = tmp_path / "config.toml"
    good = file.read_text()
    file.write_text(good.replace("lr = 0.02", "lr = 0.03"))
    train(run=tmp_path, resume=True, log_interval=1, checkpoint_seconds=0, progress=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "config.toml was changed since the last checkpoint: optimizer.lr is 0.03" in said
    assert file.read_text() == good


def test_a_lost_configuration_is_read_from_the_checkpoint(trained, tmp_path, capsys):
    cut(tmp_path / "cut")
    good = (tmp_path / "cut" / "config.toml").read_text()
    (tmp_path / "cut" / "config.toml").unlink()
    train(run=tmp_path / "cut", resume=True, log_interval=1, checkpoint_seconds=0, progress=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "config.toml was lost: it was written again." in said
    assert (tmp_path / "cut" / "config.toml").read_text() == good
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "config.toml").unlink()
    assert evaluate_run(tmp_path / "run") == evaluate_run(trained)


def test_a_longer_run_that_is_killed_at_once_can_be_resumed(tmp_path):
    """Its config.toml says so before a checkpoint does."""
    cut(tmp_path)
    options = {"log_interval": 1, "checkpoint_seconds": 0, "resume": True, "max_steps": 20}

    def at_once(record):
        raise CrashError

    with pytest.raises(CrashError):
        train(run=tmp_path, callbacks=[at_once], **options)
    assert read_config(tmp_path)["training"]["max_steps"] == 20
    assert train(run=tmp_path, **options)[1].step == 20


@pytest.mark.parametrize("name", ["metrics.jsonl", "structures.jsonl"])
@pytest.mark.parametrize("harm", ["digit", "cut", "line", "missing"])
def test_a_damaged_log_is_said(tmp_path, capsys, caplog, name, harm):
    cut(tmp_path)
    file = tmp_path / name
    read_runs([tmp_path])
    assert not caplog.text
    content = file.read_bytes()
    lines = content.splitlines(keepends=True)
    if harm == "digit":
        change(file, digits(file)[len(digits(file)) // 2])
    elif harm == "cut":
        file.write_bytes(b"".join(lines[:2])[:-3])
    elif harm == "line":
        file.write_bytes(b"".join(lines[:1] + lines[2:]))
    else:
        file.unlink()
    if (name, harm) != ("metrics.jsonl", "missing"):  # without it there is nothing to report on
        read_runs([tmp_path])
        assert f"{tmp_path}: {name} " in caplog.text
    train(run=tmp_path, resume=True, log_interval=1, checkpoint_seconds=0, progress=True)
    said = " ".join(capsys.readouterr().out.split())
    assert f"{name} was changed" in said or f"{name} has lost" in said


def test_the_test_record_is_known_too(run, caplog):
    file = run / "metrics.jsonl"
    match = list(re.finditer(r'"loss": -?\d+\.(\d)', file.read_text()))[-1]
    assert "test" in change(file, match.start(1))
    read_runs([run])
    assert f"{run}: metrics.jsonl was changed since the run ended." in caplog.text


def test_a_run_of_version_0_1_is_read_and_resumed_with_a_note(tmp_path, capsys, caplog):
    run = tmp_path / "run"
    shutil.copytree(OLD, run)
    assert nestruct.load(run).structure is not None
    assert read_runs([run])[0].last_step == 7
    assert evaluate_run(run)[0] == 5
    assert resume(run).step == 12
    said = " ".join(capsys.readouterr().out.split())
    assert "Continuing at step 7." in said
    assert "This run is of version 0.1" in said
    assert not caplog.text
    assert read_checkpoint(run / "checkpoints" / "last").config == (run / "config.toml").read_text()
    whole = tmp_path / "whole"
    train_recipe(Recipe.from_tables(read_config(run)), whole, progress=False)
    ours, theirs = (nestruct.load(one, checkpoint="last") for one in (run, whole))
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)  # of another machine


def test_a_lost_run_of_version_0_1_is_refused(tmp_path):
    """It does not say what it began with."""
    run = tmp_path / "run"
    shutil.copytree(OLD, run)
    for file in run.rglob("state.json"):
        file.write_text("{}")
    with pytest.raises(nestruct.InputError, match="no checkpoint that can be used"):
        resume(run, progress=False)


def delete(run: Path, *names: str):
    """A callback that deletes files of a running training."""

    def callback(record):
        if record["step"] == 6:
            for name in names:
                path = run / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return callback


@pytest.mark.parametrize(
    "name",
    [
        *("metrics.jsonl", "structures.jsonl", "config.toml", "environment.json"),
        *("checkpoints", "checkpoints/best", "checkpoints/last"),
    ],
)
def test_what_is_deleted_under_a_training_is_said_and_written_again(tmp_path, capsys, name):
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(run=whole, log_interval=3)
    _, result = train(run=run, log_interval=3, callbacks=[delete(run, name)], progress=True)
    assert metrics(run) == metrics(whole)
    assert (run / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()
    assert (run / "structures.jsonl").read_bytes() == (whole / "structures.jsonl").read_bytes()
    assert (run / "environment.json").exists()
    best, last = (read_checkpoint(run / "checkpoints" / kind) for kind in ("best", "last"))
    known = read_checkpoint(whole / "checkpoints" / "best").model
    assert all(torch.equal(best.model[key], known[key]) for key in known)
    assert (best.step, last.step) == (result.best_step, 12)
    said = " ".join(capsys.readouterr().out.split())
    name = "checkpoints/last" if name == "checkpoints" else name
    assert f"{name} was deleted or replaced while training: it was written again." in said


def test_best_parameters_that_are_deleted_at_the_end_are_written_again(tmp_path):
    """They can be used, but nothing can go on from them: the optimizer's state is lost."""

    def delete_last(record):
        if record["split"] == "test":
            shutil.rmtree(tmp_path / "checkpoints" / "best")

    model, result = train(run=tmp_path, test=HELD_OUT, callbacks=[delete_last])
    best = read_checkpoint(tmp_path / "checkpoints" / "best")
    assert best.step == result.best_step
    assert all(torch.equal(best.model[key], value) for key, value in model.state_dict().items())
    shutil.rmtree(tmp_path / "checkpoints" / "last")
    shutil.rmtree(tmp_path / "checkpoints" / "last.previous")
    with pytest.raises(nestruct.InputError, match="of another model, optimizer"):
        train(run=tmp_path, resume=True, test=HELD_OUT)
