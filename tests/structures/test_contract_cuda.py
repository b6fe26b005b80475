"""The same answers on a GPU, also inside a captured graph. Skipped where there is none."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from cases import CASES, GIBBS_CASES, SAMPLE_CASES

import nestruct
from nestruct import InputError
from nestruct.structures import DynamicProgramme, sparse_map

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

CAPTURABLE = {
    "categorical": (nestruct.Categorical(10), (64, 10)),
    "k-subset": (nestruct.KSubset(45, 9), (64, 45)),
    "permutation": (nestruct.Permutation(9), (64, 9, 9)),
    "spanning tree": (nestruct.SpanningTree(10), (64, 45)),
    "projective tree": (nestruct.ProjectiveTree(), (64, 13, 13)),
    "projective tree, many roots": (nestruct.ProjectiveTree(False), (64, 13, 13)),
    "linear chain": (nestruct.LinearChain(3), (64, 7, 3, 3)),
    "semi-Markov": (nestruct.SemiMarkov(3, 4), (64, 12, 4, 3)),
    "alignment": (nestruct.Alignment(), (64, 8, 9)),
    "constituency tree": (nestruct.ConstituencyTree(2), (64, 9, 9, 2)),
    "non-projective tree": (nestruct.NonProjectiveTree(), (64, 13, 13)),
    "non-projective tree, many roots": (nestruct.NonProjectiveTree(False), (64, 13, 13)),
    "monotone path": (nestruct.GridPath(6, 7), (64, 6, 7)),
    "path of eight moves": (nestruct.GridPath(4, 5, moves="eight", scores="edges"), (64, 55)),
    "black box": (nestruct.BlackBox(lambda s: s > 0, (7,)), (64, 7)),
}
# Where the host may look, these do: rounds end as soon as nothing changes.
LOOKING = {name for name in CAPTURABLE if name.startswith(("non-proj", "path of", "black box"))}
METHODS: dict[str, Callable] = {
    "log_partition": lambda structure, scores: structure.log_partition(scores),
    "marginals": lambda structure, scores: structure.marginals(scores),
    "entropy": lambda structure, scores: structure.entropy(scores),
    "relax": lambda structure, scores: structure.relax(scores, 0.7),
    "sample": lambda structure, scores: structure.sample(scores, nestruct.Noise(5)),
    "kbest": lambda structure, scores: structure.kbest(scores, 3)[0],
    "max_marginals": lambda structure, scores: structure.max_marginals(scores),
}
LATER = ("linear chain", "semi-Markov", "alignment", "constituency tree", "monotone path")
CALLS = [
    (name, method)
    for name in (*LATER, "permutation", "projective tree", "projective tree, many roots")
    for method in METHODS
    if hasattr(CAPTURABLE[name][0], method)
]
CALLS += [("k-subset", name) for name in METHODS if name not in ("kbest", "max_marginals")]
each_call = pytest.mark.parametrize(("name", "method"), CALLS, ids=[": ".join(c) for c in CALLS])
# Where both forms add the same numbers in the same order, and take the first among equals.
SAME_TIES = [
    case
    for case in CASES
    if isinstance(case.structure, DynamicProgramme | nestruct.GridPath | nestruct.Permutation)
]


def gaussian(shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_argmax_equals_the_cpu(case, dtype):
    scores = gaussian((5, 7, *case.shape), dtype)
    lengths = None
    if case.is_sized:
        lengths = case.least + torch.arange(35).view(5, 7) % (case.size + 1 - case.least)
    on_gpu = None if lengths is None else lengths.cuda()
    z = case.structure.argmax(scores.cuda(), lengths=on_gpu)
    assert z.is_cuda
    assert torch.equal(z.cpu(), case.structure.argmax(scores, lengths=lengths))
    assert case.structure.contains(z, lengths=on_gpu).all()
    assert torch.equal(
        case.structure.argmax(scores[0, 0].cuda()).cpu(), case.structure.argmax(scores[0, 0])
    )
    vmapped = torch.func.vmap(case.structure.argmax)(scores.cuda())
    assert torch.equal(vmapped.cpu(), case.structure.argmax(scores))


@pytest.mark.parametrize("n", [25, 60, 250])
def test_long_sentences_equal_the_cpu(n):
    scores = gaussian((4, n + 1, n + 1), torch.float64)
    lengths = torch.tensor([n, n - 1, n // 2, 1])
    for kind in (nestruct.ProjectiveTree, nestruct.NonProjectiveTree):
        for rule in (True, False):
            z = kind(rule).argmax(scores.cuda(), lengths=lengths)
            assert torch.equal(z.cpu(), kind(rule).argmax(scores, lengths=lengths))


@pytest.mark.parametrize("case", GIBBS_CASES, ids=repr)
def test_gibbs_quantities_equal_the_cpu(case):
    scores = gaussian((6, *case.shape), torch.float64)
    for method in ("log_partition", "marginals", "entropy"):
        on_gpu = getattr(case.structure, method)(scores.cuda())
        torch.testing.assert_close(on_gpu.cpu(), getattr(case.structure, method)(scores))


def test_relaxations_equal_the_cpu():
    scores, lengths = gaussian((5, 30, 30), torch.float64), torch.tensor([29, 7, 1, 0, 28])
    for rule in (True, False):
        tree = nestruct.ProjectiveTree(rule)
        soft = tree.soft_argmax(scores.cuda(), 0.7, lengths=lengths)
        torch.testing.assert_close(soft.cpu(), tree.soft_argmax(scores, 0.7, lengths=lengths))
        for kind in (nestruct.ProjectiveTree, nestruct.NonProjectiveTree):
            mixture = sparse_map(kind(rule), scores.cuda(), lengths=lengths.cuda())
            torch.testing.assert_close(
                mixture.cpu(), sparse_map(kind(rule), scores, lengths=lengths)
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("num_items", "k"), [(1, 0), (1, 1), (7, 0), (9, 9), (20, 10), (70, 33), (300, 5), (900, 600)]
)
def test_k_subsets_and_two_derivatives_equal_the_cpu(num_items, k, dtype):
    """Orders in a part of a warp, in many warps; far apart, tied, and with forbidden items."""
    structure, scores = nestruct.KSubset(num_items, k), gaussian((3, 4, num_items), dtype)
    scores[1], scores[2] = 50 * scores[1], scores[2].round()
    if k < num_items:
        scores[2, :, 0] = -torch.inf
    slope = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)).to(dtype)

    def answers(scores: torch.Tensor, slope: torch.Tensor) -> list[torch.Tensor]:
        back: Any = torch.func.vjp(structure.marginals, scores)[1]
        return [
            structure.log_partition(scores),
            structure.entropy(scores),
            structure.marginals(scores),
            torch.func.vmap(structure.marginals)(scores),
            structure.sample(scores, nestruct.Noise(2)),
            *back(slope),
        ]

    on_gpu = [found.cpu() for found in answers(scores.cuda(), slope.cuda())]
    for found, expected in zip(on_gpu, answers(scores, slope), strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected)


def test_a_third_derivative_of_k_subsets_equals_the_cpu():
    structure, slope = nestruct.KSubset(7, 3), gaussian((5, 7), torch.float64)

    def third(scores: torch.Tensor) -> torch.Tensor:
        along = slope.to(scores.device)

        def curvature(inner: torch.Tensor) -> torch.Tensor:
            return torch.func.vjp(structure.marginals, inner)[1](along)[0]

        return torch.func.vjp(curvature, scores)[1](along)[0]

    scores = 2 * slope.flip(-1)
    torch.testing.assert_close(third(scores.cuda()).cpu(), third(scores))


def test_the_derivative_of_k_subset_marginals_inside_a_captured_graph():
    structure, static = nestruct.KSubset(45, 9), gaussian((64, 45)).cuda()

    def derivative(scores: torch.Tensor) -> torch.Tensor:
        slope = torch.linspace(-1, 1, 45, device=scores.device)
        return torch.func.grad(lambda inner: (structure.marginals(inner) * slope).sum())(scores)

    graph, found = captured(derivative, static)
    fresh = gaussian((64, 45)).flip(0)
    static.copy_(fresh)
    graph.replay()
    torch.testing.assert_close(found.cpu(), derivative(fresh))


@pytest.mark.parametrize("case", SAMPLE_CASES, ids=repr)
def test_samples_are_legal(case):
    scores = gaussian((50, *case.shape)).cuda()
    z = case.structure.sample(scores, torch.Generator("cuda").manual_seed(0))
    assert case.structure.contains(z).all()


@pytest.mark.parametrize("case", SAME_TIES, ids=repr)
def test_ties_fall_as_on_the_cpu(case):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(-2, 2, (100, *case.shape), generator=generator).float()
    scores[50:] = torch.where(scores[50:] == -2, -torch.inf, scores[50:])
    with nestruct.nan_rows():
        z = case.structure.argmax(scores.cuda()).cpu()
        torch.testing.assert_close(z, case.structure.argmax(scores), rtol=0, atol=0, equal_nan=True)


@each_call
def test_methods_equal_the_cpu_and_read_nothing_on_the_host(name, method):
    structure, shape = CAPTURABLE[name]
    call, scores = METHODS[method], gaussian(shape, torch.float64)
    on_gpu = scores.cuda()
    with nestruct.nan_rows():
        call(structure, on_gpu)
        with no_synchronisation():
            found = call(structure, on_gpu)
    torch.testing.assert_close(found.cpu(), call(structure, scores))


@each_call
def test_methods_inside_a_captured_graph(name, method):
    structure, shape = CAPTURABLE[name]
    call, static = METHODS[method], gaussian(shape, torch.float64).cuda()
    graph, found = captured(lambda scores: call(structure, scores), static)
    fresh = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    static.copy_(fresh)
    graph.replay()
    torch.testing.assert_close(found.cpu(), call(structure, fresh))


MATRIX_TREES = ("spanning tree", "non-projective tree", "non-projective tree, many roots")


@pytest.mark.parametrize("deviation", [1.0, 50.0, 2000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MATRIX_TREES)
def test_matrix_trees_and_their_derivatives_equal_the_cpu(name, dtype, deviation):
    for n in (1, 2, 9, 31, 32, 64, 100):
        structure, shape = CAPTURABLE[name][0], (5, n + 1, n + 1)
        context = {"lengths": torch.tensor([n, n, n // 2, 1, 0])}
        if name == "spanning tree":
            structure, shape, context = nestruct.SpanningTree(n + 1), (5, n * (n + 1) // 2), {}
        scores = (deviation * gaussian(shape, torch.float64)).to(dtype)
        scores[1] = scores[1].round()
        scores[0, ..., -1] = -torch.inf if n > 2 else 0.0
        slope = gaussian(shape, dtype)
        found = []
        for place in ("cpu", "cuda"):
            # All that float32 rounds here are differences of scores.
            wide = scores.to(place, torch.float64 if place == "cpu" else dtype).requires_grad_()
            given = {key: value.to(place) for key, value in context.items()}
            with nestruct.nan_rows():
                value = structure.log_partition(wide, **given)
                marginals = structure.marginals(wide, **given)
            total = (marginals.nan_to_num() * slope.to(wide)).sum()
            # One word hangs on the root whatever its score: on a CPU that has no derivative.
            constant = not total.requires_grad
            change = torch.zeros_like(wide) if constant else torch.autograd.grad(total, wide)[0]
            found.append([each.detach().cpu().double() for each in (value, marginals, change)])
        limit = 4e-6 * deviation if dtype == torch.float32 else 1e-9
        rtol = 1e-6 if dtype == torch.float32 else 1e-12
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(other, one, rtol=rtol, atol=limit, equal_nan=True)


@pytest.mark.parametrize("name", MATRIX_TREES)
def test_one_matrix_tree_without_a_batch_and_its_jacobians_equal_the_cpu(name):
    structure, (_, *shape) = CAPTURABLE[name]
    scores = gaussian(tuple(shape), torch.float64)
    for call in (
        structure.log_partition,
        structure.marginals,
        torch.func.jacrev(structure.marginals),
        torch.func.jacfwd(structure.marginals),
        torch.func.hessian(structure.log_partition),
    ):
        torch.testing.assert_close(call(scores.cuda()).cpu(), call(scores))


@pytest.mark.parametrize("name", MATRIX_TREES)
def test_derivatives_of_matrix_trees_inside_a_captured_graph(name):
    structure, shape = CAPTURABLE[name]

    def derivative(scores: torch.Tensor) -> torch.Tensor:
        wanted = scores.detach().requires_grad_()
        total = (structure.marginals(wanted) * scores.cos()).sum()
        return torch.autograd.grad(total, wanted)[0]

    static = gaussian(shape, torch.float64).cuda()
    derivative(static)
    graph, found = captured(derivative, static)
    for deviation in (1.0, 2000.0):
        fresh = deviation * gaussian((2, *shape), torch.float64)[1]
        static.copy_(fresh)
        graph.replay()
        torch.testing.assert_close(found.cpu(), derivative(fresh), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CAPTURABLE)
def test_argmax_inside_a_captured_graph(name):
    structure, shape = CAPTURABLE[name]
    static = gaussian(shape).cuda()
    for argmax in (structure.argmax, torch.func.vmap(structure.argmax)):
        graph, z = captured(argmax, static)
        fresh = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        expected = structure.argmax(fresh)
        static.copy_(fresh)
        graph.replay()
        assert torch.equal(z.cpu(), expected)
        fresh[3] = torch.nan
        static.copy_(fresh)
        graph.replay()
        assert z[3].isnan().all()
        keep = torch.arange(len(fresh)) != 3
        assert torch.equal(z.cpu()[keep], expected[keep])


def captured(call: Callable, static: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of one call, after another on a stream beside it; and what it computes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(static)
    return graph, found


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Within it nothing may wait for the GPU, as reading a tensor on the host does."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", [name for name in CAPTURABLE if name not in LOOKING])
def test_no_host_synchronisation_inside_vmap(name):
    structure, shape = CAPTURABLE[name]
    scores = gaussian((3, *shape)).cuda()
    torch.func.vmap(structure.argmax)(scores)
    with no_synchronisation():
        torch.func.vmap(structure.argmax)(scores)


def test_bad_rows_are_named():
    scores = gaussian((2, 3, 45)).cuda()
    scores[1, 2, 7] = torch.nan
    with pytest.raises(InputError, match=r"row \(1, 2\) holds NaN"):
        nestruct.SpanningTree(10).argmax(scores)
