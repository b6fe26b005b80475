"""What every estimator of the registry keeps to. A new one is covered by its line there.

Where the defaults are too large for a test, `SMALL` has other options; where a gradient is biased
by design, `BIASED` says how far it may point away from the truth.
"""

import dataclasses
import math
from typing import Any

import pytest
import torch
import toys
from torch import Tensor, nn

import nestruct
from nestruct import InputError, NestructError, Noise
from nestruct.estimators import Estimator
from nestruct.estimators.base import options_of
from nestruct.estimators.registry import ESTIMATORS
from nestruct.training.run.packing import pack, unpack

KINDS = {"gradient-free", "black-box solver", "needs a relaxation", "exact", "supervised"}
POPULATION: dict[str, Any] = {"sigma": 0.1, "population_size": 40, "mode": "vmap"}
SMALL: dict[str, dict[str, Any]] = {
    "NES": POPULATION,
    "NVIL": {"hidden_size": 8, "num_samples": 2},
    "ScoreNES": {"num_pairs": 4},
    "SNES": POPULATION,
    "SST": {"num_samples": 2},
    "StructureNES": {"num_samples": 8, "num_covariance": 16},
}
# Options with which an estimator has no bias, or less than its usual one.
SHARP: dict[str, dict[str, Any]] = {
    "NES": {"shaping": "none"},
    "NVIL": {"law": "gibbs", "num_samples": 16},
    "PerturbedOptimizer": {"noise": "gumbel", "num_samples": 16},
    "Reinforce": {"law": "gibbs", "num_samples": 16},
    "ScoreNES": {"sigma": 0.3},
    "SNES": {"shaping": "none", "sigma_lr": 0.0},
    "StructureNES": {"ridge": 1e-6},
}
# What decodes the argmax itself: it draws nothing, and its loss is that of the argmax.
AT_THE_ARGMAX = {"BlackboxDifferentiation"}
# The least cosine between mean gradient and truth, of those that are biased: by a relaxation, by
# smoothed scores, by a covariance and a regression of the same samples, or by the loss's tangent.
BIASED = {
    "AIMLE": 0.9,
    "BlackboxDifferentiation": 0.8,
    "DPP": 0.7,
    "ExactMarginals": 0.95,
    "Identity": 0.8,
    "IMLE": 0.9,
    "PerturbedOptimizer": 0.8,
    "ScoreNES": 0.95,
    "SparseMAP": 0.7,
    "SST": 0.9,
    "StraightThrough": 0.9,
    "StructureNES": 0.95,
}


def make(name: str, **options: Any) -> Estimator:
    return ESTIMATORS[name](**(SMALL.get(name, {}) | options))


class Labelled(nestruct.StructuredModel):
    """Categories that are told: a loss without a latent structure."""

    def __init__(self) -> None:
        super().__init__()
        self.structure = nestruct.Categorical(4)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.encoder = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()

    def encode(self, batch):
        return self.encoder(batch["x"])

    def loss(self, batch, noise):
        return nn.functional.cross_entropy(self.encode(batch), batch["label"], reduction="none")


def problem(estimator: Estimator, structure: Any = None, **options: Any) -> tuple[Any, Any]:
    """A model that the estimator can train, and a batch of four examples for it."""
    if estimator.kind == "supervised":
        return Labelled(), {"x": toys.bits(4, 6, seed=3), "label": torch.arange(4)}
    model = toys.vae(structure or nestruct.SpanningTree(4), **options)
    batch = toys.bits(4, options.get("inputs", 6), seed=3)
    try:
        estimator.prepare(model, batch)
    except InputError:  # it is made for trees of sentences
        return toys.Sentences(nestruct.ProjectiveTree()), toys.sentences(2, 3, 3, 2)
    return model, batch


def gradient(estimator: Estimator, model: nn.Module, batch: Any, **place: int) -> Tensor:
    estimator.backward(model, batch, **({"seed": 1} | place))
    return toys.gradient(model)


@pytest.fixture(params=ESTIMATORS)
def name(request) -> str:
    return request.param


def test_its_kind_is_one_of_five(name):
    assert ESTIMATORS[name].kind in KINDS
    assert issubclass(ESTIMATORS[name], Estimator)
    assert getattr(nestruct.estimators, name) is ESTIMATORS[name]


def test_seed_and_step_decide_every_bit(name):
    model, batch = problem(make(name))
    first = gradient(make(name), model, batch, seed=1, step=4)
    torch.manual_seed(7)  # nothing comes from torch's generator
    assert torch.equal(gradient(make(name), model, batch, seed=1, step=4), first)
    draws = ESTIMATORS[name].kind not in ("exact", "supervised")
    draws = draws and name not in AT_THE_ARGMAX
    for place in ({"seed": 1, "step": 5}, {"seed": 2, "step": 4}):
        assert torch.equal(gradient(make(name), model, batch, **place), first) != draws
    with torch.no_grad():  # backward decides by itself what is differentiated
        assert torch.equal(gradient(make(name), model, batch, seed=1, step=4), first)


def test_grad_is_set_for_what_it_estimates_and_untouched_elsewhere(name):
    estimator = make(name)
    model, batch = problem(estimator)
    fresh = gradient(make(name), model, batch)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    assert torch.equal(gradient(estimator, model, batch), fresh)  # not added to what was there
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))

    *_, frozen = model.parameters()
    frozen.requires_grad_(False)
    frozen.grad.fill_(7.0)
    assert (gradient(make(name), model, batch)[: -frozen.numel()] != 0).any()
    assert (frozen.grad == 7).all()


def test_only_what_a_filter_chooses_is_estimated(name):
    estimator = make(name)
    model, batch = problem(estimator)
    chosen, *others = (n for n, _ in model.named_parameters())
    estimator.perturb = lambda name, parameter: name == chosen
    estimator.backward(model, batch, seed=1)
    assert (model.get_parameter(chosen).grad != 0).any()
    assert all(model.get_parameter(other).grad is None for other in others)


def test_what_a_step_reports(name):
    estimator = make(name)
    model, batch = problem(estimator)
    report = estimator.backward(model, batch, seed=1)
    for field, value in dataclasses.asdict(report).items():
        assert isinstance(value, Tensor), field
        assert value.shape == (), field
        assert value.isfinite(), field
    torch.testing.assert_close(report.grad_norm, toys.gradient(model).norm())
    evaluations, decoded = int(report.num_evaluations), int(report.num_decoded)
    assert evaluations >= getattr(estimator, "num_decoded", estimator.num_samples)
    assert decoded >= 4  # examples
    assert decoded == 4 * evaluations or estimator.kind == "exact"
    assert report.num_failed == 0
    solves = estimator.kind in ("gradient-free", "black-box solver")
    solves = solves or name in ("SparseMAP", "StraightThrough")
    assert (int(report.num_solved) >= 4 * evaluations) == solves
    assert (int(report.num_solved) == 0) != solves
    assert (report.solver_seconds > 0) == solves


def test_its_state_survives_a_checkpoint(name):
    def step(estimator: Estimator, number: int) -> Tensor:
        return gradient(estimator, model, batch, step=number)

    one = make(name)
    model, batch = problem(one)
    step(one, 0), step(one, 1)
    tree, tensors = pack(one.state_dict(), "the estimator")
    other = make(name)
    other.prepare(model, batch, seed=1)
    other.load_state_dict(unpack(tree, tensors))
    assert torch.equal(step(other, 2), step(one, 2))
    states = [pack(each.state_dict(), "the estimator") for each in (one, other)]
    assert states[0][0] == states[1][0]
    torch.testing.assert_close(states[0][1], states[1][1], rtol=0, atol=0)


def test_it_learns(name):
    """A hundred steps of Adam take the loss at hard structures to less than 0.6 of the start."""
    estimator = make(name)
    options = {"inputs": 8, "hidden": 8, "divergence": "none"}
    model, batch = problem(estimator, nestruct.Categorical(4), **options)
    estimator.prepare(model, batch)
    adam = torch.optim.Adam([*model.parameters(), *estimator.parameters()], lr=0.05)

    def validate() -> float:
        with torch.no_grad():
            if name in AT_THE_ARGMAX:
                losses = [model.loss_at(batch, model.encode(batch), model.infer(batch)).mean()]
            else:
                losses = [model.loss(batch, Noise(seed=9, stream=s)).mean() for s in range(20)]
        return float(torch.stack(losses).mean())

    before = validate()
    for step in range(100):
        estimator.backward(model, batch, seed=0, step=step)
        adam.step()
    assert validate() < 0.6 * before


def test_its_gradient_is_right_or_biased_as_known(name):
    estimator = make(name, **SHARP.get(name, {}))
    model, batch = problem(estimator, nestruct.Categorical(3))
    exact = estimator.kind in ("exact", "supervised")
    trials = 12 if exact else 100
    options = {"num_trials": trials, "num_reference": 1000, "compare_laws": False}
    smoothing = {} if estimator.smoothing else {"sigma": 0.002}
    report = nestruct.check_gradient(model, estimator, batch, **options, **smoothing)
    assert report.biased_by_design == (name in BIASED)
    if name in BIASED:
        assert report.cosine > BIASED[name]
        assert 0.3 < report.scale < 1.7
    else:
        assert report.passed, report


def test_an_empty_batch_is_refused(name):
    estimator = make(name)
    model, batch = problem(estimator)
    none = nestruct.select_rows(batch, torch.arange(0))
    with pytest.raises(InputError, match=f"{name}: the batch has no examples"):
        estimator.backward(model, none, seed=0)


def test_a_model_that_it_cannot_train_is_refused(name):
    needed = "Linear has none" if ESTIMATORS[name].kind == "gradient-free" else "StructuredModel"
    with pytest.raises(InputError, match=needed):
        make(name).backward(nn.Linear(2, 2), torch.ones(1, 2), seed=0)


def test_options_that_are_none_of_those_allowed_are_refused(name):
    if any(option.name == "graph" for option in options_of(make(name))):
        with pytest.raises(InputError, match=f"{name}: graph must be one of 'auto', 'on', 'off'"):
            make(name, graph="yes")
    with pytest.raises(TypeError, match="no_such_option"):
        make(name, no_such_option=1)


def test_an_example_without_an_answer_leaves_the_others_alone(name):
    """No structure is allowed for the last one; its own loss is told where there is none inside."""
    estimator = make(name)
    model, batch = problem(estimator)
    encode, last = model.encode, torch.arange(4) == 3

    def without_the_last(batch):
        scores = encode(batch)
        rows = last[: len(scores)].view(-1, *[1] * (scores.dim() - 1))
        return torch.where(rows, -torch.inf if estimator.kind != "supervised" else math.nan, scores)

    model.encode = without_the_last
    if estimator.kind == "gradient-free":  # a member's loss is that of all its examples
        with pytest.raises(NestructError, match="every pair has a member"):
            estimator.backward(model, batch, seed=1)
        return
    report = estimator.backward(model, batch, seed=1)
    found = toys.gradient(model)
    assert int(report.num_failed) == getattr(estimator, "num_decoded", estimator.num_samples)
    assert report.loss.isfinite()
    assert found.isfinite().all()
    assert (found != 0).any()
    three = nestruct.select_rows(batch, torch.arange(3))
    torch.testing.assert_close(gradient(make(name), model, three), found)
