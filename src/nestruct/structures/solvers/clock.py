"""How long solvers have run on the CPU, for progress reports."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_total = 0.0


def solver_seconds() -> float:
    """Wall-clock seconds spent in CPU solvers since the start of the process."""
    return _total


@contextmanager
def timed() -> Iterator[None]:
    """Counts what runs inside as time in a solver."""
    global _total
    start = time.perf_counter()
    try:
        yield
    finally:
        _total += time.perf_counter() - start
