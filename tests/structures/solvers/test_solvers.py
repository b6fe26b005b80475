"""Kernels and batched forms against their plain twins; networkx and scipy at larger sizes."""

from collections.abc import Callable
from typing import NamedTuple

import networkx
import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nestruct
from nestruct.structures.rows import NO_MEMBER, OK
from nestruct.structures.solvers import SOLVERS
from nestruct.structures.solvers.edmonds import edmonds_plain
from nestruct.structures.solvers.eisner import eisner_plain
from nestruct.structures.solvers.jonker_volgenant import jonker_volgenant_plain
from nestruct.structures.solvers.prim import prim_plain
from nestruct.structures.solvers.run import run_rows
from nestruct.structures.solvers.top_k import top_k_plain

VALUE = st.one_of(st.sampled_from([0.0, 0.0, 1.0, -1.0, -np.inf]), st.floats(-50, 50, width=32))


class Problem(NamedTuple):
    """How to draw a problem of size n, and its twin: ``(scores, length, option) -> z``."""

    solver: str
    shape: Callable[[int], tuple[int, ...]]
    option: Callable[[int], int]
    twin: Callable[[np.ndarray, int, int], np.ndarray]
    words: bool = False


def square(n: int) -> tuple[int, ...]:
    return (n + 1, n + 1)


PROBLEMS = {
    "top 1": Problem("top_k", lambda n: (n,), lambda n: 1, lambda s, _, k: top_k_plain(s, k)),
    "top k": Problem("top_k", lambda n: (n,), lambda n: n // 2, lambda s, _, k: top_k_plain(s, k)),
    "prim": Problem(
        "prim", lambda n: (n * (n - 1) // 2,), lambda n: n, lambda s, _, n: prim_plain(s, n)
    ),
    "eisner": Problem(
        "eisner", square, lambda n: 0, lambda s, n, root: eisner_plain(s, n, bool(root)), True
    ),
    "eisner, one root": Problem(
        "eisner", square, lambda n: 1, lambda s, n, root: eisner_plain(s, n, bool(root)), True
    ),
    "edmonds": Problem(
        "edmonds", square, lambda n: 0, lambda s, n, root: edmonds_plain(s, n, bool(root)), True
    ),
    "edmonds, one root": Problem(
        "edmonds", square, lambda n: 1, lambda s, n, root: edmonds_plain(s, n, bool(root)), True
    ),
    "jonker-volgenant": Problem(
        "jonker_volgenant",
        lambda n: (n, n),
        lambda n: 0,
        lambda s, _, __: jonker_volgenant_plain(s),
    ),
}
FORMS = [
    (name, form)
    for name, problem in PROBLEMS.items()
    for form in ("kernel", "batched")
    if SOLVERS[problem.solver].kernel or form == "batched"
    if problem.solver != "jonker_volgenant" or form == "kernel"  # see test_interpreted.py
]
each_form = pytest.mark.parametrize(
    ("name", "form"), FORMS, ids=[": ".join(pair) for pair in FORMS]
)


def run(problem: Problem, form: str, rows: np.ndarray, lengths: np.ndarray, option: int):
    solver = SOLVERS[problem.solver]
    if form == "batched":
        found = solver.batched(torch.from_numpy(rows), torch.from_numpy(lengths), option)
        return found[0].numpy(), found[1].numpy()
    assert solver.kernel is not None
    z, codes = np.empty_like(rows), np.empty(len(rows), np.int64)
    run_rows(solver.kernel, rows, lengths, option, z, codes)
    return z, codes


def score(rows: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.where(z == 1, rows, 0).reshape(len(rows), -1).sum(1)


@each_form
def test_equals_its_twin_on_random_scores(name, form):
    problem = PROBLEMS[name]
    generator = np.random.default_rng(0)
    for n, count in ((1, 20), (2, 20), (3, 20), (5, 20), (8, 20), (13, 20), (6, 1)):
        rows = generator.normal(size=(count, *problem.shape(n)))
        lengths = generator.integers(1, n + 1, size=count)
        option = problem.option(n)
        z, codes = run(problem, form, rows, lengths, option)
        assert (codes == OK).all()
        for row, length, found in zip(rows, lengths, z, strict=True):
            np.testing.assert_array_equal(found, problem.twin(row, length, option))


@each_form
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(data=st.data())
def test_equals_its_twin_with_ties_and_forbidden_parts(name, form, dtype, data):
    problem = PROBLEMS[name]
    n = data.draw(st.integers(1, 7))
    rows = data.draw(hnp.arrays(dtype, (3, *problem.shape(n)), elements=VALUE))
    lengths = np.array(data.draw(st.lists(st.integers(0, n), min_size=3, max_size=3)))
    option = problem.option(n)
    z, codes = run(problem, form, rows, lengths, option)
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        try:
            expected = problem.twin(row, length, option)
            possible = np.isfinite(score(row[None], expected[None])[0])
        except ValueError:
            possible = False
        assert codes[index] == (OK if possible else NO_MEMBER)
        if possible:
            best = score(row[None].astype("float64"), expected[None])
            found = score(row[None].astype("float64"), z[index : index + 1])
            np.testing.assert_allclose(found, best, rtol=1e-5, atol=1e-5)
            if problem.words:
                tree = nestruct.NonProjectiveTree(bool(option))
                assert tree.contains(torch.from_numpy(z[index]), torch.tensor(length))


def test_spanning_tree_agrees_with_networkx():
    for n in (15, 40):
        scores = torch.randn(3, n * (n - 1) // 2, generator=torch.Generator().manual_seed(n))
        z = nestruct.SpanningTree(n).argmax(scores)
        pairs = torch.triu_indices(n, n, 1).T.tolist()
        for row, tree in zip(scores, z, strict=True):
            graph = networkx.Graph()
            graph.add_weighted_edges_from(
                (*pair, weight) for pair, weight in zip(pairs, row.tolist(), strict=True)
            )
            best = {
                tuple(sorted(edge)) for edge in networkx.maximum_spanning_edges(graph, data=False)
            }
            assert {tuple(pairs[e]) for e in tree.nonzero().flatten()} == best


def best_arborescence(scores: np.ndarray) -> float:
    """networkx's answer, as the score of the best tree below node 0."""
    graph = networkx.DiGraph()
    n = len(scores)
    graph.add_weighted_edges_from(
        (h, m, scores[h, m]) for h in range(n) for m in range(1, n) if h != m
    )
    return networkx.maximum_spanning_arborescence(graph).size(weight="weight")


@pytest.mark.parametrize("n", [12, 30])
def test_arborescence_agrees_with_networkx(n):
    scores = np.random.default_rng(n).normal(size=(3, n + 1, n + 1))
    z = nestruct.NonProjectiveTree(single_root=False).argmax(torch.from_numpy(scores)).numpy()
    np.testing.assert_allclose(score(scores, z), [best_arborescence(row) for row in scores])
    # One root: the best over all choices of the root's child, the other root arcs out of reach.
    z = nestruct.NonProjectiveTree().argmax(torch.from_numpy(scores[:1])).numpy()
    barred = scores[0].copy()
    barred[0] -= 1e4
    np.testing.assert_allclose(score(scores[:1], z), best_arborescence(barred) + 1e4)


def test_assignment_agrees_with_scipy():
    for n in (10, 40, 150):
        scores = np.random.default_rng(n).normal(size=(4, n, n))
        z = nestruct.Permutation(n).argmax(torch.from_numpy(scores)).numpy()
        for row, found in zip(scores, z, strict=True):
            columns = scipy.optimize.linear_sum_assignment(row, maximize=True)[1]
            np.testing.assert_array_equal(found.argmax(1), columns)


def test_assignment_with_integer_costs_and_many_ties():
    scores = np.random.default_rng(0).integers(0, 3, size=(50, 20, 20)).astype("float64")
    z = nestruct.Permutation(20).argmax(torch.from_numpy(scores)).numpy()
    for row, found in zip(scores, z, strict=True):
        best = row[scipy.optimize.linear_sum_assignment(row, maximize=True)].sum()
        assert (row * found).sum() == best


@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize("kind", [nestruct.ProjectiveTree, nestruct.NonProjectiveTree])
def test_sentences_of_250_words(kind, single_root):
    structure = kind(single_root)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(9, 251, 251, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([250, 250, 249, 200, 100, 30, 2, 1, 0])
    z = structure.argmax(scores, lengths=lengths)
    assert structure.contains(z, lengths=lengths).all()
    # A second opinion that scales: a log-partition at a low temperature exceeds the maximum by at
    # most temperature x log_count.
    temperature = 1e-5
    maximum = temperature * structure.log_partition(scores[:4] / temperature, lengths=lengths[:4])
    excess = maximum - (z * scores).sum((1, 2))[:4]
    assert (excess > -1e-6).all()
    assert (excess < temperature * structure.log_count(lengths[:4])).all()


def test_nested_cycles_are_contracted_and_opened():
    """Words that prefer each other in ever larger circles: the deepest nesting there is."""
    n = 60
    scores = np.full((1, n + 1, n + 1), -1000.0)
    for word in range(2, n + 1):
        scores[0, word, word - 1] = 100.0  # its right neighbour
        scores[0, 1, word] = 100.0 - word  # and the first word, closing a cycle with all before it
    scores[0, 0, 1:] = -500.0 + np.arange(n)
    for single_root in (True, False):
        z = nestruct.NonProjectiveTree(single_root).argmax(torch.from_numpy(scores)).numpy()
        expected = edmonds_plain(scores[0], n, single_root)
        assert score(scores, z)[0] == score(scores, expected[None])[0]


def test_float32_does_not_lose_the_best_tree():
    """Kernels sum in float64: close calls among float32 scores are decided as exact sums would."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(500, 13, 13, generator=generator) + 1000
    for structure in (
        nestruct.ProjectiveTree(),
        nestruct.ProjectiveTree(False),
        nestruct.NonProjectiveTree(),
        nestruct.NonProjectiveTree(False),
        nestruct.Permutation(13),
        nestruct.Alignment(),
        nestruct.ConstituencyTree(),
        nestruct.GridPath(13, 13),
    ):
        assert torch.equal(structure.argmax(scores).double(), structure.argmax(scores.double()))
    for structure, shape in (
        (nestruct.LinearChain(3), (12, 3, 3)),
        (nestruct.LinearChain(5), (12, 5, 5)),
        (nestruct.SemiMarkov(3, 4), (13, 4, 3)),
        (nestruct.GridPath(13, 13, scores="edges"), (312,)),
    ):
        scores = torch.randn(500, *shape, generator=generator) + 1000
        assert torch.equal(structure.argmax(scores).double(), structure.argmax(scores.double()))


@pytest.mark.parametrize("single_root", [0, 1])
def test_batched_edmonds_equals_the_kernel_on_nested_cycles(single_root):
    """Neighbours like each other best, the nearer the better: cycles within cycles."""
    generator = np.random.default_rng(3)
    for n in (20, 60, 130):
        place = np.arange(n + 1)
        rows = -(np.abs(place[:, None] - place) ** 0.5) + 0.3 * generator.normal(
            size=(6, n + 1, n + 1)
        )
        rows[:, 0] -= 30
        lengths = np.array([n, n, n - 1, n // 2, 1, 0])
        problem = PROBLEMS["edmonds"]
        kernel = run(problem, "kernel", rows, lengths, single_root)
        batched = run(problem, "batched", rows, lengths, single_root)
        np.testing.assert_array_equal(kernel[0], batched[0])
        np.testing.assert_array_equal(kernel[1], batched[1])
