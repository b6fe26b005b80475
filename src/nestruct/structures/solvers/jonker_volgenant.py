"""Best assignment (permutation): Jonker and Volgenant's shortest augmenting paths in O(n^3).

R. Jonker and A. Volgenant, "A shortest augmenting path algorithm for dense and sparse linear
assignment problems", 1987: column reduction, two rounds of augmenting row reduction, then a
shortest path for each row still free. ``scores[i, j]`` is the worth of giving row i column j; costs
below are their negatives.
"""

import numpy as np
import torch
from torch import Tensor

from nestruct.kernels import jit
from nestruct.structures.rows import NO_MEMBER, NOT_FINITE, OK


@jit
def jonker_volgenant_kernel(rows, lengths, option, z, codes):
    """CPU kernel: ``rows [count, n, n]`` to 0/1 ``z``, one code per row."""
    count, n = rows.shape[0], rows.shape[1]
    cost = np.empty((n, n))
    price = np.empty(n)
    row_of = np.empty(n, np.int64)  # column -> row, -1 when free
    column_of = np.empty(n, np.int64)  # row -> column
    free = np.empty(n, np.int64)
    distance = np.empty(n)
    before = np.empty(n, np.int64)
    columns = np.empty(n, np.int64)
    for index in range(count):
        codes[index] = OK
        for i in range(n):
            for j in range(n):
                z[index, i, j] = 0
                value = rows[index, i, j]
                if not value < np.inf:
                    codes[index] = NOT_FINITE
                cost[i, j] = -value
        if codes[index] != OK:
            continue
        num_free = _reduce(cost, price, row_of, column_of, free)
        for place in range(num_free):
            if not _augment(free[place], cost, price, row_of, column_of, distance, before, columns):
                codes[index] = NO_MEMBER
                break
        if codes[index] == OK:
            for i in range(n):
                z[index, i, column_of[i]] = 1


@jit
def _reduce(cost, price, row_of, column_of, free):
    """Column reduction, two rounds of augmenting row reduction; returns how many rows stay free."""
    n = cost.shape[0]
    for i in range(n):
        column_of[i] = -1
        price[i] = np.inf
        row_of[i] = 0
    for i in range(n):
        for j in range(n):
            if cost[i, j] < price[j]:
                price[j] = cost[i, j]
                row_of[j] = i
    for j in range(n - 1, -1, -1):
        if price[j] == np.inf:  # an empty column: augmenting will find that out
            price[j] = 0.0
            row_of[j] = -1
        elif column_of[row_of[j]] < 0:
            column_of[row_of[j]] = j
        else:
            row_of[j] = -1
    num_free = 0
    for i in range(n):
        if column_of[i] < 0:
            free[num_free] = i
            num_free += 1
    for _ in range(2):
        waiting, num_free = num_free, 0
        place = 0
        # Ties and rounding can pass a row back and forth for ever; the paths finish the work.
        budget = 8 * n
        while place < waiting:
            i = free[place]
            place += 1
            low, second, column, other = np.inf, np.inf, -1, -1
            for j in range(n):
                value = cost[i, j] - price[j]
                if value < second:
                    if value < low:
                        second, other = low, column
                        low, column = value, j
                    else:
                        second, other = value, j
            budget -= 1
            # One allowed column only: its price has no bound to move to.
            if budget < 0 or second == np.inf:
                free[num_free] = i
                num_free += 1
                continue
            loser = row_of[column]
            if low < second:
                price[column] -= second - low
            elif loser >= 0:
                column = other
                loser = row_of[column]
            row_of[column] = i
            column_of[i] = column
            if loser >= 0:
                column_of[loser] = -1
                if low < second:
                    place -= 1
                    free[place] = loser
                else:
                    free[num_free] = loser
                    num_free += 1
    return num_free


@jit
def _augment(start, cost, price, row_of, column_of, distance, before, columns):
    """Shortest path from a free row to a free column, after Dijkstra; False when there is none."""
    n = cost.shape[0]
    for j in range(n):
        distance[j] = cost[start, j] - price[j]
        before[j] = start
        columns[j] = j
    settled = 0  # columns[:settled] have their final distance
    end = -1
    shortest = 0.0
    while end < 0:
        shortest, nearest = np.inf, -1
        for place in range(settled, n):
            if distance[columns[place]] < shortest:
                shortest, nearest = distance[columns[place]], place
        if nearest < 0:
            return False
        j = columns[nearest]
        columns[nearest], columns[settled] = columns[settled], j
        settled += 1
        if row_of[j] < 0:
            end = j
            break
        i = row_of[j]
        slack = cost[i, j] - price[j] - shortest
        for place in range(settled, n):
            k = columns[place]
            value = cost[i, k] - price[k] - slack
            if value < distance[k]:
                distance[k] = value
                before[k] = i
    for place in range(settled - 1):
        j = columns[place]
        price[j] += distance[j] - shortest
    while True:
        i = before[end]
        row_of[end] = i
        column_of[i], end = end, column_of[i]
        if i == start:
            return True


def jonker_volgenant_batched(
    rows: Tensor, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """CUDA: a program for each instance; no host synchronisation."""
    from nestruct.structures.solvers.jonker_volgenant_cuda import jonker_volgenant_cuda

    column_of, codes = jonker_volgenant_cuda(rows.contiguous())
    # A row that found no column has -1: its instance has no answer.
    z = torch.zeros_like(rows).scatter_(2, column_of.clamp(min=0)[:, :, None], 1.0)
    return z, codes


def jonker_volgenant_plain(scores: np.ndarray) -> np.ndarray:
    """The twin: one row at a time, along the best alternating path by Bellman-Ford, no prices.

    Raises `ValueError` when there is no assignment.
    """
    n = len(scores)
    row_of: dict[int, int] = {}
    for start in range(n):
        gain = {j: scores[start, j] for j in range(n)}
        before = dict.fromkeys(range(n), start)
        for _ in range(n):
            for j, i in row_of.items():
                for k in range(n):
                    value = gain[j] - scores[i, j] + scores[i, k]
                    if value > gain[k] + 1e-12 and k != j:
                        gain[k], before[k] = value, i
        open_columns = [j for j in range(n) if j not in row_of and gain[j] > -np.inf]
        column_of = {i: j for j, i in row_of.items()}
        j = max(open_columns, key=gain.__getitem__)
        while True:
            i = before[j]
            row_of[j] = i
            if i == start:
                break
            j = column_of[i]
    z = np.zeros_like(scores)
    for j, i in row_of.items():
        z[i, j] = 1
    return z
