"""How long solvers have run on the CPU, and how many instances they were given, for reports."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_seconds = 0.0
_instances = 0


def solver_seconds() -> float:
    """Wall-clock seconds spent in CPU solvers since the start of the process."""
    return _seconds


def num_solved() -> int:
    """Instances given to an argmax since the start of the process, or noted as such."""
    return _instances


def count_solved(instances: int) -> None:
    """Notes that so many instances were solved."""
    global _instances
    _instances += instances


@contextmanager
def timed() -> Iterator[None]:
    """Counts what runs inside as time in a solver."""
    global _seconds
    start = time.perf_counter()
    try:
        yield
    finally:
        _seconds += time.perf_counter() - start
