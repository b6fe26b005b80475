"""How many examples a pair should see: where the answer is known."""

import pytest
import torch
from torch import nn

from nestruct import NES, suggest
from nestruct.estimators.pair_examples import are_wild, pair_examples, pair_slopes
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
    found = pair_examples(pair_slopes(nes, model, Layout(model), model.x, 0), 256)
    # E|own|^2 / |common|^2 = spread^2, up to the chance of 64 directions.
    assert found in (expected // 2, expected, 2 * expected) if expected > 1 else found <= 2


def test_no_more_than_there_are_and_none_without_answers():
    model = Slopes(1000.0)
    nes = NES(sigma=0.1, population_size=20)
    for data, expected in ((model.x[:100], 64), (model.x[:100] * torch.nan, None)):
        slopes = pair_slopes(nes, model, Layout(model), data, 0)
        assert pair_examples(slopes, 100) == expected
        assert not are_wild(slopes)


def test_suggest_says_it():
    model = Slopes(4.0)
    nes = NES(sigma=0.1, population_size=400, directions="rank1", sigma_rule="fan_in")
    found = suggest(model, nes, model.x)
    assert found.pair_batch_size in (8, 16, 32)
    assert f"pair_batch_size {found.pair_batch_size}" in found.text


def test_suggest_proposes_clipping_where_few_pairs_outweigh_all_others():
    class Wild(Slopes):
        def loss(self, batch, noise):
            slope, length = super().loss(batch, noise), self.theta.norm() + 1e-30
            return slope * (slope / length).pow(20)  # at any sigma

    told = "shaping='clipped'"
    for kind, shaping, wild, said in (
        (Slopes, "standard_score", False, False),
        (Wild, "standard_score", True, True),
        (Wild, "clipped", True, False),
    ):
        model = kind(0.0)
        found = suggest(model, NES(sigma=0.1, population_size=20, shaping=shaping), model.x)
        assert found.is_wild == wild
        assert (told in found.text) == said
