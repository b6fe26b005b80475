"""What a run starts from is part of the run: its parameters, its plan."""

import json
import shutil
import signal

import pytest
import torch
import toys
from fits import DATA, HELD_OUT, CrashError, adam, assert_same_run, crash_at, nes, train

import nestruct
from nestruct.training import Recipe, read_recipe
from nestruct.training import train as train_recipe
from nestruct.training.fit import Spent
from nestruct.training.run import read_checkpoint
from nestruct.training.run.checkpoint import checksum_of, write_checkpoint

OPTIONS = [
    *("device=cpu", "data.num_train=32", "data.num_validation=16", "data.num_test=8"),
    *("training.max_steps=4", "training.eval_interval=2", "training.log_interval=1"),
]


def recipe(*more: str) -> Recipe:
    return Recipe.from_tables(read_recipe("graph-layout-5", [*OPTIONS, *more]))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    run = tmp_path_factory.mktemp("source") / "run"
    train_recipe(recipe("seed=7"), run, progress=False)
    return run


def fit(run, model=None, estimator=None, **options):
    model = toys.vae() if model is None else model
    options = {"max_steps": 4, "batch_size": 8, "log_interval": 1, "progress": False} | options
    estimator = nes() if estimator is None else estimator
    result = nestruct.fit(
        model, estimator, adam(model), DATA, validation=HELD_OUT, run=run, **options
    )
    return model, result


class KilledError(BaseException):
    """As a kill: nothing tidies up after it."""


class KillsAtStep(nestruct.NES):
    """Ends the process, as it were, in the middle of the first step."""

    def estimate(self, model, layout, batch, noise):
        raise KilledError


def lost(run):
    """A run whose checkpoints are all damaged."""
    for file in (run / "checkpoints").rglob("*.safetensors"):
        file.write_bytes(b"")
    return run


def test_a_checkpoint_with_parameters_and_plan_is_there_before_the_first_step(tmp_path):
    model = toys.vae()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KilledError):
        fit(tmp_path, model, KillsAtStep(sigma=0.1, population_size=6))
    found = read_checkpoint(tmp_path / "checkpoints" / "last")
    assert found.step == 0
    assert all(torch.equal(found.model[name], first[name]) for name in first)
    assert found.estimator["mode"] in ("vmap", "loop")
    assert found.estimator["chunk"] >= 1
    assert found.loop["threads"] == torch.get_num_threads()


def test_a_run_that_is_killed_in_its_first_step_keeps_its_plan(tmp_path):
    """Whatever the clock says the second time."""
    with pytest.raises(KilledError):
        fit(tmp_path, estimator=KillsAtStep(sigma=0.1, population_size=6))
    for name in ("last", "best"):
        found = read_checkpoint(tmp_path / "checkpoints" / name)
        other = "loop" if found.estimator["mode"] == "vmap" else "vmap"
        found.estimator |= {"mode": other, "chunk": 2}
        write_checkpoint(tmp_path / "checkpoints", name, found)
    again = nestruct.NES(sigma=0.1, population_size=6)
    fit(tmp_path, estimator=again, resume=True, config=nestruct.training.read_config(tmp_path))
    assert (again.state_dict()["mode"], again.state_dict()["chunk"]) == (other, 2)


def test_no_config_without_a_checkpoint(tmp_path):
    """A kill before the folder is a run leaves one that the same command takes."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(run=whole, max_steps=3)

    def first(say):
        assert (cut / "environment.json").exists()
        assert not (cut / "config.toml").exists()
        raise KilledError

    with pytest.raises(KilledError):
        train(run=cut, max_steps=3, first=first)
    with pytest.raises(nestruct.InputError, match="stopped before step 0, start it again"):
        nestruct.load(cut)
    # As a kill between the checkpoint and config.toml leaves it, twice.
    start = read_checkpoint(whole / "checkpoints" / "last")
    start.loop |= {"step": 0, "reason": None}
    write_checkpoint(cut / "checkpoints", "last", start)
    write_checkpoint(cut / "checkpoints", "last", start)
    train(run=cut, max_steps=3)
    assert_same_run(whole, cut)


@pytest.mark.parametrize("name", ["last", "best"])
def test_checkpoints_without_a_config_are_not_overwritten(tmp_path, name):
    train(run=tmp_path / "run", max_steps=3)
    (tmp_path / "left" / "checkpoints").mkdir(parents=True)
    shutil.copytree(
        tmp_path / "run" / "checkpoints" / name, tmp_path / "left" / "checkpoints" / name
    )
    with pytest.raises(nestruct.InputError, match="already holds a run"):
        train(run=tmp_path / "left", max_steps=3)


def test_init_from_is_noted(source, tmp_path):
    run = tmp_path / "run"
    train_recipe(recipe(), run, init_from=source, progress=False)
    start = json.loads((run / "environment.json").read_text())["start"]
    assert (run / start["init_from"]).resolve() == source
    best = read_checkpoint(source / "checkpoints" / "best").model
    assert start["parameters"] == checksum_of(best)


def test_a_run_that_lost_its_start_is_refused_not_begun_from_random_parameters(source, tmp_path):
    run = tmp_path / "run"
    train_recipe(recipe(), run, init_from=source, progress=False)
    before = (run / "metrics.jsonl").read_bytes()
    lost(run)
    with pytest.raises(nestruct.InputError, match=f"but with those of {source}: start it again"):
        train_recipe(recipe(), run, resume=True, progress=False)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_with_its_start_at_hand_it_is_begun_again(source, tmp_path, capsys):
    for name in ("whole", "cut"):
        train_recipe(recipe(), tmp_path / name, init_from=source, progress=False)
    train_recipe(recipe(), lost(tmp_path / "cut"), init_from=source, resume=True)
    assert "starting anew at step 0" in capsys.readouterr().out
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_another_start_than_the_first_one_is_refused(source, tmp_path):
    train_recipe(recipe(), tmp_path / "run", init_from=source, progress=False)
    train_recipe(recipe("seed=8"), tmp_path / "other", progress=False)
    with pytest.raises(nestruct.InputError, match="did not begin with the parameters"):
        train_recipe(
            recipe(), tmp_path / "run", init_from=tmp_path / "other", resume=True, progress=False
        )


def test_a_lost_run_of_another_model_is_refused(tmp_path):
    """`fit` alone cannot know how a model was built, only that this is another."""
    fit(tmp_path)
    lost(tmp_path)
    other = toys.vae()
    with torch.no_grad():
        next(other.parameters()).add_(1e-6)
    with pytest.raises(nestruct.InputError, match="did not begin with the parameters"):
        fit(tmp_path, other, resume=True)


def test_a_killed_run_does_not_try_its_starts_again(tmp_path):
    calls = []

    def first(say):
        calls.append(1)
        return Spent(evaluations=5)

    train(run=tmp_path / "whole", first=first, log_interval=1)
    with pytest.raises(CrashError):
        train(run=tmp_path / "cut", first=first, callbacks=[crash_at(0)], log_interval=1)
    train(run=tmp_path / "cut", first=first, resume=True, log_interval=1)
    assert len(calls) == 2
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_run_goes_on_without_the_run_that_it_began_from(source, tmp_path):
    gone = tmp_path / "gone"
    shutil.copytree(source, gone)
    train_recipe(recipe("training.max_steps=2"), tmp_path / "run", init_from=gone, progress=False)
    shutil.rmtree(gone)
    longer = recipe("training.max_steps=3")
    result = train_recipe(longer, tmp_path / "run", init_from=gone, resume=True, progress=False)
    assert result.step == 3


def test_a_best_checkpoint_that_was_deleted_does_not_stand_in_the_way(tmp_path):
    def stop(record):
        if record["step"] == 2 and record["split"] == "train":
            shutil.rmtree(tmp_path / "checkpoints" / "best")
            signal.raise_signal(signal.SIGTERM)

    assert fit(tmp_path, callbacks=[stop])[1].reason == "interrupted"
    assert (tmp_path / "checkpoints" / "best").is_dir()
    assert fit(tmp_path, resume=True)[1].reason == "finished"


def test_a_run_goes_on_with_more_metrics_than_it_had(tmp_path):
    def more(model, batch, noise):
        loss = model.loss(batch, noise)
        return {"loss": loss, "more": loss}

    def stop(record):
        if record["step"] == 2 and record["split"] == "train":
            signal.raise_signal(signal.SIGTERM)

    fit(tmp_path, callbacks=[stop], eval_interval=1)
    fit(tmp_path, resume=True, metrics=more, max_steps=3, eval_interval=1)
    result = fit(tmp_path, resume=True, metrics=more, eval_interval=1)[1]
    assert (result.step, result.reason) == (4, "finished")
