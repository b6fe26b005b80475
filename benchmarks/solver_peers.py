"""What the solvers of `solvers.py` are timed beside, each brought to one form; and our own."""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import nestruct
from nestruct.structures.solvers.monotone_path import edge_ends

CHECKED = 8  # instances whose total scores are compared
SHIFT = 100.0  # more than any score: makes scipy's weights positive, a second root arc too dear

# A batch ready to be solved: the call to time, and what reads total scores off its answers.
Task = tuple[Callable[[], Any], Callable[[Any], Any]]


class Solver(NamedTuple):
    name: str
    prepare: Callable[[Tensor, int], Task]  # raises ImportError where the peer is missing
    max_size: int = sys.maxsize
    any_batch: bool = False  # takes the batch that suits it best, not the largest
    on_gpu: bool = False  # computes wherever its scores are


class Problem(NamedTuple):
    name: str
    shape: Callable[[int], tuple[int, ...]]  # of one instance's scores
    solvers: list[Solver]  # ours first
    targets: dict[int, float | str]  # size -> microseconds, or the peer to be no slower than
    times_faster: float | None = None  # than the best peer, at all sizes
    scores_of: Callable[[Tensor], Tensor] = Tensor.clone  # makes scores of Gaussian ones
    steps: Callable[[int], float] | None = None  # how often something is added and compared
    exponentials: Callable[[int], float] | None = None
    passes: int = 2  # how often numbers as many as scores are read or written, at least


def ours(
    structure_of: Callable[[int], Any], of: Callable[[Tensor], Tensor] = Tensor.clone
) -> Solver:
    def prepare(scores: Tensor, n: int) -> Task:
        structure, scores = structure_of(n), of(scores)

        def totals(z: Tensor) -> Tensor:
            if not structure.contains(z[:CHECKED]).all():
                sys.exit(f"{structure!r}: our own answer is not a member.")
            return (z[:CHECKED] * scores[:CHECKED]).flatten(1).sum(1)

        return lambda: structure.argmax(scores), totals

    return Solver("ours", prepare, on_gpu=True)


def through_marginals(scores: Tensor, marginals_of: Callable) -> Callable[[], Tensor]:
    """Marginals, and the gradient of a loss of theirs; returns the marginals."""
    slope = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).to(scores.device)

    def run() -> Tensor:
        inner = scores.detach().requires_grad_()
        marginals = marginals_of(inner)
        torch.autograd.grad((marginals * slope).sum(), inner)
        return marginals.detach()

    return run


def expected(given: Tensor) -> Callable[[Tensor], Tensor]:
    """What members or marginals score."""
    return lambda z: (z[:CHECKED] * given[:CHECKED]).flatten(1).sum(1)


def our_marginals(structure_of: Callable[[int], Any]) -> Solver:
    def prepare(scores: Tensor, n: int) -> Task:
        return through_marginals(scores, structure_of(n).marginals), expected(scores)

    return Solver("ours", prepare, on_gpu=True)


def _whatever_size(structure: nestruct.Structure, n: int) -> nestruct.Structure:
    """The structure, which takes any number of words."""
    return structure


def dependency_trees(single_root: bool) -> list[Problem]:
    rule = "single root" if single_root else "several roots"
    eisner, mst = partial(supar, single_root, True), partial(supar, single_root, False)
    inside, laplacian = (partial(supar_marginals, single_root, kind) for kind in (True, False))
    structures = {
        "projective": nestruct.ProjectiveTree(single_root),
        "non-projective": nestruct.NonProjectiveTree(single_root),
    }
    found = {name: ours(partial(_whatever_size, one)) for name, one in structures.items()}
    sums = {name: our_marginals(partial(_whatever_size, one)) for name, one in structures.items()}
    projective = [found["projective"], Solver("supar", eisner, any_batch=True, on_gpu=True)]
    free = [found["non-projective"]]
    free += [Solver("networkx", partial(networkx_arborescence, single_root), max_size=50)]
    free += [Solver("supar", mst, on_gpu=True)]
    likely = [sums["projective"], Solver("supar", inside, any_batch=True, on_gpu=True)]
    anywhere = [sums["non-projective"], Solver("supar", laplacian, any_batch=True, on_gpu=True)]
    more = f"{rule}: marginals, forward and backward"

    def shape(n: int) -> tuple[int, ...]:
        return (n + 1, n + 1)

    def spans(n: int) -> float:
        return n**3 / 2

    return [
        Problem(f"projective tree, {rule}", shape, projective, {25: 12, 50: 60}, steps=spans),
        Problem(f"projective tree, {more}", shape, likely, {}, passes=5),
        Problem(f"non-projective tree, {rule}", shape, free, {25: 5, 50: 20}),
        Problem(f"non-projective tree, {more}", shape, anywhere, {}, passes=5),
    ]


def supar_marginals(single_root: bool, projective: bool, scores: Tensor, n: int) -> Task:
    structs = import_module("supar.structs")
    warnings.filterwarnings("ignore", module="supar")
    crf = structs.DependencyCRF if projective else structs.MatrixTree
    arcs = scores.mT.contiguous()  # dependents x heads
    lengths = torch.full((len(scores),), n, device=scores.device)

    def marginals_of(inner: Tensor) -> Tensor:
        return crf(inner, lengths, multiroot=not single_root).marginals

    return through_marginals(arcs, marginals_of), expected(arcs)


def negative(scores: Tensor) -> Tensor:
    """Costs of paths: what shortest-path algorithms can take."""
    return -scores.abs()


def topk(k_of: Callable[[int], int]) -> Callable[[Tensor, int], Task]:
    return lambda scores, n: (lambda: scores.topk(k_of(n))[0], lambda best: best[:CHECKED].sum(1))


def looped(scores: Tensor, ready: Callable, solve: Callable, total: Callable) -> Task:
    """A peer that takes one instance per call, on one thread; ``total(scores, answer)``."""
    rows = scores.double().numpy()
    instances = [ready(row) for row in rows]
    return (
        lambda: [solve(instance) for instance in instances],
        lambda answers: [total(*pair) for pair in zip(rows[:CHECKED], answers, strict=False)],
    )


def upper(row: np.ndarray, n: int) -> np.ndarray:
    matrix = np.zeros((n, n))  # 0 is no edge, in all three libraries
    matrix[np.triu_indices(n, 1)] = row
    return matrix


def scipy_tree(scores: Tensor, n: int) -> Task:
    solve = import_module("scipy.sparse.csgraph").minimum_spanning_tree
    return looped(
        scores, lambda row: upper(SHIFT - row, n), solve, lambda _, z: SHIFT * z.nnz - z.sum()
    )


def networkx_tree(scores: Tensor, n: int) -> Task:
    networkx = import_module("networkx")
    return looped(
        scores,
        lambda row: networkx.from_numpy_array(upper(row, n)),
        lambda graph: list(networkx.maximum_spanning_edges(graph)),
        lambda _, edges: sum(edge[2]["weight"] for edge in edges),
    )


def rustworkx_tree(scores: Tensor, n: int) -> Task:
    rustworkx = import_module("rustworkx")
    return looped(
        scores,
        lambda row: rustworkx.PyGraph.from_adjacency_matrix(upper(-row, n)),
        partial(rustworkx.minimum_spanning_edges, weight_fn=float),
        lambda _, edges: -sum(edge[2] for edge in edges),
    )


def networkx_arborescence(single_root: bool, scores: Tensor, n: int) -> Task:
    networkx = import_module("networkx")
    arcs, dear = 1.0 - np.eye(n + 1), np.zeros((n + 1, n + 1))
    arcs[:, 0] = 0
    dear[0] = n * SHIFT * single_root  # it has no rule for a single root
    return looped(
        scores,
        lambda row: networkx.from_numpy_array(arcs * (row - dear), create_using=networkx.DiGraph),
        networkx.maximum_spanning_arborescence,
        lambda row, tree: sum(row[arc] for arc in tree.edges),
    )


def scipy_assignment(scores: Tensor, n: int) -> Task:
    solve = partial(import_module("scipy.optimize").linear_sum_assignment, maximize=True)
    return looped(scores, lambda row: row, solve, lambda row, answer: row[answer].sum())


def grid(moves: Any) -> Callable[[int], Any]:
    return lambda n: nestruct.GridPath(n, n, moves=moves, scores="edges")


def grid_paths(name: str, moves: str, scores: Tensor, n: int) -> Task:
    csgraph, networkx = import_module("scipy.sparse.csgraph"), import_module("networkx")
    sparse = import_module("scipy.sparse")
    first, last = (end.tolist() for end in edge_ends(grid(moves)(n).grid))
    directed, goal = moves == "monotone", n * n - 1

    def ready(row: np.ndarray) -> Any:
        costs = np.abs(row)
        if name == "scipy":
            there = sparse.csr_array((costs, (first, last)), shape=(n * n, n * n))
            return there if directed else there + there.T
        graph = networkx.DiGraph() if directed else networkx.Graph()
        graph.add_weighted_edges_from(zip(first, last, costs.tolist(), strict=True))
        return graph

    def solve(graph: Any) -> float:
        if name == "scipy":
            return csgraph.dijkstra(graph, indices=0)[-1]
        if name == "networkx":
            return networkx.dijkstra_path_length(graph, 0, goal)
        found = islice(networkx.shortest_simple_paths(graph, 0, goal, "weight"), 10)
        return sum(networkx.path_weight(graph, path, "weight") for path in found)

    return looped(scores, ready, solve, lambda _, length: -length)


def ten_best_paths(scores: Tensor, n: int) -> Task:
    structure, costs = grid("monotone")(n), negative(scores)
    return lambda: structure.kbest(costs, 10), lambda found: found[1][:, :CHECKED].sum(0)


def supar(single_root: bool, projective: bool, scores: Tensor, n: int) -> Task:
    structs, mst = import_module("supar.structs"), import_module("supar.structs.fn").mst
    warnings.filterwarnings("ignore", module="supar")  # an outdated way of indexing
    arcs = scores.mT.contiguous()  # dependents x heads
    words = (torch.arange(n + 1, device=scores.device) > 0).expand(len(scores), n + 1)

    def solve() -> Tensor:
        if not projective:
            return mst(arcs, words, multiroot=not single_root)
        # Detached each time, for it marks what it is given as requiring a gradient.
        return structs.DependencyCRF(arcs.detach(), multiroot=not single_root).argmax

    return solve, lambda z: scores[:CHECKED].gather(1, z[:CHECKED, None])[:, 0, 1:].sum(1)
