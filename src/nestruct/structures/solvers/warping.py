"""Best alignment of two sequences: dynamic time warping in O(rows x columns).

It computes what `best_derivation` computes for an alignment's recurrence, to the last bit and with
ties broken alike. Tables of edges are not needed, and totals are kept of one row of cells only.
"""

import numpy as np

from nestruct.kernels import LANES, jit
from nestruct.structures.rows import BAD_LENGTH, NO_MEMBER, NOT_FINITE, OK


@jit
def warp(columns, rows, goals, z, codes):
    """CPU kernel: ``rows [count, cells]`` to 0/1 ``z``, one code per row; goals are cells."""
    count, cells = rows.shape
    ways = np.empty((cells, LANES), np.int8)  # 0: from both before, 1: from above, 2: from the left
    totals, diagonal = np.empty((columns + 1, LANES)), np.empty(LANES)
    left, best, bad = np.empty(LANES), np.empty(LANES), np.empty(LANES, np.int64)
    own = np.empty((columns, LANES))
    for start in range(0, count, LANES):
        lanes = min(LANES, count - start)
        totals[:] = -np.inf
        totals[0] = 0.0
        bad[:] = 0
        for i in range(cells // columns):
            for lane in range(LANES):
                row = rows[min(start + lane, count - 1)]
                for j in range(columns):
                    own[j, lane] = row[i * columns + j]
                diagonal[lane] = totals[0, lane]
                left[lane] = -np.inf
                totals[0, lane] = -np.inf
            for j in range(columns):
                at = i * columns + j
                for lane in range(LANES):
                    score, above = own[j, lane], totals[j + 1, lane]
                    value, way = diagonal[lane] + score, 0
                    other = above + score
                    way = 1 if other > value else way
                    value = other if other > value else value
                    other = left[lane] + score
                    way = 2 if other > value else way
                    value = other if other > value else value
                    bad[lane] += 0 if score < np.inf else 1
                    ways[at, lane] = way
                    diagonal[lane], left[lane], totals[j + 1, lane] = above, value, value
            for lane in range(lanes):
                goal = goals[start + lane]
                if goal // columns == i:
                    best[lane] = totals[goal % columns + 1, lane]
        for lane in range(lanes):
            row, at = start + lane, goals[start + lane]
            z[row] = 0
            codes[row] = BAD_LENGTH if at < 0 else NOT_FINITE if bad[lane] > 0 else OK
            if codes[row] == OK and best[lane] == -np.inf:
                codes[row] = NO_MEMBER
            while codes[row] == OK:
                z[row, at] = 1
                if at == 0:
                    break
                way = ways[at, lane]
                at -= columns + 1 if way == 0 else columns if way == 1 else 1
