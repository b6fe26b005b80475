"""The relational model's CUDA kernels on a machine without a GPU, by Triton's interpreter.

Not among the default tests, since triton need not be there:
``TRITON_INTERPRET=1 pytest -m slow tests/models/test_interpreted.py``. In float16, since the
interpreter does not multiply bfloat16 (and triton from 3.7 on, for loops of unknown length).
"""

import os

import pytest
import torch
from relational_parts import cells_and_trees, decoder_layers, encoder_layers

from nestruct.models.relational import pair_blocks, tree_moves

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET is not 1", allow_module_level=True)
pytest.importorskip("triton", minversion="3.7")
pytestmark = pytest.mark.slow
EPS = torch.finfo(torch.float16).eps


@pytest.mark.parametrize("hidden", [16, 128, 256])
@pytest.mark.parametrize(("n", "cells"), [(2, 3), (5, 20), (10, 7)])
def test_moves_equal_their_twin(monkeypatch, n, cells, hidden):
    from nestruct.models.relational import tree_moves_cuda

    monkeypatch.setattr(tree_moves, "HALF", torch.float16)
    positions, z = cells_and_trees(2, n, cells)
    layers = tree_moves.weights_of(decoder_layers(2, hidden))
    bits, order = tree_moves._sorted_receivers(z.flatten(2), n)
    here = positions.permute(0, 3, 2, 1).reshape(2, -1, 2).contiguous()
    bits = bits.int()
    expected = tree_moves.sum_messages_plain(here, bits, n, layers)
    for rows in (order, order.flip(1)):  # the order is for speed alone
        found = tree_moves_cuda.sum_messages_cuda(here, bits, rows.contiguous(), n, layers)
        torch.testing.assert_close(found, expected, rtol=2 * EPS, atol=EPS)
    moved = tree_moves_cuda.move_cuda(here, expected, layers)
    expected = tree_moves.move_plain(here, expected, layers)
    torch.testing.assert_close(moved, expected, rtol=2 * EPS, atol=EPS)


@pytest.mark.parametrize("hidden", [16, 128, 256])
@pytest.mark.parametrize(("n", "batch"), [(2, 3), (5, 15)])
def test_blocks_equal_their_twin(n, batch, hidden):
    from nestruct.models.relational import pair_blocks_cuda

    torch.manual_seed(n)
    received, sent = torch.randn(2, 2, batch * n, hidden).half()
    layers = encoder_layers(2, 6, hidden)
    weight, skip = (layers[place].half().contiguous() for place in (8, 14))
    first = (received, sent, n, weight, layers[9])
    expected = pair_blocks.first_block_plain(*first)
    found = pair_blocks_cuda.first_block_cuda(*first)
    torch.testing.assert_close(found[:2], expected[:2], rtol=2 * EPS, atol=EPS)
    torch.testing.assert_close(found[2].sum(1), expected[2].sum(1), rtol=EPS, atol=EPS)
    edges = [tensors[0].clone() for tensors in (found, expected)]
    sums = pair_blocks_cuda.second_block_cuda(edges[0], received, sent, skip, n, weight, layers[9])
    more = pair_blocks.second_block_plain(edges[1], received, sent, skip, n, weight, layers[9])
    torch.testing.assert_close(*edges, rtol=2 * EPS, atol=2 * EPS)
    torch.testing.assert_close(sums.sum(1), more.sum(1), rtol=EPS, atol=EPS)
