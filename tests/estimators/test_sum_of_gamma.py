"""Sum-of-gamma draws against scipy's gamma law and the Gumbel law that they add up to."""

import pytest
import torch
from scipy import special, stats

from nestruct import Noise
from nestruct.estimators.sum_of_gamma import NUM_TERMS, gamma, sum_of_gamma
from nestruct.structures import Draws

SOURCES = [lambda: torch.Generator().manual_seed(0), lambda: Noise(seed=0)]
each_source = pytest.mark.parametrize("source", SOURCES, ids=["generator", "noise"])


def draws(source) -> Draws:
    return Draws("test", source())


@each_source
@pytest.mark.parametrize("shape", [1.0, 0.5, 0.1])
def test_gamma_draws_have_their_law(source, shape):
    found = gamma(draws(source), torch.zeros(20_000, dtype=torch.float64), shape)
    assert stats.kstest(found.numpy(), stats.gamma(shape).cdf).pvalue > 1e-3


@each_source
def test_k_of_them_add_up_to_a_gumbel_draw(source):
    """But for the terms left out: their mean and variance are known."""
    k, count = 3, 30_000
    like = torch.zeros(count, k, dtype=torch.float64)
    found = sum_of_gamma(draws(source), like, k).sum(1)
    numbers = torch.arange(1, NUM_TERMS + 1, dtype=torch.float64)
    mean = float((1 / numbers).sum() - numbers[-1].log())
    variance = float((1 / numbers**2).sum())
    error = (variance / count) ** 0.5
    assert float(found.mean()) == pytest.approx(mean, abs=4 * error)
    assert float(found.var()) == pytest.approx(variance, rel=0.05)
    shifted = found.numpy() - mean - special.psi(1)  # psi(1): minus Euler's constant
    assert stats.kstest(shifted, stats.gumbel_r.cdf).statistic < 0.02


def test_draws_of_a_noise_belong_to_examples():
    noise, like = Noise(seed=1, step=2, stream=torch.arange(2)[:, None]), torch.zeros(2, 4, 3)
    every = sum_of_gamma(Draws("test", noise), like, 2)
    some = noise.replace(example=torch.tensor([1, 3]))
    rows = sum_of_gamma(Draws("test", some), like[:, :2], 2)
    assert torch.equal(rows, every[:, [1, 3]])
    assert every.unique().numel() == every.numel()
