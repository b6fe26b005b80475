"""How the cells and edges of a grid are numbered, as tables of index tensors.

Cells are numbered row by row. Edges are numbered row by row too, as PyEPO does: first those to the
east of a row's cells, then those from it to the next row, to the south. With eight moves those to
the south-east and then to the south-west follow, before the next row.

A part is a cell or an edge. Moving into a cell pays for the cell, or for the edge that is used.
Tables are computed on the device every time: a copy from the host is illegal inside a capture.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MOVES = ("monotone", "four", "eight")
# Ways into a cell, by where it is come from: (rows down, columns to the right).
_FROM = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (-1, 1), (1, 1), (1, -1))


class Grid(NamedTuple):
    """A grid's sizes and rules; ``code`` is all of it in one number."""

    height: int
    width: int
    moves: str
    edges: bool

    @property
    def code(self) -> int:
        """What `solve` hands to a kernel as its option."""
        return (self.height << 24 | self.width << 4) | MOVES.index(self.moves) << 1 | self.edges

    @classmethod
    def of(cls, code: int) -> "Grid":
        """The grid of a code."""
        width = code >> 4 & 0xFFFFF
        return cls(code >> 24, width, MOVES[code >> 1 & 3], bool(code & 1))

    @property
    def num_cells(self) -> int:
        """How many cells there are."""
        return self.height * self.width

    @property
    def num_ways(self) -> int:
        """From how many sides a cell can be entered."""
        return {"monotone": 2, "four": 4, "eight": 8}[self.moves]

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return self.height * (self.width - 1) + (self.height - 1) * (self._stride - self.width + 1)

    @property
    def _stride(self) -> int:
        """Edges of a row and to the next one."""
        w = self.width
        return w - 1 + w + (2 * (w - 1) if self.moves == "eight" else 0)

    def ways_in(self, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """From which cell each way into a cell comes, and which part it pays, ``[cells, ways]``.

        Where there is no such way, both are one past the last: ``num_cells`` and ``num_parts``.
        """
        cell = torch.arange(self.num_cells, device=device)
        row, column = cell // self.width, cell % self.width
        sources, parts = [], []
        for down, right in _FROM[: self.num_ways]:
            i, j = row + down, column + right
            there = (i >= 0) & (i < self.height) & (j >= 0) & (j < self.width)
            sources.append(torch.where(there, i * self.width + j, self.num_cells))
            part = self._edge(row, column, down, right) if self.edges else cell
            parts.append(torch.where(there, part, self.num_parts))
        return torch.stack(sources, -1), torch.stack(parts, -1)

    @property
    def num_parts(self) -> int:
        """How many scores there are."""
        return self.num_edges if self.edges else self.num_cells

    def _edge(self, row: Tensor, column: Tensor, down: int, right: int) -> Tensor:
        if down > 0 or (down == 0 and right > 0):  # named by its upper, else its western end
            first_row, first_column, right = row, column, right
        else:
            first_row, first_column, right = row + down, column + right, -right
        place = first_row * self._stride + first_column
        if down == 0:
            return place
        w = self.width
        return place + {0: w - 1, 1: 2 * w - 1, -1: 3 * w - 3}[right]
