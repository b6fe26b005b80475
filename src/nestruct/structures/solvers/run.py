"""Running a kernel over rows: ``kernel(rows, lengths, option, z, codes)``, spread over threads."""

from collections.abc import Callable

import numpy as np
import torch

from nestruct.kernels import thread_pool

# Below this many scores a second thread costs more to wake than it saves.
_MIN_SCORES_PER_THREAD = 4096
_CHUNKS_PER_THREAD = 4
LANES = 8  # a kernel may work on this many rows side by side; chunks are multiples of it


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
