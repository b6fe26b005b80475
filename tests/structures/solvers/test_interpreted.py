"""The CUDA kernels on a machine without a GPU: Triton's interpreter runs them on CPU tensors.

Not among the default tests, since triton need not be there and the interpreter takes minutes:
``TRITON_INTERPRET=1 pytest -m slow tests/structures/solvers/test_interpreted.py``. It shows what a
kernel computes, not that it compiles, nor how fast it is.
"""

import os

import numpy as np
import pytest
import torch
from cases import PROGRAMME_CASES

from nestruct.structures.rows import OK
from nestruct.structures.solvers import SOLVERS
from nestruct.structures.solvers.run import run_rows

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET is not 1", allow_module_level=True)
pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),  # the interpreter's
]


def on_cpu(
    solver: str, rows: torch.Tensor, lengths: torch.Tensor, option: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What numba's kernel answers; zeros where it has no answer."""
    kernel = SOLVERS[solver].kernel
    assert kernel is not None
    z, codes = np.zeros(rows.shape), np.empty(len(rows), np.int64)
    run_rows(kernel, rows.numpy(), lengths.numpy(), option, z, codes)
    z[codes != OK] = 0
    return torch.from_numpy(z), torch.from_numpy(codes)


def assignments(kind: str, n: int) -> torch.Tensor:
    generator = np.random.default_rng(n)
    rows = generator.normal(size=(6, n, n))
    if kind == "ties":
        rows = generator.integers(0, 3, size=(6, n, n)).astype("float64")
    if kind == "forbidden":
        rows = np.where(generator.random(rows.shape) < 0.5, -np.inf, rows.round())
    if kind == "bad":
        rows[1, 0, -1], rows[3, -1, 0], rows[4, :, 0] = np.nan, np.inf, -np.inf
    return torch.from_numpy(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["gaussian", "ties", "forbidden", "bad"])
def test_assignments_equal_the_cpu_ties_too(kind, dtype):
    for n in (1, 2, 3, 5, 9):
        rows = assignments(kind, n).to(dtype)
        expected, codes = on_cpu("jonker_volgenant", rows, torch.full((6,), n), 0)
        z, found = SOLVERS["jonker_volgenant"].batched(rows, None, 0)
        assert z.dtype == dtype
        assert torch.equal(found, codes)
        assert torch.equal(z[codes == OK].double(), expected[codes == OK])


@pytest.mark.parametrize("single_root", [0, 1])
def test_trees_equal_the_cpu(single_root):
    from nestruct.structures.solvers.edmonds_cuda import edmonds_cuda
    from nestruct.structures.solvers.eisner_cuda import eisner_cuda

    size, lengths = 7, torch.tensor([6, 5, 2, 1, 6])
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, size, size, dtype=torch.float64, generator=generator)
    rows[4] = rows[4].round()  # ties
    node = torch.arange(size)
    arcs = (node[:, None] != node) & (node > 0)
    arcs = arcs & (torch.maximum(node[:, None], node) <= lengths[:, None, None])
    usable = torch.where(arcs, rows, -torch.inf)
    words = (node > 0) & (node <= lengths[:, None])
    for solver in ("eisner", "edmonds"):
        if solver == "eisner":
            heads, _ = eisner_cuda(usable, lengths, single_root)
        else:
            heads, codes = edmonds_cuda(usable.mT.contiguous(), lengths, single_root)
            assert (codes == OK).all()
        expected, codes = on_cpu(solver, rows, lengths, single_root)
        assert (codes == OK).all()
        assert torch.equal(heads[words], expected.argmax(1)[words])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_spanning_trees_equal_plain_torch_ties_too(dtype):
    from nestruct.structures.solvers.prim import prim_torch
    from nestruct.structures.solvers.prim_cuda import prim_cuda

    for n in (2, 3, 5, 10, 17):
        generator = torch.Generator().manual_seed(n)
        rows = torch.randn(70, n * (n - 1) // 2, dtype=dtype, generator=generator)
        rows[:20] = rows[:20].round()  # ties
        rows[20:40][rows[20:40] < 0] = -torch.inf
        rows[39, : n - 1] = -torch.inf  # all that join node 0
        expected, feasible = prim_torch(rows, n)
        z, found = prim_cuda(rows, n)
        assert torch.equal(found, feasible)
        assert not feasible[39]
        assert torch.equal(z[found], expected[found])
        rows[0], rows[1, 0], rows[2, -1] = torch.nan, torch.nan, torch.inf
        others, _ = prim_cuda(rows, n)
        assert torch.equal(others[3:], z[3:])


@pytest.mark.parametrize("case", PROGRAMME_CASES, ids=repr)
@pytest.mark.parametrize("deviation", [1.0, 50.0])
def test_dynamic_programmes_equal_the_batched_form(case, deviation):
    from nestruct.structures.relaxations.inside_outside_batched import sums_batched
    from nestruct.structures.relaxations.inside_outside_cuda import sums_cuda
    from nestruct.structures.solvers.best_derivation import derivation_batched
    from nestruct.structures.solvers.best_derivation_cuda import derivation_cuda

    generator = torch.Generator().manual_seed(0)
    scores = deviation * torch.randn(9, *case.shape, dtype=torch.float64, generator=generator)
    scores[2], scores[3] = scores[2].round(), -torch.inf
    scores[(4, *case.first_part())], scores[(5, *case.first_part())] = torch.nan, torch.inf
    scores[(6, *case.first_part())] = -torch.inf
    lengths = case.least + torch.arange(9) % (case.size + 1 - case.least)
    recurrence, goals, flat = case.structure._problem("argmax", scores, {"lengths": lengths})
    goals[7] = -1
    z, codes = derivation_cuda(flat, goals, recurrence)
    expected, expected_codes = derivation_batched(flat, goals, recurrence.handle)
    assert torch.equal(codes, expected_codes)
    assert torch.equal(z[codes == OK], expected[codes == OK])
    slopes = torch.randn(flat.shape, dtype=torch.float64, generator=generator)
    for slope, want in ((None, False), (None, True), (slopes, True)):
        found, value = sums_cuda(recurrence, flat, goals, slope, want)
        wanted, total = sums_batched(recurrence, flat, goals, slope, want)
        fine = value > -1e29  # where there is a member
        assert torch.equal(fine, total > -1e29)
        assert torch.equal(value.isnan(), total.isnan())
        torch.testing.assert_close(value[fine], total[fine], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found[fine], wanted[fine], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("deviation", [1.0, 50.0, 1000.0])
def test_k_subsets_equal_the_cpu(deviation, dtype):
    from nestruct.structures.relaxations import elementary_symmetric as subsets
    from nestruct.structures.relaxations.inside_outside import _run
    from nestruct.structures.relaxations.subset_sums_cuda import subset_draws_cuda, subset_sums_cuda

    for n, k in ((1, 0), (1, 1), (5, 2), (7, 0), (7, 7), (12, 11), (20, 10), (45, 9)):
        generator = torch.Generator().manual_seed(n)
        scores = deviation * torch.randn(8, n, dtype=torch.float64, generator=generator)
        scores[2], scores[3], scores[4] = scores[2].round(), 0.0, -1e30
        scores[5][torch.rand(n, generator=generator) < 0.3] = -1e30
        scores[6, 0], scores[7, -1] = torch.nan, torch.inf
        scores, slopes = scores.to(dtype), torch.randn(8, n, generator=generator).to(dtype)
        recurrence, goals = subsets.subset_recurrence(n, k), torch.zeros(8, dtype=torch.long)
        for slope, want in ((None, False), (None, True), (slopes, True)):
            found, value = subset_sums_cuda(k, scores, slope, want)
            expected, total = _run(recurrence, scores, goals, slope, want=want)
            fine = value > -1e29  # where there is a member
            assert torch.equal(fine, total > -1e29)
            assert torch.equal(value.isnan(), total.isnan())
            torch.testing.assert_close(value[fine].to(dtype), total[fine])
            torch.testing.assert_close(found[fine].to(dtype), expected[fine])
        uniform = torch.rand(8, n, dtype=dtype, generator=generator)
        z, _ = subset_draws_cuda(k, scores, uniform)
        assert z.dtype == dtype
        assert torch.equal(z[fine], subsets._Draw.apply(scores, uniform, k)[0][fine])


# numpy's, where float64 is left; the interpreter's, where a loop ends at a number that was read
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("deviation", [1.0, 50.0, 2000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_matrix_trees_equal_plain_torch_and_so_do_two_derivatives(dtype, deviation, single_root):
    from nestruct.structures.relaxations.arborescences import log_sum
    from nestruct.structures.relaxations.log_domain import FORBIDDEN
    from nestruct.structures.relaxations.matrix_tree import log_arborescences_torch

    generator = torch.Generator().manual_seed(0)
    for size in (2, 3, 4, 7, 18):
        shape, node = (5, size, size), torch.arange(size)
        scores = deviation * torch.randn(shape, dtype=torch.float64, generator=generator)
        scores[1] = scores[1].round()
        mask = torch.tensor([-1e4, -1e9, FORBIDDEN]).double()[torch.arange(5) % 3]
        some = torch.rand(shape, generator=generator) < 0.2
        some[0] = False
        scores = torch.where(some, mask[:, None, None], scores)
        lengths = torch.tensor([size - 1, size - 1, size // 2, 1, 0])
        arcs = (node[:, None] != node) & (node > 0)
        arcs = arcs & (torch.maximum(node[:, None], node) <= lengths[:, None, None])
        scores = torch.where(arcs, scores, FORBIDDEN).to(dtype)
        slope = torch.randn(shape, dtype=dtype, generator=generator)
        found = []
        for function in (log_arborescences_torch, log_sum):
            # The kernels' own numbers are float64.
            wide = scores.double() if function is log_arborescences_torch else scores
            wide = wide.clone().requires_grad_()
            value = function(wide, lengths, single_root)
            marginals = torch.autograd.grad(value.sum(), wide, create_graph=True)[0]
            change = torch.zeros_like(wide)
            if marginals.requires_grad:  # with one word in plain torch they are constants
                change = torch.autograd.grad((marginals * slope).sum(), wide)[0]
            fine = value.detach() > FORBIDDEN / 2
            results = (value.detach(), *(each.detach() * arcs for each in (marginals, change)))
            found.append((fine, *(each[fine].double() for each in results)))
        (expected_fine, *expected), (fine, *results) = found
        assert torch.equal(fine, expected_fine)
        assert fine[0]
        tolerance = {"rtol": 1e-6, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 1e-9}
        for result, truth in zip(results, expected, strict=True):
            torch.testing.assert_close(result, truth, **{"atol": 1e-9, **tolerance})
