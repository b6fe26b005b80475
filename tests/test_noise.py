"""Draws depend on integers and on a part's own coordinates, and follow their law."""

import pytest
import scipy.stats
import torch

from nestruct import InputError, Noise

NOISE = Noise(seed=3, step=5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_draws_are_gumbel(dtype):
    draws = NOISE.gumbel(torch.empty(400, 500, dtype=dtype))
    assert draws.dtype == dtype
    assert draws.isfinite().all()
    assert scipy.stats.kstest(draws.flatten().double().numpy(), "gumbel_r").pvalue > 1e-3
    flat = draws.double()
    assert abs(torch.corrcoef(torch.stack([flat[:-1].flatten(), flat[1:].flatten()]))[0, 1]) < 0.01
    assert (
        abs(torch.corrcoef(torch.stack([flat[:, :-1].flatten(), flat[:, 1:].flatten()]))[0, 1])
        < 0.01
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_finite(dtype):
    draws = NOISE.gumbel(torch.empty(100, 100, dtype=dtype))
    assert draws.dtype == dtype
    assert draws.isfinite().all()


def test_every_integer_matters():
    scores = torch.empty(3, 4)
    draws = NOISE.gumbel(scores)
    for change in (
        {"seed": 4},
        {"step": 6},
        {"stream": 1},
        {"pair": 1},
        {"example": torch.arange(1, 4)},
    ):
        assert (NOISE.replace(**change).gumbel(scores) != draws).all()
    for name, value in (("step", 5), ("pair", 0), ("stream", 0)):  # numbers or tensors alike
        assert torch.equal(NOISE.replace(**{name: torch.tensor(value)}).gumbel(scores), draws)


def test_a_part_keeps_its_draw():
    whole = NOISE.gumbel(torch.empty(6, 5, 5))
    assert torch.equal(NOISE.gumbel(torch.empty(6, 3, 3)), whole[:, :3, :3])  # less padding
    rows = torch.tensor([4, 1])
    assert torch.equal(NOISE.replace(example=rows).gumbel(torch.empty(2, 5, 5)), whole[rows])
    padded = NOISE.gumbel(torch.empty(6, 5, 5), torch.full((6,), 2))
    assert torch.equal(padded[:, :3, :3], whole[:, :3, :3])
    assert (padded[:, 3:] == 0).all()
    assert (padded[:, :, 3:] == 0).all()


def test_vmap_over_pairs_and_streams():
    scores = torch.empty(3, 4)
    pairs = torch.tensor([7, 0, 2])
    mapped = torch.func.vmap(lambda pair: NOISE.replace(pair=pair).gumbel(scores))(pairs)
    for pair, draws in zip(pairs.tolist(), mapped, strict=True):
        assert torch.equal(NOISE.replace(pair=pair).gumbel(scores), draws)
    rows = torch.tensor([[0, 2], [1, 1]])
    mapped = torch.func.vmap(lambda row: NOISE.replace(example=row).gumbel(scores[:2]))(rows)
    assert torch.equal(mapped, NOISE.gumbel(scores)[rows])


def test_golden_draws():
    """Seeds name results: a change here changes every published number."""
    draws = Noise(seed=1, step=2, stream=3, pair=4).gumbel(torch.empty(1, 3, dtype=torch.float64))
    expected = torch.tensor([[1.9088059384, 0.8800124237, 0.1848024276]]).double()
    torch.testing.assert_close(draws, expected, rtol=0, atol=1e-6)


def test_shapes_must_fit():
    with pytest.raises(InputError, match="do not start with the 2 examples"):
        NOISE.replace(example=torch.arange(2)).gumbel(torch.empty(3, 4))
    with pytest.raises(InputError, match="leading axis"):
        NOISE.gumbel(torch.empty(()))
