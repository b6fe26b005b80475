"""Running a kernel over rows: ``kernel(rows, lengths, option, z, codes)``, spread over threads."""

from collections.abc import Callable

import numpy as np

from nestruct.kernels import spread_rows


def run_rows(
    kernel: Callable,
    rows: np.ndarray,
    lengths: np.ndarray,
    option: int,
    z: np.ndarray,
    codes: np.ndarray,
):
    """Runs the kernel over all rows, on as many threads as torch uses."""

    def work(part: slice) -> None:
        kernel(rows[part], lengths[part], option, z[part], codes[part])

    spread_rows(work, len(rows), rows.size)
