"""Microseconds per instance of every solver, beside its peers in the same run.

    python benchmarks/solvers.py [--device cuda] [--sizes 10,25,50,100] [--only NAME] [--batch 4096]
                                 [--threads 2] [--repeats 3] [--limit SECONDS] [--json FILE]
                                 [--clock wall]

On a machine that others use, ``--threads 1 --clock process`` times what the process itself
computes: wall-clock would tell how the others were doing.

The JSON file is added to, so the table can be measured in pieces: a row of the same problem and
size is replaced, and each row says which of the sessions it is of.

Scores are standard Gaussian, float32, the same for all solvers of a row, whose repeats take turns.
Warm-up and compilation do not count, nor does turning scores into a peer's own input (a ready
graph, float64). Every solver starts at a few instances and grows its batch up to ``--batch`` or
until a call lasts long enough (some peers then take the batch that was best for them); the batch is
printed. On the first instances every peer must reach our total score, else the run stops: the speed
of a wrong answer is worthless.

A peer that does not import is shown as 'not installed'; on a GPU only those that compute there are
asked. scipy and networkx come with the dev extra, rustworkx is a wheel; SuPar imports without its
heavy requirements:

    pip install rustworkx
    pip install --no-deps supar==1.1.4 nltk dill tqdm regex torch-struct==0.5

(or into a folder of its own, with ``--target``, that PYTHONPATH names).
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
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from solver_peers import (
    Problem,
    Solver,
    dependency_trees,
    grid,
    grid_paths,
    negative,
    networkx_tree,
    our_marginals,
    ours,
    rustworkx_tree,
    scipy_assignment,
    scipy_tree,
    ten_best_paths,
    topk,
)
from solver_programmes import dynamic_programmes
from torch import Tensor

import nestruct
from nestruct.structures.relaxations.exponential import exponentiate
from nestruct.training.run.environment import describe_environment

MAX_SCORES = 1 << 25  # in one batch: 128 MB
SECONDS = {True: 0.5, False: 0.1}  # the longest call aimed at: of what takes batches, or one by one
# There launches are most of a call, which takes no longer for 4,096 instances than for 64.
SECONDS_ON_GPU = 2.0
CLOCK = ["wall"]
PATH_PEERS = ("scipy", "networkx")
PACKAGES = "nestruct torch triton numba numpy scipy networkx rustworkx supar torch-struct"
# One H200, by its data sheet: memory, and float64 outside of tensor cores.
H200 = {"copy_gb_per_s": 4800.0, "flops_g_per_s": 34_000.0}


def problems() -> list[Problem]:
    def edges(n: int) -> tuple[int]:
        return (n * (n - 1) // 2,)

    def fifth(n: int) -> int:
        return max(1, n // 5)

    def arcs(n: int) -> tuple[int]:
        return (2 * n * (n - 1),)

    def subsets(n: int) -> nestruct.KSubset:
        return nestruct.KSubset(*edges(n), fifth(n))

    spanning = [ours(nestruct.SpanningTree), Solver("scipy", scipy_tree)]
    spanning += [Solver("networkx", networkx_tree), Solver("rustworkx", rustworkx_tree)]
    assignment = [ours(nestruct.Permutation), Solver("scipy", scipy_assignment)]
    # topk is no peer but a floor: it does not write the 0/1 answer.
    subset = [ours(subsets), Solver("topk", topk(fifth), on_gpu=True)]
    categorical = [ours(nestruct.Categorical), Solver("topk", topk(lambda n: 1), on_gpu=True)]
    paths = {moves: [ours(grid(moves))] for moves in ("monotone", "four", "eight")}
    for moves, solvers in paths.items():
        solvers += [Solver(name, partial(grid_paths, name, moves), 50) for name in PATH_PEERS]
    best = [Solver("ours", ten_best_paths, on_gpu=True)]
    best += [Solver("networkx", partial(grid_paths, "ten best", "monotone"), 25)]

    def path(moves: str, shape: Callable[[int], tuple[int, ...]]) -> Problem:
        name = "monotone path" if moves == "monotone" else f"path of {moves} moves"
        return Problem(name, shape, paths[moves], {}, 20, negative)

    def sums(name: str, shape: Callable[[int], tuple[int, ...]], structure_of: Any) -> Problem:
        solvers = [our_marginals(structure_of)]
        return Problem(f"{name}: marginals, forward and backward", shape, solvers, {}, passes=5)

    return [
        Problem("spanning tree", edges, spanning, {10: 1}),
        sums("spanning tree", edges, nestruct.SpanningTree),
        *dependency_trees(single_root=True),
        *dependency_trees(single_root=False),
        Problem("assignment", lambda n: (n, n), assignment, {25: "scipy"}),
        path("monotone", arcs),
        sums("monotone path", arcs, grid("monotone")),
        path("four", arcs),
        path("eight", lambda n: (2 * (n - 1) * (2 * n - 1),)),
        Problem("ten best monotone paths", arcs, best, {}, scores_of=negative),
        Problem("k-subset, n/5 of n(n-1)/2", edges, subset, {}),
        sums("k-subset, n/5 of n(n-1)/2", edges, subsets),
        Problem("categorical", lambda n: (n,), categorical, {}),
        *dynamic_programmes(),
    ]


def seconds_of(call: Callable[[], Any], calls: int = 1) -> float:
    wait()
    start = clock()
    for _ in range(calls):
        call()
    wait()
    return (clock() - start) / calls


def clock() -> float:
    return time.process_time() if CLOCK == ["process"] else time.perf_counter()


def wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@numba.njit(error_model="numpy")
def add_max(a, b, best, rounds):
    for _ in range(rounds):
        for i in range(len(a)):
            value = a[i] + b[i]
            best[i] = value if value > best[i] else best[i]


def machine_rates() -> dict[str, float]:
    """Per second with all threads, the best of 6: bytes copied, add-and-max steps, exponentials."""
    source = torch.ones(1 << 26)  # with its copy 512 MB: more than caches hold
    copy = torch.empty_like(source)
    copied = min(seconds_of(lambda: copy.copy_(source)) for _ in range(6))
    # 24 KB, so in L1. Compiled: numpy writes the sums back, which makes it slower than a solver.
    # One thread is measured, the others are taken to be as fast.
    a, b, best = np.random.default_rng(0).standard_normal((3, 2048), np.float32)
    added = min(seconds_of(lambda: add_max(a, b, best, 10_000)) for _ in range(6))
    small = np.full(2048, -1.0)
    raised = min(seconds_of(lambda: exponentiate(small), 1000) for _ in range(6))
    threads = torch.get_num_threads()
    return {
        "copy_gb_per_s": 2e-9 * source.nbytes / copied,
        "add_max_g_per_s": 1e-9 * threads * 10_000 * 2048 / added,
        "exponentials_g_per_s": 1e-9 * threads * 2048 / raised,
    }


def floors_us(problem: Problem, n: int, rates: dict[str, float]) -> dict[str, float]:
    """What an instance takes at least. A step is two operations, an exponential 30 (its kernel)."""
    floors = {"bytes": 4e-3 * problem.passes * math.prod(problem.shape(n)) / rates["copy_gb_per_s"]}
    if problem.steps is not None:
        rate = rates.get("add_max_g_per_s") or rates["flops_g_per_s"] / 2
        floors["steps"] = 1e-3 * problem.steps(n) / rate
    if problem.exponentials is not None:
        rate = rates.get("exponentials_g_per_s") or rates["flops_g_per_s"] / 30
        floors["exponentials"] = 1e-3 * problem.exponentials(n) / rate
    return floors


def fit_batch(solver: Solver, scores: Tensor, n: int) -> tuple[Callable, int, float, Any]:
    """Grows the batch while calls are short, which warms up; call, batch, seconds, totals."""
    solver.prepare(scores[:1], n)[0]()  # compiles
    tried: list[tuple[Callable, int, float, Any]] = []
    batch = min(len(scores), 64 if scores.is_cuda else 1)
    longest = SECONDS[solver.name == "ours" or solver.any_batch]
    longest = SECONDS_ON_GPU if scores.is_cuda else longest
    while True:
        try:
            call, totals = solver.prepare(scores[:batch], n)
            seconds = min(seconds_of(call), seconds_of(call))
        except torch.OutOfMemoryError:
            if not tried:
                raise
            break
        tried.append((call, batch, seconds, totals))
        if batch == len(scores) or seconds > longest / 4:
            break
        batch = min(4 * batch, len(scores))
    call, batch, seconds, totals = tried[-1]
    if solver.any_batch:
        call, batch, seconds, totals = min(tried, key=lambda task: task[2] / task[1])
    return call, batch, seconds, torch.as_tensor(totals(call())).double().cpu()


def time_solvers(problem: Problem, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """All solvers of a problem at one size: name -> its JSON row, or why there is none."""
    batch = max(1, min(options.batch, MAX_SCORES // math.prod(problem.shape(n))))
    scores = torch.randn(batch, *problem.shape(n), generator=torch.Generator().manual_seed(n))
    scores = problem.scores_of(scores.to(options.device))
    cells: dict[str, Any] = {}
    fitted = {}
    for solver in problem.solvers:
        if scores.is_cuda and not solver.on_gpu:
            continue
        if n > solver.max_size:
            cells[solver.name] = "too slow"
            continue
        try:
            fitted[solver.name] = fit_batch(solver, scores, n)
        except ImportError:
            cells[solver.name] = "not installed"
            continue
        except torch.OutOfMemoryError:
            cells[solver.name] = "out of memory"
            continue
        theirs, wanted = fitted[solver.name][3], fitted["ours"][3]
        count = min(len(theirs), len(wanted))
        if not torch.allclose(theirs[:count], wanted[:count], rtol=1e-3, atol=1e-4):
            sys.exit(f"{problem.name}, n={n}: {solver.name} totals {theirs}, ours {wanted}.")
    times: dict[str, list[float]] = {name: [] for name in fitted}
    for _ in range(options.repeats):
        for name, (call, count, seconds, _) in fitted.items():
            calls = max(1, int(0.02 / seconds))  # a repeat lasts 20 ms or more
            times[name].append(1e6 * seconds_of(call, calls) / count)
    for name, us in times.items():
        row = {"problem": problem.name, "n": n, "solver": name, "batch": fitted[name][1]}
        cells[name] = row | {"median_us": statistics.median(us), "min_us": min(us)}
    return cells


def verdict(problem: Problem, n: int, cells: dict[str, Any], device: str) -> str:
    """The bar and whether it is met; best times are compared with best times."""
    target, own = problem.targets.get(n), cells["ours"]
    peers = [cell for name, cell in cells.items() if name != "ours" and isinstance(cell, dict)]
    peers = [cell for cell in peers if cell["solver"] != "topk"]
    if peers and (device == "cuda" or problem.times_faster is not None):
        wanted = 5.0 if device == "cuda" else problem.times_faster
        times = min(cell["min_us"] for cell in peers) / own["min_us"]
        own["times_faster"] = times
        return f">= {wanted:g} times: {figure(times)}, {'met' if times >= wanted else 'MISSED'}"
    if target is None or device == "cuda":
        return ""
    wanted_text, peer = f"<= {target}", {"median_us": target}
    if isinstance(target, str):
        wanted_text, peer = f"no slower than {target}", cells[target]
    if isinstance(peer, str):
        return f"{wanted_text}: {peer}"
    return f"{wanted_text}: {'met' if own['median_us'] <= peer['median_us'] else 'MISSED'}"


def show(cell: dict[str, Any] | str) -> str:
    if isinstance(cell, str):
        return cell
    return f"{figure(cell['median_us'])} [{figure(cell['min_us'])}] x{cell['batch']}"


def figure(us: float) -> str:
    return f"{us:.3g}" if us < 100 else f"{us:,.0f}"


def environment(device: str) -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text() if info.exists() else "")
    facts: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    facts |= {"cpu": model[1] if model else platform.processor(), "cores": os.cpu_count()}
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    facts |= {"load": os.getloadavg()[0], "threads": torch.get_num_threads(), "clock": CLOCK[0]}
    installed = {found.name.lower(): found.version for found in importlib.metadata.distributions()}
    facts |= {"python": platform.python_version()}
    facts["commit"] = describe_environment(torch.device(device))["commit"] or "unknown"
    return facts | {package: installed.get(package) for package in PACKAGES.split()}


def write_json(path: Path, past: dict[str, list], facts: dict[str, Any], rows: list) -> None:
    """The rows with those of earlier sessions, in the order of the problems, a line for each."""
    order = [problem.name for problem in problems()]
    fresh = {(row["problem"], row["n"]) for row in rows}
    kept = [row for row in past["rows"] if (row["problem"], row["n"]) not in fresh]
    every = kept + [row | {"session": len(past["sessions"])} for row in rows]
    every.sort(key=lambda row: (order.index(row["problem"]), row["n"]))  # ours stay first
    sessions = [*past["sessions"], facts]
    parts = (",\n  ".join(json.dumps(each) for each in some) for some in (sessions, every))
    path.write_text('{{"sessions": [\n  {}\n ],\n "rows": [\n  {}\n ]\n}}\n'.format(*parts))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the solvers beside their peers.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--sizes", help="10,25,50,100; on a GPU 25,50,100")
    parser.add_argument("--only", default="", help="problems whose name has this: 'chain|tree'")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", default="wall", choices=("wall", "process"))
    parser.add_argument("--limit", type=float, default=math.inf, help="start no row after seconds")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    start, on_gpu = time.monotonic(), options.device == "cuda"
    past: dict[str, list] = {"sessions": [], "rows": []}
    if options.json and options.json.exists():
        past = json.loads(options.json.read_text())
    sizes = options.sizes or ("25,50,100" if on_gpu else "10,25,50,100")
    torch.set_num_threads(options.threads)
    CLOCK[:] = [options.clock]
    facts = environment(options.device) | (H200 if on_gpu else machine_rates())
    for name, value in facts.items():
        print(f"{name}: {figure(value) if isinstance(value, float) else value}")
    print("\nMicroseconds per instance, median [best] xbatch; compilation excluded.")
    print("Floors: 'bytes', scores and answers read or written once at the speed of a large copy")
    print("(small batches stay in cache and can beat it); 'steps', add-and-max in L1;")
    print("'exponentials' of sums, one per edge and pass over them.")
    rows, left_out = [], []
    for problem in (each for each in problems() if re.search(options.only, each.name)):
        names = [each.name for each in problem.solvers if each.on_gpu or not on_gpu]
        lines = [["n", *names, "floors", "bar"]]
        for n in map(int, sizes.split(",")):
            if time.monotonic() - start > options.limit:
                left_out.append(f"{problem.name}, n={n}")
                continue
            cells = time_solvers(problem, n, options)
            floors = floors_us(problem, n, facts)
            target = verdict(problem, n, cells, options.device)
            cells["ours"] |= {"floors_us": floors, "bar": target}
            floor = ", ".join(f"{figure(us)} {name}" for name, us in floors.items())
            lines.append([str(n), *(show(cells[name]) for name in names), floor, target])
            rows += [cell for cell in cells.values() if isinstance(cell, dict)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        print(f"\n{problem.name}")
        for line in lines:
            print("  ".join(text.rjust(w) for text, w in zip(line, widths, strict=True)).rstrip())
        sys.stdout.flush()
        if options.json:  # each time, so that what is stopped early leaves what it has
            facts["seconds"] = time.monotonic() - start
            write_json(options.json, past, facts, rows)
    print(f"\n{time.monotonic() - start:.0f} seconds; left out: {', '.join(left_out) or 'nothing'}")


if __name__ == "__main__":
    main()
