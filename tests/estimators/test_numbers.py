"""Structures of other numbers than 0 and 1: which estimators take them, and what they learn."""

import json

import pytest
import torch
from toys import Costs, gradient

import nestruct
from nestruct import (
    DPP,
    NES,
    NVIL,
    SST,
    Enumeration,
    InputError,
    Reinforce,
    ScoreNES,
    SparseMAP,
    StructureNES,
)

WEIGHTS, CAPACITY = torch.tensor([1.0, 2.0, 3.0, 2.0]), 8
COUNTS = torch.cartesian_prod(*[torch.arange(4.0)] * 4)
COUNTS = COUNTS[COUNTS @ WEIGHTS <= CAPACITY]  # up to three of each item


def counts(unit: float | torch.Tensor = 1.0) -> nestruct.BlackBox:
    """How many of each item to pack, exactly; what comes back is counted in ``unit``."""

    def solve(worth):
        every = COUNTS.to(worth)
        return (every * unit)[(worth @ every.T).argmax(-1)]

    return nestruct.BlackBox(solve, 4, binary=False)


class Packer(nestruct.StructuredModel):
    """What items are worth is linear in their features; the profit is not linear in the counts."""

    def __init__(self, structure=None) -> None:
        super().__init__()
        self.structure = counts() if structure is None else structure
        self.worth = torch.nn.Parameter(torch.tensor([0.5, -0.2, 0.1]))

    def encode(self, batch):
        return batch["x"] @ self.worth

    def decode(self, batch, z):
        return (z * batch["profit"]).sum(-1) - 0.05 * z.square().sum(-1)


def examples(number: int) -> dict[str, torch.Tensor]:
    x = torch.randn(number, 4, 3, generator=torch.Generator().manual_seed(0))
    return {"x": x, "profit": x @ torch.tensor([1.0, -1.0, 0.5])}


@pytest.mark.parametrize(
    "estimator",
    [
        NES(sigma=0.1, population_size=50, shaping="none", mode="vmap"),
        ScoreNES(num_pairs=16, sigma=0.1),
        Reinforce(num_samples=16),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_unbiased_estimators_stay_so(estimator):
    found = nestruct.check_gradient(
        Packer(),
        estimator,
        examples(6),
        num_trials=60,
        num_reference=4000,
        sigma=0.1 if isinstance(estimator, NES) else 0.01,
    )
    assert found.passed
    assert found.cosine > 0.97


def test_the_regression_is_near_the_gradient():
    """In direction and in size: biased by design, as it is for trees."""
    found = nestruct.check_gradient(
        Packer(), StructureNES(), examples(6), num_trials=60, num_reference=4000, sigma=0.01
    )
    assert found.cosine > 0.97
    assert 0.7 < found.scale < 1.3


def test_a_learned_baseline_keeps_the_direction():
    """NVIL divides by the deviation of the losses, numbers or not."""
    found = nestruct.check_gradient(
        Packer(), NVIL(num_samples=16), examples(6), num_trials=60, num_reference=4000, sigma=0.01
    )
    assert found.cosine > 0.97


def costs(cost, structure) -> Costs:
    """A row of four scores for each of two examples, solved by a black box."""
    model = Costs(nestruct.Categorical(4), cost)
    model.structure = structure
    return model


def test_its_limit_is_the_covariance_of_parts_in_their_units_and_loss():
    model = costs(lambda z: (z - 1).square().sum(-1) + z[..., 0], counts())
    StructureNES(num_samples=2000, ridge=1e-9, num_covariance=0).backward(
        model, model.batch, seed=0
    )
    z = model.sample(model.batch, 2000, nestruct.Noise(seed=0))
    losses = model.cost(z)
    centred = (losses - losses.mean(0))[..., None] * (z - z.mean(0)) / (2 * z.std(0))
    torch.testing.assert_close(model.scores.grad, centred.sum(0) / 1999 / 2)


@pytest.mark.parametrize("ridge", [0.01, 1.0])
def test_the_unit_that_a_part_is_counted_in_does_not_matter(ridge):
    def slope(unit):
        def cost(z):
            z = z / unit
            return (z - 1).square().sum(-1) + z[..., 0] * z[..., 1]

        model = costs(cost, counts(unit))
        estimator = StructureNES(num_samples=6, num_covariance=20, ridge=ridge)
        estimator.backward(model, model.batch, seed=0)
        return gradient(model)

    units = torch.tensor([100.0, 1.0, 0.01, 1e4], dtype=torch.float64)
    assert slope(1.0).abs().min() > 0
    torch.testing.assert_close(slope(units), slope(1.0))


def test_parts_that_do_not_vary_explain_nothing():
    """Nor do they where rounding gives them a deviation."""

    def solve(scores):
        fixed = torch.full_like(scores[:, :1], 1000.1)
        return torch.cat([fixed, (scores[:, 1:] > 0).to(scores)], -1)

    model = costs(lambda z: z.sum(-1), nestruct.BlackBox(solve, 4, binary=False)).float()
    StructureNES(ridge=1e-9).backward(model, model.batch, seed=0)
    assert (model.scores.grad[:, 0] == 0).all()
    assert (model.scores.grad[:, 1:] > 0).all()


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (SparseMAP(), r"mixes structures of 0 and 1, and .* has other numbers \(binary=False\)"),
        (SST(temperature=0.5), "has no relaxation"),
        (DPP(), "projective trees only"),
        (Enumeration(), "cannot be listed"),
        (Reinforce(law="gibbs"), "no exact samples of its Gibbs law"),
        (StructureNES(covariance="gibbs"), "no tractable Gibbs law"),
        (nestruct.ExactMarginals(), "no exact samples of its Gibbs law"),
        (nestruct.StraightThrough(), "has no relaxation"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_those_that_cannot_take_them_say_so(estimator, message):
    with pytest.raises(InputError, match=message):
        estimator.backward(Packer(), examples(2), seed=0)


def test_sparse_map_itself_refuses_them():
    with pytest.raises(InputError, match="members must be 0 and 1"):
        nestruct.structures.sparse_map(counts(), torch.zeros(1, 4))


@pytest.mark.parametrize(
    "estimator",
    [
        StructureNES(num_samples=8, num_covariance=8),
        nestruct.IMLE(),
        nestruct.Identity(),
        nestruct.AIMLE(),
        nestruct.BlackboxDifferentiation(),
        nestruct.PerturbedOptimizer(),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_an_integer_knapsack_is_learnt(tmp_path, estimator):
    """From the profit alone, from worse than nothing; an evaluation has the loss and no F1."""
    train, test = examples(300), {k: v[:100] for k, v in examples(400).items()}
    model = Packer()
    with torch.no_grad():
        model.worth.mul_(-1)
    best = float(model.decode(test, model.structure.argmax(test["profit"])).mean())
    result = nestruct.fit(
        model,
        estimator,
        torch.optim.Adam(model.parameters(), lr=0.1),
        train | {"z": model.structure.argmax(train["profit"])},
        validation=test | {"z": model.structure.argmax(test["profit"])},
        max_steps=60,
        batch_size=50,
        progress=False,
        run=tmp_path / "run",
    )
    assert list(result.initial) == list(result.best) == ["loss"]
    header = json.loads((tmp_path / "run" / "structures.jsonl").read_text().splitlines()[0])
    assert (header["true"], header["references"]) == (None, {})
    found = float(model.decode(test, model.infer(test)).mean())
    assert -result.initial["loss"] < 0 < 0.9 * best < found
