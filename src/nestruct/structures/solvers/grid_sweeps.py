"""Distances in many grids at once, on the CPU: sweeps over the rows until nothing changes.

R. Bellman, 1958; sweeping in turns from both ends is J. Yen's, 1970. ``SIDE`` grids are lanes of
one table. A cell takes the best of its ways in, row by row, forwards and backwards in turns, and a
row is looked at again only when it or a neighbour has changed. With costs at random a grid of n
rows settles after about n / 2 sweeps; a maze may take as many as it has cells, so there is a limit.

Per cell that is some 20 to 30 additions per way in, where Dijkstra's queue needs one; but eight or
sixteen of them are one instruction, without a branch to be mispredicted.
"""

import numpy as np

from nestruct.kernels import jit

SIDE = 32  # grids side by side
_W = np.uint64(SIDE)
_MOST = 100  # times that a row may be looked at, on average


@jit
def sweep(cost, distance, dirty, height, width, ways):
    """Settles ``distance``; False if that takes too long.

    Args:
        cost: Of the ways into each cell, ``[cells * ways * SIDE]``.
        distance: ``[(height + 2) * (width + 2) * SIDE]``, a border of infinity around the cells; 0,
            or the start's own cost, where paths start, else infinity.
        dirty: The rows to look at, ``[height + 2]``.
        height: Rows.
        width: Columns.
        ways: 4 or 8.
    """
    row_size, left, down = np.uint64((width + 2) * SIDE), _MOST * height, True
    while left > 0:
        settled = True
        for k in range(height):
            i = k if down else height - 1 - k
            if not dirty[i + 1]:
                continue
            settled, dirty[i + 1] = False, False
            left -= 1
            changed = 0
            for j in range(width):
                column = j if down else width - 1 - j
                at = np.uint64(i) * row_size + np.uint64(column) * _W
                own = np.uint64((i * width + column) * ways) * _W
                if ways == 8:
                    changed += _relax_eight(distance, at, row_size, cost, own)
                else:
                    changed += _relax_four(distance, at, row_size, cost, own)
            if changed > 0:
                dirty[i], dirty[i + 1], dirty[i + 2] = True, True, True
        if settled:
            return True
        down = not down
    return False


@jit
def _relax_four(d, north, row_size, cost, c):
    """Lowers one cell; ``north`` is where its north-western neighbour is. How many lanes change.

    Indices are unsigned, so that loops are vectorised. The neighbours in the row come last: one of
    them has just been written.
    """
    m, s = north + row_size, north + row_size + row_size
    changed = 0
    for lane in range(_W):
        best = d[north + _W + lane] + cost[c + _W + lane]
        other = d[s + _W + lane] + cost[c + _W + _W + _W + lane]
        best = other if other < best else best
        other = d[m + _W + _W + lane] + cost[c + _W + _W + lane]
        best = other if other < best else best
        other = d[m + lane] + cost[c + lane]
        best = other if other < best else best
        now = d[m + _W + lane]
        changed += 1 if best < now else 0
        d[m + _W + lane] = best if best < now else now
    return changed


@jit
def _relax_eight(d, north, row_size, cost, c):
    """As `_relax_four`, with the diagonals; ways in the order of `Grid.ways_in`."""
    m, s = north + row_size, north + row_size + row_size
    two, four = _W + _W, _W + _W + _W + _W
    changed = 0
    for lane in range(_W):
        best = d[north + _W + lane] + cost[c + _W + lane]
        other = d[s + _W + lane] + cost[c + two + _W + lane]
        best = other if other < best else best
        other = d[north + lane] + cost[c + four + lane]
        best = other if other < best else best
        other = d[north + two + lane] + cost[c + four + _W + lane]
        best = other if other < best else best
        other = d[s + two + lane] + cost[c + four + two + lane]
        best = other if other < best else best
        other = d[s + lane] + cost[c + four + two + _W + lane]
        best = other if other < best else best
        other = d[m + two + lane] + cost[c + two + lane]
        best = other if other < best else best
        other = d[m + lane] + cost[c + lane]
        best = other if other < best else best
        now = d[m + _W + lane]
        changed += 1 if best < now else 0
        d[m + _W + lane] = best if best < now else now
    return changed


@jit
def walk_back(cost, distance, sources, parts, start, goal, width, lane, path):
    """Marks the best path of a lane; False, with nothing marked, if there may be several."""
    cells, ways = sources.shape
    cell, length = goal, 0
    while cell != start:
        at = ((cell // width + 1) * (width + 2) + cell % width + 1) * SIDE + lane
        tight = -1
        for way in range(ways):
            source = sources[cell, way]
            if source == cells:
                continue
            before = ((source // width + 1) * (width + 2) + source % width + 1) * SIDE + lane
            if distance[before] + cost[(cell * ways + way) * SIDE + lane] == distance[at]:
                if tight >= 0:
                    tight = ways
                    break
                tight = way
        length += 1
        if tight == ways or length > cells:
            path[:] = 0
            return False
        path[parts[cell, tight]] = 1
        cell = sources[cell, tight]
    return True
