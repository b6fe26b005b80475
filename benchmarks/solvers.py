"""Microseconds per instance of every solver, beside its peers in the same run.

    python benchmarks/solvers.py [--sizes 10,25,50,100,250] [--batch 4096] [--threads 2]
                                 [--repeats 5] [--json FILE] [--quick]

Scores are standard Gaussian, float32, the same for all solvers of a row, whose repeats take turns.
Warm-up and compilation do not count, nor does turning scores into a peer's own input (a ready
graph, float64). Every solver starts at one instance and doubles its batch up to ``--batch`` or
until a call lasts long enough (SuPar's Eisner then takes the batch that was best for it); the batch
is printed. On the first instances every peer must reach our total score, else the run stops: the
speed of a wrong answer is worthless.

A peer that does not import is shown as 'not installed'. scipy and networkx come with the dev extra,
rustworkx is a wheel; SuPar imports without its heavy requirements:

    pip install rustworkx
    pip install --no-deps supar==1.1.4 nltk dill tqdm regex torch-struct==0.5
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

import nestruct
from nestruct.structures.solvers.monotone_path import edge_ends

MAX_SCORES = 1 << 26  # in one batch: 256 MB
PATH_PEERS = ("scipy", "networkx")
CHECKED = 8  # instances whose total scores are compared
SHIFT = 100.0  # more than any score: makes scipy's weights positive, a second root arc too dear
PACKAGES = "nestruct torch numba numpy scipy networkx rustworkx supar torch-struct"

# A batch ready to be solved: the call to time, and what reads total scores off its answers.
Task = tuple[Callable[[], Any], Callable[[Any], Any]]


class Solver(NamedTuple):
    name: str
    prepare: Callable[[Tensor, int], Task]  # raises ImportError where the peer is missing
    max_size: int = sys.maxsize
    seconds: float = 0.2  # the longest call aimed at
    any_batch: bool = False  # takes the batch that suits it best, not the largest


class Problem(NamedTuple):
    name: str
    shape: Callable[[int], tuple[int, ...]]  # of one instance's scores
    solvers: list[Solver]  # ours first
    targets: dict[int, float | str]  # size -> microseconds, or the peer to be no slower than


def problems() -> list[Problem]:
    def edges(n: int) -> tuple[int]:
        return (n * (n - 1) // 2,)

    def fifth(n: int) -> int:
        return max(1, n // 5)

    spanning = [ours(nestruct.SpanningTree), Solver("scipy", scipy_tree)]
    spanning += [Solver("networkx", networkx_tree), Solver("rustworkx", rustworkx_tree)]
    assignment = [ours(nestruct.Permutation), Solver("scipy", scipy_assignment)]
    # topk is no peer but a floor: it does not write the 0/1 answer.
    subset = [ours(lambda n: nestruct.KSubset(*edges(n), fifth(n))), Solver("topk", topk(fifth))]
    categorical = [ours(nestruct.Categorical), Solver("topk", topk(lambda n: 1))]
    paths = {moves: [ours(grid(moves), negative)] for moves in ("monotone", "eight")}
    for moves, solvers in paths.items():
        solvers += [Solver(name, partial(grid_paths, name, moves), 50) for name in PATH_PEERS]
    best = [Solver("ours", ten_best_paths, seconds=1.0)]
    best += [Solver("networkx", partial(grid_paths, "ten best", "monotone"), 25)]
    return [
        Problem("spanning tree", edges, spanning, {10: 1}),
        *dependency_trees(single_root=True),
        *dependency_trees(single_root=False),
        Problem("assignment", lambda n: (n, n), assignment, {25: "scipy"}),
        Problem("monotone path", lambda n: (2 * n * (n - 1),), paths["monotone"], {}),
        Problem("path of 8 moves", lambda n: (2 * (n - 1) * (2 * n - 1),), paths["eight"], {}),
        Problem("ten best monotone paths", lambda n: (2 * n * (n - 1),), best, {}),
        Problem("k-subset, n/5 of n(n-1)/2", edges, subset, {}),
        Problem("categorical", lambda n: (n,), categorical, {}),
        *dynamic_programmes(),
    ]


def dynamic_programmes() -> list[Problem]:
    """Each argmax, and each gradient of the marginals (``totals`` are then log-partitions)."""
    problems = []
    kinds: list[tuple[str, Callable, Callable, Callable | None]] = [
        (
            f"linear chain, K={states}",
            lambda n, states=states: (n - 1, states, states),
            lambda n, states=states: nestruct.LinearChain(states),
            torch_struct_chain,
        )
        for states in (8, 32)
    ]
    kinds += [
        (
            f"semi-Markov, L=8, K={states}",
            lambda n, states=states: (n, 8, states),
            lambda n, states=states: nestruct.SemiMarkov(states, 8),
            None,
        )
        for states in (8, 32)
    ]
    kinds += [("alignment", lambda n: (n, n), lambda n: nestruct.Alignment(), None)]
    tree = "constituency tree"
    kinds += [(tree, lambda n: (n, n), lambda n: nestruct.ConstituencyTree(), supar_spans)]
    for name, shape, structure_of, peer in kinds:
        argmax, sums = [ours(structure_of)], [our_marginals(structure_of)]
        if peer is not None:
            label = "supar" if peer is supar_spans else "torch-struct"
            argmax += [Solver(label, partial(peer, True), any_batch=True)]
            sums += [Solver(label, partial(peer, False), any_batch=True)]
        problems += [Problem(name, shape, argmax, {})]
        problems += [Problem(f"{name}: marginals, forward and backward", shape, sums, {})]
    return problems


def through_marginals(scores: Tensor, marginals_of: Callable) -> Callable[[], Tensor]:
    """Marginals, and the gradient of a loss of theirs; returns the marginals."""
    slope = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0))

    def run() -> Tensor:
        inner = scores.detach().requires_grad_()
        marginals = marginals_of(inner)
        torch.autograd.grad((marginals * slope).sum(), inner)
        return marginals.detach()

    return run


def our_marginals(structure_of: Callable[[int], Any]) -> Solver:
    def prepare(scores: Tensor, n: int) -> Task:
        run = through_marginals(scores, structure_of(n).marginals)
        return run, lambda found: (found[:CHECKED] * scores[:CHECKED]).flatten(1).sum(1)

    return Solver("ours", prepare, seconds=1.0)


def torch_struct_chain(argmax: bool, scores: Tensor, n: int) -> Task:
    chain = import_module("torch_struct").LinearChainCRF
    lengths = torch.full((len(scores),), n)
    given = scores.mT.contiguous()  # next state x state

    def total(z: Tensor) -> Tensor:
        return (z[:CHECKED] * given[:CHECKED]).flatten(1).sum(1)

    if argmax:
        return lambda: chain(given.detach(), lengths=lengths).argmax, total
    return through_marginals(given, lambda s: chain(s, lengths=lengths).marginals), total


def supar_spans(argmax: bool, scores: Tensor, n: int) -> Task:
    tree = import_module("supar.structs").ConstituencyCRF
    # Its spans are between words: the n words of ours are n + 1 places of its.
    given = torch.nn.functional.pad(scores, (1, 0, 0, 1))
    lengths = torch.full((len(scores),), n)

    def marginals_of(padded: Tensor) -> Tensor:
        return tree(padded, lengths).marginals

    def total(z: Tensor) -> Tensor:
        return (z[:CHECKED] * given[:CHECKED]).flatten(1).sum(1)

    if argmax:
        return lambda: tree(given.detach(), lengths).argmax, lambda spans: brackets(spans, given)
    return through_marginals(given, marginals_of), total


def brackets(spans: list, given: Tensor) -> Tensor:
    rows = zip(spans[:CHECKED], given, strict=False)
    return torch.stack([sum(row[i, j] for i, j, *_ in found) for found, row in rows])


def dependency_trees(single_root: bool) -> list[Problem]:
    rule = "single root" if single_root else "several roots"
    eisner, mst = partial(supar, single_root, True), partial(supar, single_root, False)
    projective = [ours(lambda n: nestruct.ProjectiveTree(single_root))]
    projective += [Solver("supar", eisner, any_batch=True)]
    free = [ours(lambda n: nestruct.NonProjectiveTree(single_root))]
    free += [Solver("networkx", partial(networkx_arborescence, single_root), max_size=50)]
    free += [Solver("supar", mst)]
    return [
        Problem(f"projective tree, {rule}", lambda n: (n + 1, n + 1), projective, {25: 12, 50: 60}),
        Problem(f"non-projective tree, {rule}", lambda n: (n + 1, n + 1), free, {25: 5, 50: 20}),
    ]


def negative(scores: Tensor) -> Tensor:
    """Costs of paths: what shortest-path algorithms can take."""
    return -scores.abs()


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

    return Solver("ours", prepare, seconds=1.0)


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
    first, last = (end.tolist() for end in edge_ends(grid(moves)(n).grid))
    directed, goal = moves == "monotone", n * n - 1

    def ready(row: np.ndarray) -> Any:
        graph = networkx.DiGraph() if directed else networkx.Graph()
        graph.add_weighted_edges_from(zip(first, last, np.abs(row).tolist(), strict=True))
        return networkx.to_scipy_sparse_array(graph, range(n * n)) if name == "scipy" else graph

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
    words = (torch.arange(n + 1) > 0).expand(len(scores), n + 1)

    def solve() -> Tensor:
        if not projective:
            return mst(arcs, words, multiroot=not single_root)
        # Detached each time, for it marks what it is given as requiring a gradient.
        return structs.DependencyCRF(arcs.detach(), multiroot=not single_root).argmax

    return solve, lambda z: scores[:CHECKED].gather(1, z[:CHECKED, None])[:, 0, 1:].sum(1)


def seconds_of(call: Callable[[], Any], calls: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


@numba.njit(error_model="numpy")
def add_max(a, b, best, rounds):
    for _ in range(rounds):
        for i in range(len(a)):
            value = a[i] + b[i]
            best[i] = value if value > best[i] else best[i]


def machine_rates() -> dict[str, float]:
    """Bytes moved by a copy, and add-and-max steps, per second with all threads; the best of 6."""
    source = torch.ones(1 << 26)  # with its copy 512 MB: more than caches hold
    copy = torch.empty_like(source)
    copied = min(seconds_of(lambda: copy.copy_(source)) for _ in range(6))
    # 24 KB, so in L1. Compiled: numpy writes the sums back, which makes it slower than a solver.
    # One thread is measured, the others are taken to be as fast.
    a, b, best = np.random.default_rng(0).standard_normal((3, 2048), np.float32)
    added = min(seconds_of(lambda: add_max(a, b, best, 10_000)) for _ in range(6))
    steps = torch.get_num_threads() * 10_000 * 2048 / added
    return {"copy_gb_per_s": 2e-9 * source.nbytes / copied, "add_max_g_per_s": 1e-9 * steps}


def fit_batch(solver: Solver, scores: Tensor, n: int) -> tuple[Callable, int, float, Any]:
    """Doubles the batch while calls are short, which warms up; call, batch, seconds, totals."""
    solver.prepare(scores[:1], n)[0]()  # compiles
    batch, tried = 1, []
    while True:
        call, totals = solver.prepare(scores[:batch], n)
        seconds = min(seconds_of(call), seconds_of(call))
        tried.append((call, batch, seconds, totals))
        if batch == len(scores) or seconds > solver.seconds / 2:
            break
        batch = min(2 * batch, len(scores))
    if solver.any_batch:
        call, batch, seconds, totals = min(tried, key=lambda task: task[2] / task[1])
    return call, batch, seconds, torch.as_tensor(totals(call())).double()


def time_solvers(problem: Problem, n: int, batch: int, repeats: int) -> dict[str, Any]:
    """All solvers of a problem at one size: name -> its JSON row, or why there is none."""
    batch = max(1, min(batch, MAX_SCORES // math.prod(problem.shape(n))))
    scores = torch.randn(batch, *problem.shape(n), generator=torch.Generator().manual_seed(n))
    cells: dict[str, Any] = {}
    fitted = {}
    for solver in problem.solvers:
        if n > solver.max_size:
            cells[solver.name] = "too slow"
            continue
        try:
            fitted[solver.name] = fit_batch(solver, scores, n)
        except ImportError:
            cells[solver.name] = "not installed"
            continue
        theirs, wanted = fitted[solver.name][3], fitted["ours"][3]
        count = min(len(theirs), len(wanted))
        if not torch.allclose(theirs[:count], wanted[:count], rtol=1e-4, atol=1e-6):
            sys.exit(f"{problem.name}, n={n}: {solver.name} totals {theirs}, ours {wanted}.")
    times: dict[str, list[float]] = {name: [] for name in fitted}
    for _ in range(repeats):
        for name, (call, count, seconds, _) in fitted.items():
            calls = max(1, int(0.02 / seconds))  # a repeat lasts 20 ms or more
            times[name].append(1e6 * seconds_of(call, calls) / count)
    for name, us in times.items():
        row = {"problem": problem.name, "n": n, "solver": name, "batch": fitted[name][1]}
        cells[name] = row | {"median_us": statistics.median(us), "min_us": min(us)}
    return cells


def verdict(target: float | str | None, cells: dict[str, Any]) -> str:
    if target is None:
        return ""
    wanted, peer = f"<= {target}", {"median_us": target}
    if isinstance(target, str):
        wanted, peer = f"no slower than {target}", cells[target]
    if isinstance(peer, str):
        return f"{wanted}: {peer}"
    return f"{wanted}: {'met' if cells['ours']['median_us'] <= peer['median_us'] else 'MISSED'}"


def show(cell: dict[str, Any] | str) -> str:
    if isinstance(cell, str):
        return cell
    return f"{figure(cell['median_us'])} [{figure(cell['min_us'])}] x{cell['batch']}"


def figure(us: float) -> str:
    return f"{us:.3g}" if us < 100 else f"{us:,.0f}"


def environment() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text() if info.exists() else "")
    facts: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    facts |= {"cpu": model[1] if model else platform.processor(), "cores": os.cpu_count()}
    facts |= {"load": os.getloadavg()[0], "threads": torch.get_num_threads()}
    installed = {found.name.lower(): found.version for found in importlib.metadata.distributions()}
    facts |= {"python": platform.python_version()}
    return facts | {package: installed.get(package) for package in PACKAGES.split()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the solvers beside their peers.")
    parser.add_argument("--sizes", default="10,25,50,100,250")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="n = 10 and 25, 2 repeats")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.repeats = "10,25", 2
    torch.set_num_threads(options.threads)
    facts = environment() | machine_rates()
    for name, value in facts.items():
        print(f"{name}: {figure(value) if isinstance(value, float) else value}")
    print("\nMicroseconds per instance, median [best] xbatch; compilation excluded.")
    print("Floors: 'bytes', scores read once and 0/1 written once at the speed of a large copy")
    print("(small batches stay in cache and can beat it); 'steps', n^3/2 add-and-max in L1.")
    rows = []
    for problem in problems():
        names = [solver.name for solver in problem.solvers]
        lines = [["n", *names, "floors", "target"]]
        for n in map(int, options.sizes.split(",")):
            cells = time_solvers(problem, n, options.batch, options.repeats)
            floors = {"bytes": 8e-3 * math.prod(problem.shape(n)) / facts["copy_gb_per_s"]}
            if problem.name.startswith("projective"):
                floors["steps"] = 1e-3 * n**3 / 2 / facts["add_max_g_per_s"]
            target = verdict(problem.targets.get(n), cells)
            cells["ours"] |= {"floors_us": floors, "target": target}
            floor = ", ".join(f"{figure(us)} {name}" for name, us in floors.items())
            lines.append([str(n), *(show(cells[name]) for name in names), floor, target])
            rows += [cell for cell in cells.values() if isinstance(cell, dict)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        print(f"\n{problem.name}")
        for line in lines:
            print("  ".join(text.rjust(w) for text, w in zip(line, widths, strict=True)).rstrip())
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps({"environment": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
