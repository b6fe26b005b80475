"""The kernels of k-subsets against those of every recurrence, and against enumeration."""

import pytest
import torch

import nestruct
from nestruct.structures import Draws
from nestruct.structures.recurrence import Recurrence
from nestruct.structures.relaxations import elementary_symmetric as subsets
from nestruct.structures.relaxations import inside_outside

SIZES = [(1, 0), (1, 1), (5, 2), (7, 0), (7, 7), (12, 11), (20, 10), (45, 9)]
each_size = pytest.mark.parametrize(("num_items", "k"), SIZES)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def without_kernels(recurrence: Recurrence) -> Recurrence:
    levels = [(heads, *edges) for heads, *edges in recurrence._levels]
    shape, goals = recurrence.node_shape, recurrence.goals
    return Recurrence(shape, recurrence.num_parts, levels, goals)


@each_size
@pytest.mark.parametrize("deviation", [1.0, 50.0, 1000.0])
@pytest.mark.parametrize("forbidden", [0.0, 0.3])
def test_the_kernel_against_that_of_every_recurrence(num_items, k, deviation, forbidden):
    """Far apart, so that weights are moved; and with items that cannot be chosen."""
    scores = deviation * gaussian(37, num_items)  # one row more than four times the lanes
    impossible = torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < forbidden
    scores, slopes = scores.masked_fill(impossible, -1e30), gaussian(37, num_items, seed=2)
    own = subsets.subset_recurrence(num_items, k)
    goals = torch.full((37,), int(own.goals))
    for slope, want in ((None, False), (None, True), (slopes, True)):
        (found, value), (expected, total) = (
            inside_outside._run(recurrence, scores, goals, slope, want=want)
            for recurrence in (own, without_kernels(own))
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        least = torch.tensor(-1e29)  # no member: hugely negative in both
        torch.testing.assert_close(
            value.maximum(least), total.maximum(least), rtol=1e-13, atol=1e-12
        )


@each_size
def test_samples_are_those_of_the_tables_in_torch(num_items, k, monkeypatch):
    scores = 3 * gaussian(200, num_items)
    draws = Draws("a test", nestruct.Noise(seed=3))
    by_kernel, log_z = subsets.sample_subsets(scores, k, draws)
    assert (by_kernel.sum(-1) == k).all()
    uniform = Draws("a test", nestruct.Noise(seed=3)).uniform(scores)
    by_torch, total = subsets.plain_sample(scores, uniform, k)
    assert torch.equal(by_kernel, by_torch)
    torch.testing.assert_close(log_z, total, rtol=1e-13, atol=1e-12)


@each_size
def test_three_derivatives_are_those_of_torch(num_items, k):
    """Of the third, the kernels know nothing: torch goes through the twin."""
    scores, slopes = 2 * gaussian(5, num_items), gaussian(2, 5, num_items, seed=1)

    def derivatives(log_partition) -> list[torch.Tensor]:
        inner = scores.clone().requires_grad_()
        found = [log_partition(inner)]
        for slope in (1.0, *slopes):
            total = (found[-1] * slope).sum()
            found += torch.autograd.grad(total, inner, create_graph=True, materialize_grads=True)
        return found

    for found, expected in zip(
        derivatives(nestruct.KSubset(num_items, k).log_partition),
        derivatives(lambda inner: subsets.plain_log_subsets(inner, k)),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_vmap_of_samples_and_marginals():
    structure, scores = nestruct.KSubset(6, 2), gaussian(3, 4, 6)
    marginals = torch.vmap(structure.marginals)(scores)
    torch.testing.assert_close(marginals, structure.marginals(scores))
    uniform = torch.rand(3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mapped = torch.vmap(lambda s, u: subsets._Draw.apply(s, u, 2))(scores, uniform)
    for found, expected in zip(mapped, subsets._Draw.apply(scores, uniform, 2), strict=True):
        assert torch.equal(found, expected)


def test_a_bad_row_leaves_its_neighbours_alone():
    scores = gaussian(9, 6)
    expected = nestruct.KSubset(6, 2).marginals(scores)
    broken = scores.clone()
    broken[3, 1], broken[5] = torch.nan, -torch.inf
    with nestruct.nan_rows():
        found = nestruct.KSubset(6, 2).marginals(broken)
    assert found[[3, 5]].isnan().all()
    rest = [0, 1, 2, 4, 6, 7, 8]
    assert torch.equal(found[rest], expected[rest])
