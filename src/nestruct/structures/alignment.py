"""Monotone alignments of two sequences."""

import functools

import numpy as np

from nestruct.structures.dynamic_programme import DynamicProgramme
from nestruct.structures.recurrence import Kernels, Recurrence
from nestruct.structures.solvers.warping import warp


class Alignment(DynamicProgramme):
    """A path through a table from (0, 0) to the last cell; ``scores [..., n, m]`` are its cells.

    Its moves are (1, 0), (0, 1) and (1, 1), as in dynamic time warping; both ends are marked. The
    context ``lengths`` counts rows, ``other_lengths`` columns. `log_count` and `enumerate` take
    pairs of rows and columns.

    Example:
        >>> import torch, nestruct
        >>> nestruct.Alignment().argmax(torch.tensor([[1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]))
        tensor([[1., 1., 0.],
                [0., 0., 1.]])
    """

    length_axes = (("lengths", 0, 0), ("other_lengths", 1, 0))
    shape_in_words = "a table [n, m] of one cell or more"

    def shape(self, *sizes: int) -> tuple[int, ...]:
        """``(n, m)``."""
        return sizes

    def recurrence(self, *sizes: int) -> Recurrence:
        """The node (i, j) is the best path that ends there."""
        return _recurrence(*sizes)


@functools.lru_cache(maxsize=32)
def _recurrence(rows: int, columns: int) -> Recurrence:
    # A border of -1 around the cells, but in the corner, where a path begins.
    cell = np.full((rows + 1, columns + 1), -1)
    cell[1:, 1:] = np.arange(rows * columns).reshape(rows, columns)
    cell[0, 0] = rows * columns
    levels = []
    for diagonal in range(rows + columns - 1):  # all cells of one i + j at once
        i = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1)) + 1
        j = diagonal + 2 - i
        first = np.stack([cell[i - 1, j - 1], cell[i - 1, j], cell[i, j - 1]], 1)
        levels.append((cell[i, j], first, -1, cell[i, j][:, None]))
    goals = cell.copy()
    goals[0, 0] = -1
    own = Kernels(functools.partial(warp, columns))
    return Recurrence((rows, columns), rows * columns, levels, goals, kernels=own)
