"""Roll-outs along trees on a GPU: the kernels against their twins and against float32."""

import pytest
import torch
from relational_parts import cells_and_trees, decoder_layers

from nestruct.models.relational import tree_moves
from nestruct.models.relational.roll_out import roll_out, roll_out_op

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]
EPS = torch.finfo(torch.bfloat16).eps


def on_gpu(members, n, cells, hidden, samples=1):
    positions, z = cells_and_trees(members, n, cells, samples)
    return positions.cuda(), z.cuda(), [layer.cuda() for layer in decoder_layers(members, hidden)]


@pytest.mark.parametrize(("n", "hidden"), [(2, 16), (5, 64), (10, 32), (10, 256), (24, 128)])
def test_kernels_equal_their_twins(n, hidden):
    from nestruct.models.relational import tree_moves_cuda

    positions, z, layers = on_gpu(3, n, 37, hidden)
    weights = tree_moves.weights_of(layers)
    bits, order = tree_moves._sorted_receivers(z.flatten(2), n)
    here = positions.permute(0, 3, 2, 1).reshape(3, -1, 2).contiguous()
    expected = tree_moves.sum_messages_plain(here, bits.int(), n, weights)
    for rows in (order, order.flip(1)):  # the order is for speed alone
        found = tree_moves_cuda.sum_messages_cuda(here, bits.int(), rows.contiguous(), n, weights)
        torch.testing.assert_close(found, expected, rtol=2 * EPS, atol=2 * EPS)
    moved = tree_moves_cuda.move_cuda(here, expected, weights)
    expected = tree_moves.move_plain(here, expected, weights)
    torch.testing.assert_close(moved, expected, rtol=0.5 * EPS, atol=EPS)


@pytest.mark.parametrize("hidden", [256, 24])  # 24: without the kernels
def test_a_vmapped_roll_out_is_close_to_the_plain_one(hidden):
    positions, z, layers = on_gpu(4, 10, 12, hidden, 2)
    z[2, :, 1, 5] = torch.nan

    def one(positions, z, *layers):
        return roll_out_op(positions, z, list(layers), 3, True)

    with torch.no_grad():
        found = torch.func.vmap(one)(positions, z, *layers)
    rows = zip(positions, z, *layers, strict=True)
    expected = torch.stack([roll_out(*row[:2], row[2:], 3, hard=True, fused=False) for row in rows])
    assert torch.equal(found.isnan(), expected.isnan())
    error = (found - expected).nan_to_num().square().mean().sqrt()
    assert error < 5 * EPS * (expected - positions[..., None, :, None]).nan_to_num().std()


def test_a_replayed_graph_gives_the_same():
    positions, z, layers = on_gpu(2, 6, 50, 64)
    expected = tree_moves.roll_out_trees(positions, z, layers, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = tree_moves.roll_out_trees(positions, z, layers, 2)
    graph.replay()
    assert torch.equal(found, expected)
