"""The encoder of many members on a GPU: the kernels against their twins and against float32."""

import pytest
import torch
from relational_parts import encoder_layers

from nestruct.models.relational import pair_blocks
from nestruct.models.relational.pair_scores import pair_scores, pair_scores_op

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]
EPS = torch.finfo(torch.float16).eps


@pytest.mark.parametrize(("n", "hidden"), [(2, 16), (5, 64), (10, 32), (10, 256)])
def test_kernels_equal_their_twins(n, hidden):
    from nestruct.models.relational import pair_blocks_cuda

    torch.manual_seed(0)
    received, sent = torch.randn(2, 3, 21 * n, hidden, device="cuda").half()
    layers = [layer.cuda() for layer in encoder_layers(3, 6, hidden)]
    weight, skip = (layers[place].half().contiguous() for place in (8, 14))
    first = (received, sent, n, weight, layers[9])
    found = pair_blocks_cuda.first_block_cuda(*first)
    expected = pair_blocks.first_block_plain(*first)
    torch.testing.assert_close(found[:2], expected[:2], rtol=4 * EPS, atol=4 * EPS)
    scale = expected[2].sum(1).abs().max()
    torch.testing.assert_close(
        found[2].sum(1) / scale, expected[2].sum(1) / scale, rtol=0, atol=EPS
    )
    edges = expected[0].clone()
    sums = pair_blocks_cuda.second_block_cuda(edges, received, sent, skip, n, weight, layers[9])
    other = expected[0].clone()
    more = pair_blocks.second_block_plain(other, received, sent, skip, n, weight, layers[9])
    torch.testing.assert_close(edges, other, rtol=4 * EPS, atol=4 * EPS)
    scale = more.abs().max()
    torch.testing.assert_close(sums.sum(1) / scale, more.sum(1) / scale, rtol=0, atol=EPS)


@pytest.mark.parametrize("hidden", [256, 24])  # 24: without the kernels
def test_vmapped_scores_are_close_to_the_plain_ones(hidden):
    torch.manual_seed(0)
    x = torch.randn(4, 16, 10, 20, device="cuda")
    layers = [layer.cuda() for layer in encoder_layers(4, 20, hidden)]
    with torch.no_grad():
        found = torch.func.vmap(lambda x, *layers: pair_scores_op(x, list(layers)))(x, *layers)
    scores, statistics = pair_scores(x, *layers)
    assert (found[0] - scores).square().mean().sqrt() < 8 * EPS * scores.std()
    torch.testing.assert_close(found[1], statistics, rtol=0.01, atol=0.003)
