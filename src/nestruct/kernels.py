"""How kernels are compiled (once, cached on disk), and the threads they run on.

A kernel is a plain loop that releases the GIL, so it is spread over a pool of Python threads.
Numba's own parallel loops would need a threading layer that either is not thread-safe (workqueue)
or dies after a fork (GNU OpenMP), and they compile several times slower.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import torch

# Below this many scores a second thread costs more to wake than it saves.
_MIN_SCORES_PER_THREAD = 4096
_CHUNKS_PER_THREAD = 4
LANES = 8  # a kernel may work on this many rows side by side; chunks are multiples of it


def jit(function: Callable, *, fastmath: bool = False) -> Callable:
    """Compiles a kernel on first use; keeps the machine code on disk where it can.

    Numba's cache watches a kernel's own file only: after a change of a constant that it imports,
    delete the ``__pycache__`` folders.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # numba found no writable folder for its cache
        return numba.njit(function, **options)


def spread_rows(work: Callable[[slice], Any], num_rows: int, num_scores: int) -> None:
    """Calls ``work`` on slices that cover all rows, on as many threads as torch uses.

    Args:
        work: Gets a slice of rows; several may be at work at once.
        num_rows: How many there are.
        num_scores: In all rows; few of them are not worth a second thread.
    """
    threads = min(torch.get_num_threads(), max(1, num_scores // _MIN_SCORES_PER_THREAD))
    if threads == 1:
        work(slice(0, num_rows))
        return
    size = -(-num_rows // (threads * _CHUNKS_PER_THREAD))
    size = -(-size // LANES) * LANES
    starts = list(range(0, num_rows, size))

    def take() -> None:
        while True:
            try:
                start = starts.pop()
            except IndexError:
                return
            work(slice(start, start + size))

    helpers = [thread_pool(threads - 1).submit(take) for _ in range(threads - 1)]
    take()
    for helper in helpers:
        helper.result()


def thread_pool(size: int) -> ThreadPoolExecutor:
    """A pool of this many threads, kept for the life of the process."""
    return _pool(os.getpid(), size)


@functools.lru_cache(maxsize=8)
def _pool(pid: int, size: int) -> ThreadPoolExecutor:
    # Keyed by process: threads do not survive a fork (a DataLoader worker that calls a solver).
    return ThreadPoolExecutor(size, thread_name_prefix="nestruct")
