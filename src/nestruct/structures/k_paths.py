"""The k best paths of a grid.

Monotone paths are those of a `Recurrence`. With four or eight moves no score can force a part into
a path, so the paths are taken apart as E. Lawler has it (`k_best`), in the way of J. Yen, "Finding
the k shortest loopless paths in a network", 1971: child t holds the paths that go with the best one
for t moves, and then another way. It is a best path from there to the goal, with -inf for

- that next cell, or edge, and those that earlier children have taken before it;
- what would lead back: over edges, all edges of the cells before; over cells, where a path has no
  shortcuts, the cells before and all their neighbours.
"""

import functools

import numpy as np
import torch
from torch import Tensor

from nestruct.structures.k_best import MAX_SCORES, best_of
from nestruct.structures.recurrence import Recurrence
from nestruct.structures.rows import is_capturing, nan_rows
from nestruct.structures.solvers import solve
from nestruct.structures.solvers.grid_tables import Grid
from nestruct.structures.solvers.monotone_path import edge_ends


@functools.lru_cache(maxsize=32)
def monotone_recurrence(grid: Grid) -> Recurrence:
    """The node (1, cell) is the best path to a cell, (0, cell) one that starts there.

    Behind the grid's own parts is one for each cell, of a score of 0 for the start and -inf for all
    others; goals are cells.
    """
    sources, parts = (table.numpy() for table in grid.ways_in())
    cell = np.arange(grid.num_cells)
    begin, best = cell, grid.num_cells + cell
    levels: list[tuple] = [(begin, 2 * grid.num_cells, -1, grid.num_parts + cell[:, None])]
    first = np.where(sources < grid.num_cells, sources + grid.num_cells, -1)
    first = np.concatenate([first, begin[:, None]], 1)
    own = np.full_like(cell, -1) if grid.edges else cell
    part = np.concatenate([parts, own[:, None]], 1)
    step = cell // grid.width + cell % grid.width
    for each in range(grid.height + grid.width - 1):
        here = step == each
        levels.append((best[here], first[here], -1, part[here]))
    return Recurrence((2, grid.num_cells), grid.num_parts + grid.num_cells, levels, best)


def k_shortest(
    scores: Tensor, start: Tensor, goal: Tensor, grid: Grid, k: int, owner: str
) -> tuple[Tensor, Tensor]:
    """Paths ``[k, ..., parts]``, boolean, and totals ``[k, ...]`` in float64; -inf where fewer.

    Args:
        scores: ``[..., parts]``; positive ones count as 0.
        start: A cell for each row; -1 where that row's cells do not fit.
        goal: Likewise.
        grid: With four or eight moves.
        k: How many.
        owner: Whose call this is, for error messages.
    """
    lead, cells = scores.shape[:-1], grid.num_cells
    costs = scores.detach().double().clamp(max=0.0).reshape(-1, grid.num_parts)
    ends = torch.where(start < 0, -1, start * cells + goal).expand(lead)
    first = solve(scores.double(), ends, "shortest_path", grid.code, owner)
    start, goal = (end.expand(lead).reshape(-1).clamp(min=0) for end in (start, goal))
    z = (first == 1).reshape(costs.shape)
    failed = first.isnan().reshape(costs.shape).any(-1)
    total = torch.where(failed, torch.nan, torch.where(z, costs, 0.0).sum(-1))
    # Candidates, best first: a path, its total, what its set forbids, where the set's paths part.
    pool: tuple = (z[None], total[None], torch.zeros_like(z)[None], torch.zeros_like(start)[None])
    found = []
    for left in range(k - 1, -1, -1):
        best = [entry[0] for entry in pool]
        found.append(best[:2])
        pool = tuple(entry[1:] for entry in pool)
        if left:
            pool = _branch(costs, (start, goal), grid, best, pool, left)
    paths = torch.stack([path for path, _ in found]).view(k, *scores.shape)
    totals = torch.stack([value for _, value in found]).view(k, *lead)
    return paths, torch.where(failed.view(lead), torch.nan, totals)


def _branch(
    costs: Tensor, ends: tuple[Tensor, Tensor], grid: Grid, best: list, pool: tuple, keep: int
) -> tuple:
    """The best ``keep`` candidates once the set of the best one has been taken apart."""
    z, total, forbidden, parted = best
    path = _cells_of(z, ends, grid)
    near, place = _steps_of(path, grid)
    at_once = max(1, MAX_SCORES // max(1, z.numel()))
    for moves in torch.arange(len(path) - 1, device=z.device).split(at_once):
        step, cell = moves[:, None, None], path[moves]
        back = near < step if grid.edges else (near < step) & (place != step)
        onward = z & (place == (step if grid.edges else step + 1))
        taken = forbidden | back | onward
        rest_ends = cell * grid.num_cells + ends[1]
        with nan_rows():
            rest = torch.where(taken, -torch.inf, costs)
            rest = solve(rest, rest_ends, "shortest_path", grid.code, "")
        new = (z & (place < step)) | (rest == 1)
        value = torch.where(new, costs, 0.0).sum(-1)
        legal = (total > -torch.inf) & (moves[:, None] >= parted) & (cell != path[moves + 1])
        value = torch.where(legal & ~rest.isnan().any(-1), value, -torch.inf)
        new = new & (value > -torch.inf)[..., None]
        children = (new, value, taken, moves[:, None].expand(value.shape))
        pool = best_of([torch.cat(pair) for pair in zip(pool, children, strict=True)], keep, 1)
    if not len(pool[0]):
        nothing = torch.zeros_like(z)[None]
        pool = (nothing, torch.full_like(total, -torch.inf)[None], nothing, parted[None])
    return pool


def _cells_of(z: Tensor, ends: tuple[Tensor, Tensor], grid: Grid) -> Tensor:
    """The cells of each path in their order, ``[moves + 1, rows]``; the last one is repeated."""
    sources, parts = grid.ways_in(z.device)
    marked, (cell, goal) = torch.nn.functional.pad(z, (0, 1)), ends
    path, last = [cell], torch.full_like(cell, -1)
    may_look = not (torch._C._functorch.is_batchedtensor(z) or is_capturing(z))
    for _ in range(grid.num_cells - 1):
        near = sources[cell]
        on = marked.gather(-1, parts[cell] if grid.edges else near) & (near != last[:, None])
        moving = on.any(-1) & (cell != goal)
        if may_look and not moving.any():
            break
        following = near.gather(-1, on.int().argmax(-1, keepdim=True))[:, 0]
        last, cell = torch.where(moving, cell, last), torch.where(moving, following, cell)
        path.append(cell)
    return torch.stack(path)


def _steps_of(path: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """After how many moves parts are beside a path, and on it, ``[rows, parts]``; else many."""
    far = path.new_full((path.shape[1], grid.num_cells + 1), grid.num_cells)
    step = torch.arange(len(path), device=path.device).expand(path.shape[::-1])
    steps = far.scatter_reduce(1, path.T, step, "amin")
    if grid.edges:
        first, last = edge_ends(grid, path.device)
        near = torch.minimum(steps[:, first], steps[:, last])
        return near, near
    place = steps[:, :-1]
    return torch.minimum(place, steps[:, grid.ways_in(path.device)[0]].amin(-1)), place
