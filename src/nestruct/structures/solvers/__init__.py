"""Batched exact solvers: arrays in, 0/1 arrays out; no autograd, no torch modules.

One file per algorithm, each with its CPU kernel (numba), its batched torch form where there is one,
and a plain twin that both are tested against. ``dispatch.solve`` is the one way in.
"""

from nestruct.structures.solvers.clock import (
    count_solved,
    num_solved,
    num_unanswered,
    solver_counts,
    solver_seconds,
)
from nestruct.structures.solvers.dispatch import SOLVERS, solve

__all__ = [
    "SOLVERS",
    "count_solved",
    "num_solved",
    "num_unanswered",
    "solve",
    "solver_counts",
    "solver_seconds",
]
