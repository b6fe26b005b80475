"""REINFORCE against the exact gradient of the law it samples."""

import pytest
import torch
import toys

import nestruct
from nestruct import Reinforce
from nestruct.estimators.enumeration import exact_loss


def exact_gradient(model, batch, law) -> torch.Tensor:
    nestruct.Enumeration(law=law).backward(model, batch)
    return toys.gradient(model)


@pytest.mark.parametrize(
    ("structure", "law", "truth"),
    [
        (nestruct.Categorical(4), "gibbs", "gibbs"),
        (nestruct.Categorical(4), "gumbel", "gibbs"),
        (nestruct.KSubset(4, 2), "gumbel", "perturb_and_map"),
        (nestruct.SpanningTree(4), "gumbel", "perturb_and_map"),
    ],
    ids=str,
)
def test_its_mean_is_the_exact_gradient(structure, law, truth):
    model, batch = toys.vae(structure), toys.bits(3, 6)
    expected = exact_gradient(model, batch, truth)
    estimator = Reinforce(num_samples=4, law=law)
    trials = []
    for step in range(1000):
        estimator.backward(model, batch, seed=0, step=step)
        trials.append(toys.gradient(model))
    found = torch.stack(trials)
    error = (found.mean(0) - expected) / (found.std(0) / len(trials) ** 0.5).clamp(min=1e-12)
    assert error.abs().max() < 5
    assert error.square().mean() < 1.6  # 1 if all is well
    cosine = torch.nn.functional.cosine_similarity(found.mean(0), expected, dim=0)
    assert cosine > 0.8


def test_the_score_of_the_category_has_less_variance_than_that_of_the_noise():
    model, batch = toys.vae(), toys.bits(3, 6)

    def variance(law) -> float:
        trials = []
        for step in range(300):
            Reinforce(num_samples=4, law=law).backward(model, batch, seed=0, step=step)
            trials.append(toys.gradient(model))
        return float(torch.stack(trials).var(0).sum())

    assert variance("gibbs") < 0.9 * variance("gumbel")


def test_the_loss_it_reports_is_that_of_its_samples():
    model, batch = toys.vae(), toys.bits(50, 6)
    reports = [Reinforce().backward(model, batch, seed=0, step=step) for step in range(50)]
    mean = torch.stack([report.loss for report in reports]).mean()
    with torch.no_grad():
        expected = float(exact_loss(model, batch, "gibbs").mean())
    assert float(mean) == pytest.approx(expected, rel=0.02)


def test_bad_options():
    with pytest.raises(nestruct.InputError, match="num_samples"):
        Reinforce(num_samples=1)
    with pytest.raises(nestruct.InputError, match="law"):
        Reinforce(law="other")
    with pytest.raises(nestruct.InputError, match="is for Categorical"):
        Reinforce(law="gibbs").backward(toys.vae(nestruct.KSubset(4, 2)), toys.bits(2, 6), seed=0)
