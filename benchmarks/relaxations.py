"""Milliseconds per sentence of DPP's and SparseMAP's relaxations, forward and backward.

    python benchmarks/relaxations.py [--sizes 10,22,25,50,100,250] [--batch 128] [--threads 1]
                                     [--repeats 5] [--device cpu] [--json FILE] [--quick]

Scores are normal + Gumbel, float32, all words used; batches are smaller where sentences are long.
The repeats of all methods of a row take turns; warm-up and compilation do not count. One thread
unless told: on a machine that others use too, threads that wait for each other are what is timed.
Beside them,
in the same run: our hard solvers (what a forward pass of NES needs), our `relax` of projective
trees (marginals of the Gibbs law by autograd), and SuPar's Eisner where it is installed (see
`benchmarks/solvers.py`): its argmax, and its marginals with their derivative.

'published' are figures of others' code on other machines, as `anchors.md` of this project has them
(November 2026, 2 cores of an AMD EPYC): the authors' DPP (one sentence at a time, float64), and the
two C++ implementations of SparseMAP. They are orders of magnitude, not a race.
"""

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nestruct import NonProjectiveTree, ProjectiveTree
from nestruct.structures import sparse_map

MAX_SCORES = 1 << 20  # in one batch
Relaxation = Callable[[Tensor], Tensor]

# ms per sentence by number of words; forward, then forward and backward.
PUBLISHED = {
    "dpp": {
        "authors": {
            10: (2.29, 5.45),
            22: (9.8, 22.0),
            25: (12.6, 28.8),
            50: (50.7, 115.0),
            100: (222.0, 488.0),
            250: (1484.0, 3918.0),
        }
    },
    "sparse map": {
        "vene/sparsemap": {
            10: (0.21, 0.46),
            22: (0.88, 1.20),
            25: (1.10, 1.46),
            50: (7.9, 9.0),
            100: (41.1, 44.8),
            250: (269.0, 287.0),
        },
        "lp-sparsemap": {
            10: (0.16, 0.30),
            22: (0.66, 0.81),
            25: (0.72, 1.04),
            50: (3.7, 4.0),
            100: (19.5, 17.0),
            250: (84.6, 86.2),
        },
    },
}


def relaxations(single_root: bool) -> dict[str, Relaxation]:
    projective, free = ProjectiveTree(single_root), NonProjectiveTree(single_root)
    return {
        "dpp": lambda scores: projective.soft_argmax(scores, 1.0),
        "sparse map": partial(sparse_map, free),
        "sparse map, projective": partial(sparse_map, projective),
        "marginals by autograd": lambda scores: projective.relax(scores, 1.0),
    }


def solvers(single_root: bool) -> dict[str, Relaxation]:
    return {
        "eisner": ProjectiveTree(single_root).argmax,
        "edmonds": NonProjectiveTree(single_root).argmax,
    }


def supar(single_root: bool) -> dict[str, tuple[Relaxation, bool]]:
    """SuPar's argmax, and its marginals, which are differentiable; nothing where it is missing."""
    try:
        crf = import_module("supar.structs").DependencyCRF
    except ImportError:
        return {}
    warnings.filterwarnings("ignore", module="supar")  # an outdated way of indexing

    def argmax(scores: Tensor) -> Tensor:
        return crf(scores.mT.detach().contiguous(), multiroot=not single_root).argmax

    def marginals(scores: Tensor) -> Tensor:
        return crf(scores.mT.contiguous(), multiroot=not single_root).marginals

    return {"supar eisner argmax": (argmax, False), "supar eisner marginals": (marginals, True)}


def tasks(scores: Tensor, single_root: bool) -> dict[str, dict[str, Callable[[], Any]]]:
    """Name -> what to time: the forward pass, and where it has one with the backward pass."""
    slope = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)).to(scores)

    def both(relax: Relaxation) -> None:
        given = scores.clone().requires_grad_()
        z = relax(given)
        torch.autograd.grad(z, given, slope[..., : z.shape[-1]])

    def alone(relax: Relaxation) -> None:
        with torch.no_grad():
            relax(scores)

    found: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, relax in relaxations(single_root).items():
        found[name] = {"forward": partial(alone, relax), "both": partial(both, relax)}
    for name, solve in solvers(single_root).items():
        found[name] = {"forward": partial(alone, solve)}
    for name, (function, differentiable) in supar(single_root).items():
        found[name] = {"forward": partial(function, scores)}
        if differentiable:
            found[name]["both"] = partial(both, function)
    if scores.shape[-1] > 51:  # autograd keeps all of it: minutes, gigabytes
        del found["marginals by autograd"]
        found = {name: passes for name, passes in found.items() if not name.startswith("supar")}
    return found


def seconds_of(call: Callable[[], Any], device: str) -> float:
    start = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def time_size(words: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    batch = max(2, min(options.batch, MAX_SCORES // (words + 1) ** 2))
    generator = torch.Generator().manual_seed(words)
    scores = torch.randn(batch, words + 1, words + 1, generator=generator)
    scores -= torch.empty_like(scores).exponential_(generator=generator).log()
    calls = tasks(scores.to(options.device), options.single_root)
    times: dict[tuple[str, str], list[float]] = {}
    for repeat in range(options.repeats + 1):
        for name, passes in calls.items():
            for kind, call in passes.items():
                seconds = seconds_of(call, options.device)
                if repeat:  # the first compiles
                    times.setdefault((name, kind), []).append(1e3 * seconds / batch)
    rows = []
    for name, passes in calls.items():
        row: dict[str, Any] = {"method": name, "words": words, "batch": batch}
        for kind in passes:
            row |= {f"{kind}_ms": statistics.median(times[name, kind])}
            row |= {f"{kind}_min_ms": min(times[name, kind])}
        for peer, figures in PUBLISHED.get(name, {}).items():
            if words in figures:
                forward, both = figures[words]
                row[f"published {peer}"] = {"forward_ms": forward, "both_ms": both}
        rows.append(row)
    return rows


def show(row: dict[str, Any]) -> str:
    text = f"{row['words']:>5} {row['method']:<24} x{row['batch']:<4} {row['forward_ms']:>10.4f}"
    text += f" {row['both_ms']:>10.4f}" if "both_ms" in row else " " * 11
    for name, figures in row.items():
        if name.startswith("published"):
            text += f"   {name.split()[1]} {figures['forward_ms']:g} {figures['both_ms']:g}"
            text += f" ({figures['both_ms'] / row['both_ms']:.0f}x)"
    return text


def environment(options: argparse.Namespace) -> dict[str, Any]:
    facts: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    facts |= {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    facts |= {"load": os.getloadavg()[0], "threads": torch.get_num_threads()}
    if options.device != "cpu":
        facts["gpu"] = torch.cuda.get_device_name()
    return facts | {"torch": torch.__version__, "single_root": options.single_root}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what DPP and SparseMAP decode.")
    parser.add_argument("--sizes", default="10,22,25,50,100,250")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--single-root", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="10 and 25 words, 2 repeats")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.repeats = "10,25", 2
    torch.set_num_threads(options.threads)
    facts = environment(options)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    print("\nMilliseconds per sentence, medians: forward; forward and backward; published figures")
    print("of others (and how many times ours their forward and backward takes).")
    rows = []
    for words in map(int, options.sizes.split(",")):
        for row in time_size(words, options):
            print(show(row), flush=True)
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps({"environment": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
