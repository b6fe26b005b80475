"""check_gradient: passes what is right, catches what is planted."""

import pytest
import torch
from toys import Formula, bits, vae

import nestruct
from nestruct import NES, InputError, check_gradient

X = bits(3, 4)


def small(structure=None):
    return vae(structure or nestruct.Categorical(3), inputs=4, hidden=3, divergence="gibbs")


class Planted(NES):
    """NES with its gradient multiplied by a wrong factor."""

    factor = 1.0

    def backward(self, model, batch, *, seed, step=0):
        report = super().backward(model, batch, seed=seed, step=step)
        for p in model.parameters():
            p.grad = self.factor * p.grad
        return report


def check(model, estimator, **options):
    options = {"num_trials": 120, "num_reference": 1000, "compare_laws": False} | options
    return check_gradient(model, estimator, X, **options)


def planted(factor: float, **options) -> NES:
    estimator = Planted(sigma=0.3, population_size=40, mode="vmap", **options)
    estimator.factor = factor
    return estimator


@pytest.mark.parametrize("gumbel", ["shared", "per_pair", "per_member"])
def test_nes_is_unbiased_for_the_smoothed_objective(gumbel):
    estimator = NES(sigma=0.3, population_size=40, shaping="none", gumbel=gumbel, mode="vmap")
    report = check(small(), estimator)
    assert report.passed
    assert report.cosine > 0.9
    assert report.scale == pytest.approx(1, abs=4 * report.scale_error)
    assert report.variance > 0


def test_nes_is_unbiased_for_spanning_trees_too():
    """Four nodes, sixteen trees."""
    estimator = NES(sigma=0.3, population_size=40, shaping="none", mode="vmap")
    report = check(small(nestruct.SpanningTree(4)), estimator)
    assert report.passed
    assert report.scale == pytest.approx(1, abs=4 * report.scale_error)


@pytest.mark.parametrize("factor", [-1.0, 0.3, 2.0, 0.5], ids=["sign", "sigma", "two", "half"])
def test_planted_mistakes_are_caught(factor):
    report = check(small(), planted(factor, shaping="none"))
    assert not report.passed


def test_with_standard_scores_the_direction_is_judged():
    good = check(small(), planted(1.0))
    assert good.passed
    assert check(small(), planted(2.0)).passed  # not identifiable
    assert not check(small(), planted(-1.0)).passed


def test_it_compares_the_laws_variances():
    model = small()
    with torch.no_grad():
        model.decoder[0].weight *= 30  # makes the choice of the structure matter
    estimator = NES(sigma=0.05, population_size=40, shaping="none", mode="vmap")
    report = check_gradient(model, estimator, X, num_trials=60, num_reference=2000)
    assert set(report.law_variances) == {"shared", "per_pair", "per_member"}
    # A member's own draw does not cancel within its pair.
    assert report.law_variances["per_member"] > 2 * report.law_variances["per_pair"]


def test_a_structure_that_is_sampled_in_the_truth():
    model = small(nestruct.BlackBox(lambda s: s == s.amax(-1, keepdim=True), 3))
    model.kl = "gumbel"
    estimator = NES(sigma=0.3, population_size=40, shaping="none", mode="vmap")
    assert check(model, estimator).passed


def test_it_judges_the_chosen_parameters_only():
    model = small()
    estimator = NES(sigma=0.3, population_size=40, shaping="none", perturb=model.encoder)
    assert check(model, estimator).passed


def test_larger_models_and_too_few_trials():
    model = vae(nestruct.Categorical(4), inputs=20, hidden=30, divergence="gibbs")
    batch = bits(3, 20)
    options = {"num_reference": 1000, "compare_laws": False}
    right = planted(1.0, shaping="none")
    assert check_gradient(model, right, batch, num_trials=150, **options).passed
    wrong = check_gradient(model, planted(2.0, shaping="none"), batch, num_trials=150, **options)
    assert (wrong.passed, wrong.undecided) == (False, False)
    few = check_gradient(model, right, batch, num_trials=2, **options)
    assert (few.passed, few.undecided) == (False, True)  # nothing is known


def test_what_chance_could_hide_is_undecided():
    model = vae(nestruct.Categorical(4), inputs=20, hidden=30, divergence="gibbs")
    options = {"num_trials": 30, "num_reference": 1000, "compare_laws": False}
    for shaping in ("none", "standard_score"):
        report = check_gradient(model, planted(1.0, shaping=shaping), bits(3, 20), **options)
        assert report.noise > 1
        assert (report.passed, report.undecided) == (False, True)
    assert not check(small(), planted(1.0)).undecided
    assert not check(small(), planted(-1.0)).undecided
    assert check(small(), planted(1.0), num_trials=9).undecided


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_trials": 1}, "num_trials must be at least 2"),
        ({"num_reference": 0}, "num_reference must be at least 2"),
        ({"sigma": 0.0}, "sigma must be positive"),
    ],
)
def test_mistakes_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        check(small(), planted(1.0), **options)


def test_models_that_are_not_vmapped():
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.cell = torch.nn.GRU(2, 2, batch_first=True).double()
            self.norm = torch.nn.BatchNorm1d(2).double()

        def loss(self, batch, noise):
            return self.norm(self.cell(batch.view(-1, 2, 2))[0][:, -1]).exp().sum(1)

    estimator = NES(sigma=0.3, population_size=20, shaping="none")
    report = check(Recurrent(), estimator, num_trials=40, num_reference=300)
    assert report.cosine > 0.5


def test_a_shaped_gradient_may_have_any_length():
    for factor in (1.0, 1e-3):
        assert check(small(), planted(factor), num_reference=500).passed


def test_running_statistics_are_left_as_they_were():
    model = small()  # its structures are listed
    model.encoder.insert(1, torch.nn.BatchNorm1d(3).double())
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    estimator = NES(sigma=0.3, population_size=20, shaping="none", mode="vmap")
    assert check(model, estimator, num_trials=60, num_reference=100).passed
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])


def test_grads_are_left_as_they_were():
    model = small()
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    estimator = NES(sigma=0.3, population_size=4, mode="vmap")
    check_gradient(model, estimator, X, num_trials=3, num_reference=100)
    assert all((p.grad == 7).all() for p in model.parameters())


def test_sigma_must_be_known():
    with pytest.raises(InputError, match="say which smoothing"):
        check_gradient(Formula(lambda t: t.sum()), nestruct.Enumeration(), X)
