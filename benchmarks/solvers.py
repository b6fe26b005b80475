"""Microseconds per instance of every solver, beside its peers in the same run.

    python benchmarks/solvers.py [--sizes 10,25,50,100,250] [--batch 4096] [--threads 2]
                                 [--repeats 5] [--json FILE] [--quick]

Scores are standard Gaussian, float32, the same for all solvers of a row. The repeats take turns
between those solvers. Warm-up and compilation do not count, nor does turning scores into a peer's
own input (a ready graph, float64). Every solver starts at one instance and doubles its batch up to
``--batch`` or until a call lasts long enough; the batch is printed. On the first instances every
peer must reach our total score, else the run stops: a fast wrong answer is worthless.

A peer that does not import is shown as 'not installed'. scipy and networkx come with the dev extra,
rustworkx and ufal.chu_liu_edmonds are wheels; SuPar without its heavy requirements:

    pip install rustworkx ufal.chu_liu_edmonds
    pip install --no-deps supar==1.1.4 nltk dill tqdm
"""

import argparse
import importlib
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

import nestruct

MAX_SCORES = 1 << 26  # in one batch: 256 MB
CHECKED = 8  # instances whose total scores are compared
SHIFT = 100.0  # more than any score: makes scipy's weights positive, a second root arc too dear
PACKAGES = "nestruct torch numba numpy scipy networkx rustworkx ufal.chu_liu_edmonds supar".split()

# A batch ready to be solved: the call to time, and what reads total scores off its answer.
Task = tuple[Callable[[], Any], Callable[[Any], Any]]


class Solver(NamedTuple):
    name: str
    prepare: Callable[[Tensor, int], Task]  # raises ImportError where the peer is missing
    max_size: int = sys.maxsize
    max_batch: int = sys.maxsize
    seconds: float = 0.2  # the longest call aimed at


class Problem(NamedTuple):
    name: str
    shape: Callable[[int], tuple[int, ...]]  # of one instance's scores
    solvers: list[Solver]  # ours first
    targets: dict[int, float | str]  # size -> microseconds, or the peer to be no slower than


def ours(structure_of: Callable[[int], Any]) -> Solver:
    def prepare(scores: Tensor, n: int) -> Task:
        structure = structure_of(n)

        def totals(z: Tensor) -> Tensor:
            if not structure.contains(z[:CHECKED]).all():
                sys.exit(f"{structure!r}: our own answer is not a member.")
            return (z[:CHECKED] * scores[:CHECKED]).flatten(1).sum(1)

        return lambda: structure.argmax(scores), totals

    return Solver("ours", prepare, seconds=1.0)


def looped(scores: Tensor, ready: Callable, solve: Callable, total: Callable) -> Task:
    """A peer that takes one instance per call, on one thread; ``total(scores, answer)``."""
    rows = scores.double().numpy()
    instances = [ready(row) for row in rows]
    return (
        lambda: [solve(instance) for instance in instances],
        lambda answers: [total(*pair) for pair in zip(rows[:CHECKED], answers, strict=False)],
    )


def scipy_tree(scores: Tensor, n: int) -> Task:
    from scipy.sparse.csgraph import minimum_spanning_tree

    def ready(row: np.ndarray) -> np.ndarray:
        dense = np.zeros((n, n))  # 0 is no edge
        dense[np.triu_indices(n, 1)] = SHIFT - row
        return dense

    return looped(scores, ready, minimum_spanning_tree, lambda _, z: SHIFT * z.nnz - z.sum())


def graph_tree(scores: Tensor, n: int, library: str) -> Task:
    module = importlib.import_module(library)
    low, high = np.triu_indices(n, 1).tolist() if False else map(list, np.triu_indices(n, 1))
    return module, low, high


def problems() -> list[Problem]:
    return []
