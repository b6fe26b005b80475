"""How kernels are compiled (once, cached on disk) and spread over threads.

A kernel is a plain loop over rows: ``kernel(rows, lengths, option, z, codes)``. It releases the
GIL, so rows are spread over a pool of Python threads. Numba's own parallel loops would need a
threading layer that either is not thread-safe (workqueue) or dies after a fork (GNU OpenMP), and
they compile several times slower.
"""

from collections.abc import Callable

import numba
import numpy as np
import torch

from nestruct.threads import thread_pool

# Below this many scores a second thread costs more to wake than it saves.
_MIN_SCORES_PER_THREAD = 4096
_CHUNKS_PER_THREAD = 4
# A kernel may work on this many rows side by side; chunks are multiples of it. The cache watches
# a kernel's own file only: after a change here or in rows.py, delete the __pycache__ folders.
LANES = 8


def jit(function: Callable) -> Callable:
    """Compiles a kernel on first use; keeps the machine code on disk where it can."""
    try:
        return numba.njit(function, cache=True, nogil=True, error_model="numpy")
    except RuntimeError:  # numba found no writable folder for its cache
        return numba.njit(function, nogil=True, error_model="numpy")


def run_rows(
    kernel: Callable,
    rows: np.ndarray,
    lengths: np.ndarray,
    option: int,
    z: np.ndarray,
    codes: np.ndarray,
):
    """Runs the kernel over all rows, on as many threads as torch uses."""
    threads = min(torch.get_num_threads(), max(1, rows.size // _MIN_SCORES_PER_THREAD))
    if threads == 1:
        kernel(rows, lengths, option, z, codes)
        return
    size = -(-len(rows) // (threads * _CHUNKS_PER_THREAD))
    size = -(-size // LANES) * LANES
    starts = list(range(0, len(rows), size))

    def work() -> None:
        while True:
            try:
                start = starts.pop()
            except IndexError:
                return
            part = slice(start, start + size)
            kernel(rows[part], lengths[part], option, z[part], codes[part])

    helpers = [thread_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        helper.result()
