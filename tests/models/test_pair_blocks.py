"""The encoder of many members by kernels: their plain twins against the compiled way."""

import pytest
import torch
from relational_parts import encoder_layers

from nestruct.models.relational import pair_blocks
from nestruct.models.relational.pair_scores import pair_scores


@pytest.fixture(autouse=True)
def uncompiled():
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize(("members", "batch", "n"), [(3, 4, 5), (1, 2, 2), (2, 3, 10)])
def test_without_rounding_it_is_the_plain_way(monkeypatch, members, batch, n):
    monkeypatch.setattr(pair_blocks, "HALF", torch.float32)
    x, layers = torch.randn(members, batch, n, 6), encoder_layers(members, 6, 16)
    found = pair_blocks.score_pairs(x, layers)
    torch.testing.assert_close(found, pair_scores(x, *layers), rtol=1e-4, atol=1e-4)


def test_one_member_needs_no_axis_for_it(monkeypatch):
    x, layers = torch.randn(1, 3, 5, 6), encoder_layers(1, 6, 16)
    alone = pair_blocks.score_pairs(x[0], [layer[0] for layer in layers])
    found = pair_blocks.score_pairs(x, layers)
    assert torch.equal(alone[0], found[0][0])
    assert torch.equal(alone[1], found[1][0])


def test_rounding_is_that_of_eleven_bits():
    torch.manual_seed(0)
    x, layers = torch.randn(3, 16, 6, 12), encoder_layers(3, 12, 64)
    scores, _ = pair_blocks.score_pairs(x, layers)
    expected, _ = pair_scores(x, *layers)
    error = (scores - expected).square().mean().sqrt() / expected.std()
    # Eight layers, two roundings each, of half a last bit at most.
    assert 0 < error < 8 * torch.finfo(torch.float16).eps


def test_what_is_out_of_range_is_cut_off_not_infinite():
    x, layers = torch.randn(2, 3, 5, 6), encoder_layers(2, 6, 16)
    layers[8] *= 1e5
    scores, statistics = pair_blocks.score_pairs(x, layers)
    assert scores.isfinite().all()
    assert statistics.isfinite().all()
