"""suggest: its measurements against formulas, its rules, the tuned values; it leaves no trace."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from toys import Formula, bits, random_costs, vae

import nestruct
from nestruct import (
    NES,
    SNES,
    Categorical,
    Enumeration,
    InputError,
    KSubset,
    NestructError,
    Reinforce,
    ScoreNES,
    StructureNES,
    suggest,
)
from nestruct.data import batch_size, select_rows
from nestruct.models import mlp
from nestruct.training import Recipe, build, read_recipe

ESTIMATORS = [
    NES(sigma=0.3, population_size=4, mode="loop"),
    SNES(sigma=0.3, population_size=4, mode="loop"),
    ScoreNES(num_pairs=2),
    StructureNES(num_samples=4, num_covariance=0),
    Reinforce(baseline="ema"),
    Enumeration(),
]
names = [type(estimator).__name__ for estimator in ESTIMATORS]


class Restless(nestruct.StructuredVAE):
    """Batch normalisation, dropout, and an attribute that every step changes."""

    def __init__(self) -> None:
        noisy = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 4))
        super().__init__(noisy, mlp(4, 6), Categorical(4))
        self.strength = 1.0

    def at_step(self, step):
        self.strength = self.seen = step


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=names)
def test_it_leaves_no_trace_and_repeats(estimator):
    torch.manual_seed(3)
    model, x = Restless(), bits(12, 6).float()
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options, state = repr(estimator), torch.get_rng_state()
    found = suggest(model, estimator, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert repr(estimator) == options
    assert estimator.state_dict().get("log_scale") is None
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.strength == 1.0
    assert not hasattr(model, "seen")
    assert torch.equal(first.grad, torch.ones_like(first))
    assert [p.grad for p in model.parameters()][1:] == [None] * (len(list(model.parameters())) - 1)
    torch.manual_seed(4)
    assert suggest(model, estimator, x) == found
    assert found.lr > 0
    assert f"{found.lr:g}" in found.text
    assert (found.sigma is not None) == hasattr(estimator, "sigma")
    assert (found.num_samples is not None) == (not isinstance(estimator, Enumeration))


def linear(size: int) -> Formula:
    return Formula(lambda theta: theta.sum(), size)


@pytest.mark.parametrize("size", [30, 1000])
def test_the_cosine_is_that_of_gaussian_directions(size):
    """For a linear loss E|g|^2 = |G|^2 (1 + (d + 1) / P)."""
    pairs = 20
    nes = NES(sigma=0.1, population_size=2 * pairs, shaping="none", mode="vmap")
    found = [suggest(linear(size), nes, torch.zeros(1, 1), seed=seed).cosine for seed in range(4)]
    expected = 1 / math.sqrt(1 + (size + 1) / pairs)
    assert sum(found) / len(found) == pytest.approx(expected, rel=0.1)


def test_the_rate_is_the_size_of_a_weight_times_the_cosine():
    model = linear(1000)
    nes = NES(sigma=0.1, population_size=4, shaping="none", mode="vmap")
    found = suggest(model, nes, torch.zeros(1, 1))
    weight = float(model.theta[0].detach().abs().mean())
    assert found.cosine < 0.1
    assert found.lr == pytest.approx(weight * found.cosine, rel=0.05)
    assert found.lr_range == pytest.approx((found.lr / 3, found.lr * 3), rel=0.05)
    exact = vae(inputs=6)
    weight = torch.cat([p.detach().abs().flatten() for p in exact.parameters()]).mean()
    found = suggest(exact, Enumeration(), bits(4, 6))
    assert found.cosine == pytest.approx(1)
    assert found.lr == pytest.approx(float(weight) / 10, rel=0.05)


def test_without_a_structure_sigma_is_the_size_of_a_weight():
    model = linear(50)
    found = suggest(model, NES(sigma=9.0, population_size=8, mode="vmap"), torch.zeros(1, 1))
    assert found.sigma == pytest.approx(float(model.theta[0].detach().abs().mean()), rel=0.05)
    assert found.differ is None
    assert "size of a weight" in found.text


def test_sigma_shrinks_where_the_loss_explodes():
    model = Formula(lambda theta: (20 * theta).exp().sum(), 50)
    found = suggest(model, NES(sigma=9.0, population_size=8, mode="vmap"), torch.zeros(1, 1))
    assert found.sigma < float(model.theta[0].detach().abs().mean()) / 4


class Scaled(nestruct.StructuredModel):
    """Scores are the parameters, times a number; every example has its own."""

    def __init__(self, scale: float, structure) -> None:
        super().__init__()
        self.structure, self.scale = structure, scale
        self.theta = nn.Parameter(torch.zeros(64, *structure.part_shape))

    def encode(self, batch):
        return self.scale * self.theta[batch]

    def decode(self, batch, z):
        return z[..., 0]


@pytest.mark.parametrize("structure", [Categorical(4), KSubset(8, 2)], ids=repr)
@pytest.mark.parametrize(
    "estimator", [NES(sigma=1.0, population_size=20), ScoreNES()], ids=lambda e: type(e).__name__
)
def test_structures_differ_as_much_as_they_should(structure, estimator):
    """Chance: two of four categories differ with 3/4, two pairs of eight items in 3/4 of parts."""
    rows = torch.arange(64)
    one, other = (suggest(Scaled(scale, structure), estimator, rows) for scale in (1.0, 100.0))
    assert one.differ == pytest.approx(0.25, abs=0.03)
    ratio = 100 if isinstance(estimator, NES) else 1
    assert one.sigma / other.sigma == pytest.approx(ratio, rel=0.1)
    assert "structures of pure noise differ in 7" in one.text
    again = sum(_share(structure, one.sigma, seed) for seed in range(20)) / 20
    assert again == pytest.approx(0.25, abs=0.03)


def _share(structure, sigma: float, seed: int) -> float:
    """The same from torch's own draws, of scores that are 0."""
    generator = torch.Generator().manual_seed(seed)
    size = (500, *structure.part_shape)
    gumbel = -torch.log(-torch.log(torch.rand(size, generator=generator)))
    move = sigma * torch.randn(size, generator=generator)
    one, other = structure.argmax(gumbel + move), structure.argmax(gumbel - move)
    return float((one - other).abs().sum() / (one + other).sum())


def test_the_number_of_samples_does_not_depend_on_that_at_hand():
    """Twice the samples halve the noise, so the same number is right."""
    model = random_costs(Categorical(4), rows=40)
    found = [suggest(model, Reinforce(num_samples=n), model.batch) for n in (8, 32)]
    few, many = (each.num_samples or 0 for each in found)
    assert 4 < few <= 64
    assert 0.5 <= few / many <= 2


def test_weights_that_are_all_zero_have_the_scale_of_what_changes_structures():
    model = Scaled(10.0, Categorical(4))
    found = suggest(model, StructureNES(), torch.arange(64))
    sigma = suggest(model, NES(sigma=1.0, population_size=20), torch.arange(64)).sigma
    assert found.lr == pytest.approx(sigma * min(found.cosine, 0.1), rel=0.1)


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(InputError, match="no examples"):
        suggest(vae(), ESTIMATORS[0], bits(2, 6)[:0])
    flat = Formula(lambda theta: 0 * theta.sum(), 5)
    with pytest.raises(NestructError, match="every estimate is zero"):
        suggest(flat, NES(sigma=1.0, population_size=4, shaping="none"), torch.zeros(1, 1))


@dataclass(frozen=True)
class Tuned:
    sigma: float | None
    lr: float


def check(model, estimator, batch, tuned: Tuned) -> None:
    found = suggest(model, estimator, batch)
    assert tuned.lr / 3 < found.lr < tuned.lr * 3
    if tuned.sigma is not None:
        assert found.sigma is not None
        assert tuned.sigma / 3 < found.sigma < tuned.sigma * 3


def of_recipe(*words: str) -> tuple:
    recipe = Recipe.from_tables(read_recipe(words[0], words[1:]))
    experiment = build(recipe)
    data = experiment.data.splits()["train"]
    size = min(recipe.training.batch_size or 1, batch_size(data))
    return experiment.model, experiment.estimator, select_rows(data, torch.arange(size))


def test_it_is_near_the_tuned_values_of_small_recipes():
    check(*of_recipe("graph-layout-tiny"), Tuned(sigma=0.03, lr=0.01))
    check(*of_recipe("categorical-tiny"), Tuned(sigma=0.1, lr=0.01))
    check(*of_recipe("graph-layout-5"), Tuned(sigma=None, lr=0.01))


@pytest.mark.data
def test_it_is_near_the_tuned_values_of_table_3():
    words = ("table3-nes", "model.hidden_size=64", "estimator.population_size=90")
    check(*of_recipe(*words), Tuned(sigma=0.1, lr=1e-3))


def test_a_compiled_model_is_seen_through():
    model = random_costs(KSubset(4, 2))
    estimator = StructureNES(num_samples=4)
    assert suggest(torch.compile(model), estimator, model.batch) == suggest(
        model, estimator, model.batch
    )
