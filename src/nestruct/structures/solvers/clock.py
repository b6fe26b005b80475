"""How long solvers have run on the CPU, and how many instances they were given, for reports."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_seconds = 0.0
_instances = 0
_looked_up = 0
_unanswered = 0


def solver_seconds() -> float:
    """Wall-clock seconds spent in CPU solvers since the start of the process."""
    return _seconds


def num_solved() -> int:
    """Instances given to an argmax since the start of the process, or noted as such."""
    return _instances


def solver_counts(since: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Instances solved, and instances whose solution was known, ``since`` it returned that."""
    return _instances - since[0], _looked_up - since[1]


def count_looked_up(instances: int) -> None:
    """Notes that so many instances were looked up instead of being solved."""
    global _looked_up
    _looked_up += instances


def count_solved(instances: int) -> None:
    """Notes that so many instances were solved."""
    global _instances
    _instances += instances


def count_unanswered(instances: int) -> None:
    """Notes that solvers of others had no answer for so many instances."""
    global _unanswered
    _unanswered += instances


def num_unanswered() -> int:
    """Instances without an answer since the start of the process: NaN, timed out, crashed."""
    return _unanswered


@contextmanager
def timed() -> Iterator[None]:
    """Counts what runs inside as time in a solver."""
    global _seconds
    start = time.perf_counter()
    try:
        yield
    finally:
        _seconds += time.perf_counter() - start
