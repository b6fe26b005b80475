"""Best path between two cells of a grid by four or eight moves.

On the CPU by sweeps over many grids side by side (`grid_sweeps`). A few rows, or mazes, by a queue:
E. W. Dijkstra, "A note on two problems in connexion with graphs", 1959, O(cells log cells). A
cell's or edge's score is minus its cost; a positive score counts as 0, since a path could otherwise
gain by walking in circles.

Distances are those of the best path when its costs are added from the start on. Among best paths
one with the fewest moves is taken, and among those the one that comes from the first side in the
order of `Grid.ways_in`. All forms compute the same distances to the last bit: adding a cost is
monotone in floating point too, and all stop at the same fixed point. So they break ties alike.
"""

import numpy as np
import torch
from torch import Tensor

from nestruct.kernels import jit
from nestruct.structures.rows import BAD_ENDS, NO_MEMBER, NOT_FINITE, OK, is_capturing
from nestruct.structures.solvers.grid_sweeps import SIDE, sweep, walk_back
from nestruct.structures.solvers.grid_tables import Grid

_MANY = 8  # rows from which on sweeps are faster than a queue
_ROUNDS = 16  # between two looks at whether anything has changed


def shortest_path_kernel(rows, ends, code, z, codes):
    """CPU kernel: ``rows [count, parts]`` to 0/1 ``z``, one code per row."""
    grid = Grid.of(code)
    sources, parts = (table.numpy() for table in grid.ways_in())
    _kernel(rows, ends, sources, parts, grid.width, grid.edges, z, codes)


@jit
def _kernel(rows, ends, sources, parts, width, edges, z, codes):
    """Many rows are swept side by side; Dijkstra's search takes a few, and those that are mazes."""
    cells, ways = sources.shape
    height, num_parts = cells // width, rows.shape[1]
    many = rows.shape[0] >= _MANY
    costs = np.zeros((num_parts + 1, SIDE), rows.dtype)
    costs[num_parts] = np.inf
    table = np.empty(cells * ways * SIDE if many else 0, rows.dtype)
    far = np.empty((height + 2) * (width + 2) * SIDE if many else 0, rows.dtype)
    dirty = np.zeros(height + 2, np.bool_)
    distance, cost = np.empty(cells, rows.dtype), np.empty(num_parts, rows.dtype)
    moves, queue = np.empty(cells, np.int64), np.empty(cells, np.int64)
    heap, keys = np.empty(cells * ways + 1, np.int64), np.empty(cells * ways + 1, rows.dtype)
    for first in range(0, rows.shape[0], SIDE):
        lanes = min(SIDE, rows.shape[0] - first)
        far[:] = np.inf
        for lane in range(lanes):
            row = first + lane
            z[row] = 0
            codes[row] = _load(rows[row], ends[row] // cells, edges, lane, costs)
            if ends[row] < 0:
                codes[row] = BAD_ENDS
            if many and codes[row] == OK:
                start = ends[row] // cells
                i, j = start // width, start % width
                own = 0 if edges else costs[start, lane]
                far[((i + 1) * (width + 2) + j + 1) * SIDE + lane] = own
                dirty[i], dirty[i + 1], dirty[i + 2] = True, True, True
        settled = False
        if lanes >= _MANY:
            for cell in range(cells):
                for way in range(ways):
                    at, part = (cell * ways + way) * SIDE, parts[cell, way]
                    for lane in range(SIDE):
                        table[at + lane] = costs[part, lane]
            settled = sweep(table, far, dirty, height, width, ways)
        for lane in range(lanes):
            row = first + lane
            if codes[row] != OK:
                continue
            start, goal = ends[row] // cells, ends[row] % cells
            for part in range(num_parts if not settled else 0):
                cost[part] = costs[part, lane]
            if settled:
                at = ((goal // width + 1) * (width + 2) + goal % width + 1) * SIDE + lane
                distance[goal] = far[at]
            else:
                _search(cost, start, goal, sources, parts, edges, distance, heap, keys)
            if distance[goal] == np.inf:
                codes[row] = NO_MEMBER
                continue
            if settled:
                if walk_back(table, far, sources, parts, start, goal, width, lane, z[row]):
                    if not edges:
                        z[row, start] = 1
                    continue
                for cell in range(cells):
                    at = ((cell // width + 1) * (width + 2) + cell % width + 1) * SIDE + lane
                    distance[cell] = far[at]
                for part in range(num_parts):
                    cost[part] = costs[part, lane]
            _trace(cost, start, goal, sources, parts, edges, distance, moves, queue, z[row])


@jit
def _load(scores, start, edges, lane, costs):
    """Costs into their lane; a positive score counts as 0."""
    code, zero = OK, scores.dtype.type(0)
    for part in range(len(scores)):
        if not scores[part] < np.inf:
            code = NOT_FINITE
        costs[part, lane] = -min(scores[part], zero)
    if code == OK and not edges and start >= 0 and scores[start] == -np.inf:
        code = NO_MEMBER
    return code


@jit
def _search(cost, start, goal, sources, parts, edges, distance, heap, keys):
    """Distances from the start, right for all cells that are no further than the goal."""
    cells, ways = sources.shape
    distance[:] = np.inf
    distance[start] = 0 if edges else cost[start]
    heap[0], keys[0], size = start, distance[start], 1
    while size:
        cell, key = heap[0], keys[0]
        size -= 1
        last, last_key, place = heap[size], keys[size], 0
        while True:  # the last one sinks from the top
            child = 2 * place + 1
            if child >= size:
                break
            if child + 1 < size and keys[child + 1] < keys[child]:
                child += 1
            if last_key <= keys[child]:
                break
            heap[place], keys[place] = heap[child], keys[child]
            place = child
        heap[place], keys[place] = last, last_key
        if key > distance[goal]:
            return
        if key > distance[cell]:
            continue
        for way in range(ways):
            target = sources[cell, way]  # ways go both ways
            if target == cells:
                continue
            part = parts[cell, way] if edges else target
            reached = key + cost[part]
            if reached < distance[target]:
                distance[target] = reached
                place = size
                size += 1
                while place and keys[(place - 1) // 2] > reached:
                    up = (place - 1) // 2
                    heap[place], keys[place] = heap[up], keys[up]
                    place = up
                heap[place], keys[place] = target, reached


@jit
def _trace(cost, start, goal, sources, parts, edges, distance, moves, queue, path):
    """Marks the best path: breadth first over moves that best paths can have, then back."""
    cells, ways = sources.shape
    moves[:] = -1
    moves[start] = 0
    queue[0], head, tail = start, 0, 1
    while moves[goal] < 0:
        cell = queue[head]
        head += 1
        for way in range(ways):
            target = sources[cell, way]
            if target == cells or moves[target] >= 0:
                continue
            part = parts[cell, way] if edges else target
            if distance[cell] + cost[part] == distance[target]:
                moves[target] = moves[cell] + 1
                queue[tail] = target
                tail += 1
    cell = goal
    while cell != start:
        for way in range(ways):
            source, part = sources[cell, way], parts[cell, way]
            if source == cells or moves[source] != moves[cell] - 1:
                continue
            if distance[source] + cost[part] == distance[cell]:
                path[part] = 1
                cell = source
                break
    if not edges:
        path[start] = 1


def shortest_path_batched(rows: Tensor, ends: Tensor | None, code: int) -> tuple[Tensor, Tensor]:
    """Every device: all cells at once take the best of their ways in, until nothing changes.

    Inside a capture nothing can be looked at: there are as many rounds as a path can have moves.
    """
    assert ends is not None
    grid = Grid.of(code)
    cells, count = grid.num_cells, len(rows)
    sources, parts = grid.ways_in(rows.device)
    start, goal = ends.clamp(min=0) // cells, ends.clamp(min=0) % cells
    padded = torch.nn.functional.pad((-rows).clamp(min=0.0), (0, 1), value=torch.inf)
    costs = padded[:, parts]  # [count, cells, ways]
    here = torch.arange(cells + 1, device=rows.device) == start[:, None]
    first = torch.zeros_like(padded[:, :1]) if grid.edges else padded.gather(1, start[:, None])
    none = torch.full((count, cells + 1), torch.inf, dtype=rows.dtype, device=rows.device)

    def relax(distance: Tensor) -> Tensor:
        reached = (distance[:, sources] + costs).amin(-1)
        return torch.cat([torch.minimum(distance[:, :-1], reached), distance[:, -1:]], 1)

    distance = _settle(relax, torch.where(here, first, none), cells)
    tight = (distance[:, sources] + costs == distance[:, :-1, None]) & (costs < torch.inf)
    tight = tight & (distance[:, :-1, None] < torch.inf)

    def step(moves: Tensor) -> Tensor:
        reached = torch.where(tight, moves[:, sources] + 1, torch.inf).amin(-1)
        return torch.cat([torch.minimum(moves[:, :-1], reached), moves[:, -1:]], 1)

    moves = _settle(step, torch.where(here & (first < torch.inf), 0.0, none), cells)
    from_first = (tight & (moves[:, sources] == moves[:, :-1, None] - 1)).int().argmax(-1)
    z, cell = torch.zeros_like(padded), goal
    best = moves.gather(1, goal[:, None])[:, 0]
    rounds = cells - 1
    if not is_capturing(rows):
        rounds = int(torch.where(best < torch.inf, best, 0.0).amax())
    for _ in range(rounds):
        way = from_first.gather(1, cell[:, None])[:, 0]
        walking = (cell != start) & (best < torch.inf)
        part = torch.where(walking, parts[cell, way], grid.num_parts)
        z = z.scatter(1, part[:, None], 1.0)
        cell = torch.where(walking, sources[cell, way], cell)
    if not grid.edges:
        z = z.scatter(1, start[:, None], 1.0)
    codes = torch.where(best < torch.inf, OK, NO_MEMBER)
    codes = torch.where((rows < torch.inf).all(1), codes, NOT_FINITE)
    return z[:, :-1], torch.where(ends < 0, BAD_ENDS, codes)


def _settle(change, values: Tensor, most: int) -> Tensor:
    """Applies ``change`` until nothing changes, at most so many times."""
    for done in range(most):
        changed = change(values)
        look = done % _ROUNDS == _ROUNDS - 1 and not is_capturing(values)
        if look and torch.equal(changed.nan_to_num(), values.nan_to_num()):
            return changed
        values = changed
    return values
