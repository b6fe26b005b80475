"""Several first parameters, the best of which is trained on."""

import json

import pytest
import torch

import nestruct
from nestruct import InputError, NestructError
from nestruct.noise import derive_seed
from nestruct.training import Recipe, build, read_recipe, train

OPTIONS = [
    *("device=cpu", "data.num_train=64", "data.num_validation=32", "data.num_test=8"),
    *("training.max_steps=6", "training.eval_interval=3", "training.log_interval=3"),
    *("training.num_starts=3", "training.start_steps=4", "model.pull=0"),
]


def recipe(*more: str) -> Recipe:
    return Recipe.from_tables(read_recipe("graph-layout-5", [*OPTIONS, *more]))


def records(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_best_start_is_trained_on(tmp_path):
    chosen = recipe()
    train(chosen, tmp_path / "run", progress=False)
    found = {}
    for start in range(3):
        one = build(chosen, start)
        splits = one.data.splits()
        nestruct.fit(
            *(one.model, one.estimator, one.optimizer, splits["train"]),
            seed=derive_seed(chosen.seed, 8),
            max_steps=4,
            batch_size=16,
            progress=False,
        )
        seed = derive_seed(chosen.seed, 2)
        found[start] = nestruct.evaluate(one.model, splits["validation"], seed=seed)["loss"]
    assert len(set(found.values())) == 3
    first = records(tmp_path / "run")[0]
    assert first["step"] == 0
    assert first["loss"] == min(found.values())


def test_what_the_starts_cost_is_counted(tmp_path):
    with_starts = train(recipe(), tmp_path / "several", progress=False)
    without = train(recipe("training.num_starts=1"), tmp_path / "one", progress=False)
    assert with_starts.evaluations == without.evaluations + 3 * 4 * 8
    assert records(tmp_path / "several")[0]["evaluations"] == 3 * 4 * 8


def test_a_resumed_run_is_the_same(tmp_path, monkeypatch):
    """Stopped while it tried starts, and after some steps."""
    train(recipe(), tmp_path / "whole", progress=False)
    train(recipe("training.max_steps=3"), tmp_path / "cut", progress=False)
    train(recipe(), tmp_path / "cut", resume=True, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr("nestruct.training.recipes.starts.measure", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(), tmp_path / "begun", progress=False)
    train(recipe(), tmp_path / "begun", resume=True, progress=False)
    whole = nestruct.load(tmp_path / "whole", checkpoint="last").state_dict()
    for name in ("cut", "begun"):
        again = nestruct.load(tmp_path / name, checkpoint="last").state_dict()
        assert all(torch.equal(whole[key], again[key]) for key in whole)


def _interrupt(*_: object) -> dict[str, float]:
    raise KeyboardInterrupt


def test_starts_differ():
    first, same, other = (build(recipe(), start).model for start in (0, 0, 1))
    weights = [model.state_dict()["encoder.score.weight"] for model in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_starts_that_all_fail_are_an_error(tmp_path):
    with pytest.raises(NestructError, match="None of 3 starts had a finite loss"):
        train(recipe("optimizer.lr=1e30"), tmp_path / "run", progress=False)


def test_starts_that_are_refused_leave_no_run(tmp_path):
    estimator = {"name": "NES", "sigma": 0.1, "population_size": 4, "minibatch": "per_pair"}
    words = [f"estimator.{name}={value}" for name, value in estimator.items()]
    with pytest.raises(InputError, match="pair_batch_size is 99"):
        train(recipe(*words, "estimator.pair_batch_size=99"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_it_says_what_it_does(tmp_path, capsys):
    train(recipe(), tmp_path / "run")
    assert "Start 3 of 3: validation loss" in capsys.readouterr().out


def test_mistakes(tmp_path):
    with pytest.raises(InputError, match="num_starts must be at least 1"):
        recipe("training.num_starts=0")
    train(recipe("training.num_starts=1"), tmp_path / "one", progress=False)
    with pytest.raises(InputError, match=r"training\.num_starts=1"):
        train(recipe(), tmp_path / "two", init_from=tmp_path / "one", progress=False)
    one = build(recipe())
    with pytest.raises(InputError, match="for recipes"):
        nestruct.fit(
            *(one.model, one.estimator, one.optimizer, one.data.splits()["train"]),
            max_steps=1,
            num_starts=2,
        )
