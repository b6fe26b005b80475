"""Roll-outs along trees by kernels: their plain twins against the model's own way."""

import pytest
import torch
from relational_parts import cells_and_trees, decoder_layers

from nestruct.models.relational import tree_moves
from nestruct.models.relational.roll_out import roll_out


def plainly(positions, z, layers, steps):
    rows = zip(positions, z, *layers, strict=True)
    return torch.stack([roll_out(*row[:2], row[2:], steps, hard=True, fused=False) for row in rows])


@pytest.mark.parametrize("kind", ["tree", "subset"])
@pytest.mark.parametrize(("n", "samples", "steps"), [(2, 1, 1), (5, 3, 2), (10, 1, 3)])
def test_without_rounding_it_is_the_plain_way(monkeypatch, n, samples, steps, kind):
    monkeypatch.setattr(tree_moves, "HALF", torch.float32)
    positions, z = cells_and_trees(3, n, 4, samples, kind)
    layers = decoder_layers(3, 16)
    found = tree_moves.roll_out_trees(positions, z, layers, steps)
    expected = plainly(positions, z, layers, steps)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_rounding_is_that_of_short_numbers(monkeypatch, half):
    monkeypatch.setattr(tree_moves, "HALF", half)
    positions, z = cells_and_trees(2, 6, 20)
    layers = decoder_layers(2, 64)
    found = tree_moves.roll_out_trees(positions, z, layers, 1)
    expected = plainly(positions, z, layers, 1)
    error = (found - expected).square().mean().sqrt()
    moved = (expected - positions[:, :, :, None, :, None]).square().mean().sqrt()
    # Five roundings on the way to a move, each half a last bit at most.
    assert error < 5 / 2 * torch.finfo(half).eps * moved
    assert error > 0


def test_positions_and_what_they_meet_keep_more_than_eight_bits():
    """Far from the origin, bfloat16 positions would be off by more than nodes move."""
    positions, z = cells_and_trees(1, 4, 8)
    layers = decoder_layers(1, 32)
    layers[0][..., 2:] = -layers[0][..., :2]  # messages by differences, as nature has it
    layers[4][..., :2] = 0
    found = [tree_moves.roll_out_trees(p, z, layers, 1) for p in (positions, positions + 100)]
    apart = (found[1] - found[0] - 100).abs().max()
    assert apart < 0.02 * (found[0][..., 0] - positions.unsqueeze(3)).abs().max()


def test_a_row_without_an_answer_is_nan_the_others_not():
    positions, z = cells_and_trees(2, 5, 6)
    expected = tree_moves.roll_out_trees(positions, z, decoder_layers(2, 16), 2)
    z[1, :, 0, 3] = torch.nan
    found = tree_moves.roll_out_trees(positions, z, decoder_layers(2, 16), 2)
    broken = torch.zeros_like(found, dtype=torch.bool)
    broken[1, :, :, :, 3] = True
    assert torch.equal(found.isnan(), broken)
    assert torch.equal(found[~broken], expected[~broken])


def test_receivers_are_sorted_by_their_edges():
    n = 6
    _, z = cells_and_trees(2, n, 7)
    bits, order = tree_moves._sorted_receivers(z.flatten(2), n)
    low, high = torch.triu_indices(n, n, 1)
    for member in range(2):
        degrees = []
        for row in order[member].tolist():
            cell, node = divmod(row, n)
            ends = [
                (a, b)
                for k, (a, b) in enumerate(zip(low, high, strict=True))
                if z[member, k, 0, cell]
            ]
            others = {int(a + b) - node for a, b in ends if node in (a, b)}
            assert {k for k in range(n) if int(bits[member, row]) >> k & 1} == others
            degrees.append(len(others))
        assert degrees == sorted(degrees)
        assert sum(degrees) == 7 * 2 * (n - 1)
