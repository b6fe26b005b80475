"""How many examples a pair should see: where the answer is known."""

import pytest
import torch
from torch import nn

from nestruct import NES, suggest
from nestruct.estimators.pair_examples import pair_examples
from nestruct.population import Layout


class Slopes(nn.Module):
    """A linear loss; an example's gradient is the common one plus its own, ``spread`` as large."""

    def __init__(self, spread: float, size: int = 20) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.theta = nn.Parameter(torch.zeros(4, size // 4).double())
        own = torch.randn(256, size, generator=generator).double()
        self.x = torch.ones(size).double() + spread * (own - own.mean(0))

    def loss(self, batch, noise):
        return batch @ self.theta.flatten()


@pytest.mark.parametrize("options", [{}, {"directions": "rank1"}, {"sigma_rule": "fan_in"}])
@pytest.mark.parametrize(("spread", "expected"), [(0.0, 1), (1.0, 1), (4.0, 16), (8.0, 64)])
def test_it_is_the_ratio_of_the_spread_to_the_common_slope(spread, expected, options):
    model = Slopes(spread)
    nes = NES(sigma=0.1, population_size=200, **options)
    found = pair_examples(nes, model, Layout(model), model.x, seed=0)
    # E|own|^2 / |common|^2 = spread^2, up to the chance of 64 directions.
    assert found in (expected // 2, expected, 2 * expected) if expected > 1 else found <= 2


def test_no_more_than_there_are_and_none_without_answers():
    model = Slopes(1000.0)
    nes = NES(sigma=0.1, population_size=20)
    assert pair_examples(nes, model, Layout(model), model.x[:100], seed=0) == 64
    assert pair_examples(nes, model, Layout(model), model.x[:100] * torch.nan, seed=0) is None


def test_suggest_says_it():
    model = Slopes(4.0)
    nes = NES(sigma=0.1, population_size=400, directions="rank1", sigma_rule="fan_in")
    found = suggest(model, nes, model.x)
    assert found.pair_batch_size in (8, 16, 32)
    assert f"pair_batch_size {found.pair_batch_size}" in found.text
