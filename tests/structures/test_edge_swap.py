"""The chain on spanning trees: legal trees, the Gibbs law, and nothing else."""

import pytest
import torch
from cases import chi_square, count_members, totals

import nestruct
from nestruct.structures.edge_swap import swap_edges

TREE = nestruct.SpanningTree(4)


def gaussian(*shape: int, deviation: float = 1.0, seed: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return deviation * torch.randn(shape, dtype=torch.float64, generator=generator)


def p_value(scores: torch.Tensor, z: torch.Tensor) -> float:
    members = TREE.enumerate().double()
    return chi_square(count_members(members, z), totals(members, scores).softmax(-1))


def chain(scores, num_steps: int, start=None, structure=TREE, rows: int = 8000, seed: int = 6):
    scores = scores.expand(rows, -1)
    start = structure.argmax(scores) if start is None else start
    generator = torch.Generator().manual_seed(seed)
    return swap_edges(structure, start, scores, num_steps=num_steps, draws=generator)


@pytest.mark.parametrize("deviation", [1.0, 3.0])
def test_it_forgets_the_best_tree_and_draws_from_the_gibbs_law(deviation):
    scores = gaussian(6, deviation=deviation)
    z = chain(scores, 60)
    assert TREE.contains(z).all()
    assert p_value(scores, z) > 1e-3
    assert p_value(scores, chain(scores, 1)) < 1e-6  # the test sees a law that is another


def test_the_gibbs_law_stays():
    """One step from exact draws: what a slow chain towards a wrong law could not hide."""
    scores = gaussian(6)
    exact = TREE.sample(scores.expand(100_000, 6), torch.Generator().manual_seed(1))
    moved = chain(scores, 1, exact, rows=100_000)
    assert (moved != exact).any(-1).double().mean() > 0.2
    assert p_value(scores, exact) > 1e-3
    assert p_value(scores, moved) > 1e-3


def test_a_step_swaps_at_most_one_edge():
    structure = nestruct.SpanningTree(9)
    scores = gaussian(500, 36)
    start = structure.sample(scores, torch.Generator().manual_seed(0))
    moved = chain(scores, 1, start, structure, rows=500)
    assert structure.contains(moved).all()
    assert set((moved != start).sum(-1).tolist()) == {0, 2}


def test_marginals_of_larger_trees():
    structure = nestruct.SpanningTree(10)
    scores = gaussian(45)
    z = chain(scores, 100, structure=structure, rows=5000)
    assert structure.contains(z).all()
    marginals = structure.marginals(scores)
    error = (z.mean(0) - marginals) / (marginals * (1 - marginals) / 5000).sqrt()
    assert error.abs().max() < 4.5


def test_forbidden_edges_stay_out_and_offsets_do_not_count():
    scores = gaussian(6)
    scores[[0, 1]] = -torch.inf  # node 0 hangs on its last edge
    z = chain(scores, 60)
    assert (z[:, :2] == 0).all()
    assert p_value(scores, z) > 1e-3
    shifted = (scores + 1e7).float()  # no bits left for the noise
    assert p_value(shifted.double() - 1e7, chain(shifted, 60)) > 1e-3


def test_any_leading_axes_the_smallest_graphs_and_rows_without_a_tree():
    scores = gaussian(3, 2, 6)
    scores[1, 1, 0] = torch.nan
    with nestruct.nan_rows():
        start = TREE.argmax(scores)
    z = swap_edges(TREE, start, scores, num_steps=9, draws=torch.Generator().manual_seed(0))
    assert z[1, 1].isnan().all()
    assert TREE.contains(z).sum() == 5
    for n, num_trees in ((2, 1), (3, 3)):
        structure = nestruct.SpanningTree(n)
        z = chain(torch.zeros(n * (n - 1) // 2), 5, structure=structure, rows=50)
        assert structure.contains(z).all()
        assert len(z.unique(dim=0)) == num_trees


def test_the_same_seed_gives_the_same_trees():
    scores = gaussian(6)
    assert torch.equal(chain(scores, 20, rows=100), chain(scores, 20, rows=100))
    assert not torch.equal(chain(scores, 20, rows=100), chain(scores, 20, rows=100, seed=7))
