"""Best path to the south-east corner of a grid by moves to the east and south: O(cells).

    best(v) = max of  best(west of v) + score(into v from the west),
                      best(north of v) + score(into v from the north),

where the score is that of cell v, or of the edge. On a tie the path comes from the west. ``ends``
are ``start * cells + goal``, and -1 where one of them is no cell. Only the rectangle between them
counts.
"""

import numpy as np
import torch
from torch import Tensor

from nestruct.kernels import jit
from nestruct.structures.rows import BAD_ENDS, NO_MEMBER, NOT_FINITE, OK
from nestruct.structures.solvers.grid_tables import Grid


def monotone_path_kernel(rows, ends, code, z, codes):
    """CPU kernel: ``rows [count, parts]`` to 0/1 ``z``, one code per row."""
    grid = Grid.of(code)
    _kernel(rows, ends, grid.height, grid.width, grid.edges, z, codes)


@jit
def _kernel(rows, ends, height, width, edges, z, codes):
    cells = height * width
    stride = 2 * width - 1
    best = np.empty((height, width))  # float64, whatever comes in: close calls are decided right
    for row in range(rows.shape[0]):
        scores, path = rows[row], z[row]
        path[:] = 0
        if ends[row] < 0:
            codes[row] = BAD_ENDS
            continue
        start, goal = ends[row] // cells, ends[row] % cells
        top, left = start // width, start % width
        bottom, right = goal // width, goal % width
        if bottom < top or right < left:
            codes[row] = NO_MEMBER
            continue
        code = OK
        for i in range(top, bottom + 1):
            for j in range(left, right + 1):
                into_west = i * stride + j - 1 if edges else i * width + j
                into_north = (i - 1) * stride + width - 1 + j if edges else i * width + j
                if i == top and j == left:
                    value = 0.0 if edges else np.float64(scores[into_west])
                    if not edges and not scores[into_west] < np.inf:
                        code = NOT_FINITE
                elif i == top:
                    value = best[i, j - 1] + scores[into_west]
                    if not scores[into_west] < np.inf:
                        code = NOT_FINITE
                elif j == left:
                    value = best[i - 1, j] + scores[into_north]
                    if not scores[into_north] < np.inf:
                        code = NOT_FINITE
                else:
                    value = best[i, j - 1] + scores[into_west]
                    other = best[i - 1, j] + scores[into_north]
                    if other > value:
                        value = other
                    if not (scores[into_west] < np.inf and scores[into_north] < np.inf):
                        code = NOT_FINITE
                best[i, j] = value
        if code == OK and best[bottom, right] == -np.inf:
            code = NO_MEMBER
        codes[row] = code
        if code != OK:
            continue
        i, j = bottom, right
        while i > top or j > left:
            into_west = i * stride + j - 1 if edges else i * width + j
            into_north = (i - 1) * stride + width - 1 + j if edges else i * width + j
            north = j == left
            if i > top and j > left:
                west_total = best[i, j - 1] + scores[into_west]
                north = best[i - 1, j] + scores[into_north] > west_total
            if north:
                path[into_north] = 1
                i -= 1
            else:
                path[into_west] = 1
                j -= 1
        if not edges:
            path[start] = 1


def monotone_path_batched(rows: Tensor, ends: Tensor | None, code: int) -> tuple[Tensor, Tensor]:
    """Every device: one antidiagonal of all grids after the other, no host synchronisation."""
    assert ends is not None
    grid = Grid.of(code)
    steps, height = grid.height + grid.width - 1, grid.height
    west, north = skewed(grid, rows.device)
    start, goal = ends.clamp(min=0) // grid.num_cells, ends.clamp(min=0) % grid.num_cells
    inside = between(grid, start, goal)
    usable = torch.where(inside, rows.double(), -torch.inf)
    padded = torch.nn.functional.pad(usable, (0, 1), value=-torch.inf)
    into_west, into_north = padded[:, west], padded[:, north]  # [count, steps, height]
    start_row, start_step = start // grid.width, start // grid.width + start % grid.width
    goal_row, goal_step = goal // grid.width, goal // grid.width + goal % grid.width
    first = torch.zeros_like(padded[:, :1]) if grid.edges else usable.gather(1, start[:, None])
    place = torch.arange(height, device=rows.device)
    state = torch.full_like(into_west[:, 0], -torch.inf)
    states, from_north = [], []
    for step in range(steps):
        by_west = state + into_west[:, step]
        above = torch.nn.functional.pad(state[:, :-1], (1, 0), value=-torch.inf)
        by_north = above + into_north[:, step]
        here = (start_step == step)[:, None] & (place == start_row[:, None])
        from_north.append(by_north > by_west)
        state = torch.where(here, first, torch.where(from_north[-1], by_north, by_west))
        states.append(state)
    best = torch.stack(states, 1).flatten(1).gather(1, (goal_step * height + goal_row)[:, None])
    row, marked = goal_row, []
    for step in range(steps - 1, 0, -1):
        active = (step <= goal_step) & (step > start_step)
        up = from_north[step].gather(1, row[:, None])[:, 0] & active
        part = torch.where(up, north[step][row], west[step][row])
        marked.append(torch.where(active, part, grid.num_parts))
        row = torch.where(up, row - 1, row).clamp(min=0)
    if not grid.edges:
        marked.append(start)
    z = torch.zeros_like(padded, dtype=rows.dtype)
    if marked:
        z = z.scatter(1, torch.stack(marked, 1), 1.0)
    codes = torch.where(best[:, 0] > -torch.inf, OK, NO_MEMBER)
    codes = torch.where((usable < torch.inf).all(1), codes, NOT_FINITE)
    return z[:, :-1], torch.where(ends < 0, BAD_ENDS, codes)


def skewed(grid: Grid, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Parts that enter cells from the west and north, ``[steps, height]``: by antidiagonals.

    Entry (s, i) is about the cell of row i that is s steps from the first corner; where there is
    none, or no such way, it is the number of parts.
    """
    step = torch.arange(grid.height + grid.width - 1, device=device)[:, None]
    row = torch.arange(grid.height, device=device)
    column = step - row
    there = (column >= 0) & (column < grid.width)
    cell = torch.where(there, row * grid.width + column, grid.num_cells)
    _, parts = grid.ways_in(device)
    west, north = torch.nn.functional.pad(parts, (0, 0, 0, 1), value=grid.num_parts).unbind(1)
    return west[cell], north[cell]


def between(grid: Grid, start: Tensor, goal: Tensor) -> Tensor:
    """Which parts lie in the rectangle from start to goal, ``[..., parts]``."""
    cell = torch.arange(grid.num_cells, device=start.device)
    row, column = cell // grid.width, cell % grid.width
    top, left = start[..., None] // grid.width, start[..., None] % grid.width
    bottom, right = goal[..., None] // grid.width, goal[..., None] % grid.width
    inside = (row >= top) & (row <= bottom) & (column >= left) & (column <= right)
    if not grid.edges:
        return inside
    first, last = edge_ends(grid, start.device)
    return inside[..., first] & inside[..., last]


def edge_ends(grid: Grid, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """The two cells that each edge joins."""
    sources, parts = Grid(grid.height, grid.width, grid.moves, True).ways_in(device)
    cells = torch.arange(grid.num_cells, device=device)[:, None].expand(sources.shape)
    flat, spare = parts.flatten(), torch.zeros(grid.num_edges + 1, dtype=torch.long, device=device)
    first = spare.scatter(0, flat, torch.minimum(sources, cells).flatten())
    return first[:-1], spare.scatter(0, flat, torch.maximum(sources, cells).flatten())[:-1]


def monotone_path_plain(scores: np.ndarray, start: int, goal: int, grid: Grid) -> np.ndarray:
    """The twin: longest paths in the order of cells; `ValueError` when there is none."""
    sources, parts = (table.numpy() for table in grid.ways_in())
    best = {start: (0.0 if grid.edges else scores[start], () if grid.edges else (start,))}
    for cell in range(start + 1, goal + 1):
        ways = [
            (best[source][0] + scores[part], (*best[source][1], part))
            for source, part in zip(sources[cell], parts[cell], strict=True)
            if source in best
        ]
        if ways:
            best[cell] = max(ways, key=lambda way: way[0])
    if best.get(goal, (-np.inf,))[0] == -np.inf:
        raise ValueError("no path")
    z = np.zeros_like(scores)
    z[list(best[goal][1])] = 1
    return z
