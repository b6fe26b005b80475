"""``training.smoothing_gap``: the distance of the smoothed loss, measured on the way."""

import json

import pytest
import torch

import nestruct
from nestruct import InputError
from nestruct.noise import derive_seed
from nestruct.training import Recipe, build, read_recipe, train
from nestruct.training.recipes.gap import WithSmoothingGap

OPTIONS = [
    *("device=cpu", "data.num_train=64", "data.num_validation=32", "data.num_test=8"),
    *("training.max_steps=4", "training.eval_interval=2", "estimator.population_size=4"),
]


def recipe(*more: str) -> Recipe:
    return Recipe.from_tables(read_recipe("categorical-tiny", [*OPTIONS, *more]))


def test_every_evaluation_has_it(tmp_path):
    chosen = recipe("training.smoothing_gap=20")
    train(chosen, tmp_path / "run", progress=False)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    gaps = {line["step"]: line["smoothing_gap"] for line in lines if line["split"] == "validation"}
    assert list(gaps) == [0, 2, 4]
    assert all(gap > 0 for gap in gaps.values())
    assert not any("smoothing_gap" in line for line in lines if line["split"] != "validation")
    one = build(chosen)
    found = nestruct.smoothing_gap(
        one.model.eval(),
        one.data.splits()["validation"],
        sigma=one.estimator.sigma,
        num_perturbations=20,
        seed=derive_seed(chosen.seed, 2),
    )
    assert gaps[0] == pytest.approx(found.gap, rel=1e-12)


def test_only_the_first_thousand_examples_count():
    one = build(recipe("data.num_validation=1100"))
    data = one.data.splits()["validation"]
    values = {}
    for name, examples in {"all": data, "thousand": data[:1000]}.items():
        metrics = WithSmoothingGap(one.estimator, 4)
        values[name] = nestruct.evaluate(one.model, examples, metrics=metrics, batch_size=1100)
    assert values["all"]["smoothing_gap"] == pytest.approx(values["thousand"]["smoothing_gap"])
    assert values["all"]["loss"] != values["thousand"]["loss"]
    sliced = nestruct.evaluate(one.model, data, metrics=metrics, batch_size=400)
    assert sliced["smoothing_gap"] == pytest.approx(values["all"]["smoothing_gap"], rel=0.5)


def test_a_part_that_somebody_froze_stays_so():
    one = build(recipe())
    one.model.encoder.eval()
    metrics = WithSmoothingGap(one.estimator, 4)
    nestruct.evaluate(one.model, torch.ones(3, one.data.num_inputs), metrics=metrics)
    assert [one.model.training, one.model.encoder.training] == [True, False]


@pytest.mark.parametrize("name", ["Enumeration", "ScoreNES"])  # the latter's sigma moves scores
def test_an_estimator_that_does_not_smooth_is_refused(name, tmp_path):
    overrides = [f"estimator.name={name}", "training.smoothing_gap=20"]
    tables = read_recipe("categorical-tiny", [*OPTIONS[:-1], *overrides])
    with pytest.raises(InputError, match=f"{name} has none"):
        train(Recipe.from_tables(tables), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_too_few_perturbations_are_refused():
    with pytest.raises(InputError, match="must be 0 or at least 4"):
        recipe("training.smoothing_gap=2")
