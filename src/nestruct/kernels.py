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


def thread_pool(size: int) -> ThreadPoolExecutor:
    """A pool of this many threads, kept for the life of the process."""
    return _pool(os.getpid(), size)


@functools.lru_cache(maxsize=8)
def _pool(pid: int, size: int) -> ThreadPoolExecutor:
    # Keyed by process: threads do not survive a fork (a DataLoader worker that calls a solver).
    return ThreadPoolExecutor(size, thread_name_prefix="nestruct")
