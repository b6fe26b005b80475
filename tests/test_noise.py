"""Draws depend on integers and on a part's own coordinates, and follow their law."""

import pytest
import scipy.stats
import torch

from nestruct import InputError, Noise

NOISE = Noise(seed=3, step=5)
LAWS = pytest.mark.parametrize("law", ["gumbel", "normal"])


def correlation(one: torch.Tensor, two: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("law", "name"), [("gumbel", "gumbel_r"), ("normal", "norm")])
def test_draws_follow_their_law(law, name, dtype):
    draws = getattr(NOISE, law)(torch.empty(400, 500, dtype=dtype))
    assert draws.dtype == dtype
    assert draws.isfinite().all()
    assert scipy.stats.kstest(draws.flatten().double().numpy(), name).pvalue > 1e-3
    flat = draws.double()
    assert abs(correlation(flat[:-1], flat[1:])) < 0.01
    assert abs(correlation(flat[:, :-1], flat[:, 1:])) < 0.01


def test_moments_of_normal_draws():
    draws = NOISE.normal(torch.empty(500, 500, dtype=torch.float64))
    number = draws.numel()
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = float((draws**power).mean()) - expected
        assert abs(error) < 4 * (variance / number) ** 0.5


def test_normal_and_gumbel_draws_are_independent():
    scores = torch.empty(400, 500, dtype=torch.float64)
    normal = torch.special.ndtr(NOISE.normal(scores))
    gumbel = torch.exp(-torch.exp(-NOISE.gumbel(scores)))
    # Also for two draws of neighbouring parts, streams and examples.
    other = torch.exp(-torch.exp(-NOISE.replace(stream=1).gumbel(scores)))
    for one, two in ((normal, gumbel), (normal[1:], gumbel[:-1]), (normal, other)):
        table = torch.histogramdd(torch.stack([one.flatten(), two.flatten()], -1), 10).hist
        assert scipy.stats.chi2_contingency(table.numpy()).pvalue > 1e-3


@LAWS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_finite(dtype, law):
    draws = getattr(NOISE, law)(torch.empty(100, 100, dtype=dtype))
    assert draws.dtype == dtype
    assert draws.isfinite().all()


@LAWS
def test_every_integer_matters(law):
    scores = torch.empty(3, 4)

    def draw(noise: Noise) -> torch.Tensor:
        return getattr(noise, law)(scores)

    draws = draw(NOISE)
    for change in (
        {"seed": 4},
        {"step": 6},
        {"stream": 1},
        {"pair": 1},
        {"example": torch.arange(1, 4)},
    ):
        assert (draw(NOISE.replace(**change)) != draws).all()
    for name, value in (("step", 5), ("pair", 0), ("stream", 0)):  # numbers or tensors alike
        assert torch.equal(draw(NOISE.replace(**{name: torch.tensor(value)})), draws)


@LAWS
def test_a_part_keeps_its_draw(law):
    draw = getattr(NOISE, law)
    whole = draw(torch.empty(6, 5, 5))
    assert torch.equal(draw(torch.empty(6, 3, 3)), whole[:, :3, :3])  # less padding
    rows = torch.tensor([4, 1])
    assert torch.equal(getattr(NOISE.replace(example=rows), law)(torch.empty(2, 5, 5)), whole[rows])


@LAWS
def test_all_streams_in_one_call(law):
    streams = NOISE.replace(stream=torch.arange(5)[:, None])
    for scores in (torch.empty(6, 4, 4), torch.empty(6, 4)):
        together = getattr(streams, law)(scores)
        one_by_one = [getattr(NOISE.replace(stream=s), law)(scores) for s in range(5)]
        assert torch.equal(together, torch.stack(one_by_one))


@LAWS
def test_vmap_over_pairs_and_streams(law):
    scores = torch.empty(3, 4)

    def draw(rows: int = 3, **change) -> torch.Tensor:
        return getattr(NOISE.replace(**change), law)(scores[:rows])

    pairs = torch.tensor([7, 0, 2])
    mapped = torch.func.vmap(lambda pair: draw(pair=pair))(pairs)
    for pair, draws in zip(pairs.tolist(), mapped, strict=True):
        assert torch.equal(draw(pair=pair), draws)
    rows = torch.tensor([[0, 2], [1, 1]])
    mapped = torch.func.vmap(lambda row: draw(2, example=row))(rows)
    assert torch.equal(mapped, draw()[rows])


def test_golden_draws():
    """Seeds name results: a change here changes every published number."""
    draws = Noise(seed=1, step=2, stream=3, pair=4).gumbel(torch.empty(1, 3, dtype=torch.float64))
    expected = torch.tensor([[1.9088059384, 0.8800124237, 0.1848024276]]).double()
    torch.testing.assert_close(draws, expected, rtol=0, atol=1e-6)
    draws = Noise(seed=1, step=2, stream=3, pair=4).normal(torch.empty(1, 3, dtype=torch.float64))
    expected = torch.tensor([[1.7707258208, -0.4630455787, -0.6778408172]]).double()
    torch.testing.assert_close(draws, expected, rtol=0, atol=1e-6)


def test_shapes_must_fit():
    with pytest.raises(InputError, match="do not start with the 2 examples"):
        NOISE.replace(example=torch.arange(2)).gumbel(torch.empty(3, 4))
    with pytest.raises(InputError, match="leading axis"):
        NOISE.gumbel(torch.empty(()))
