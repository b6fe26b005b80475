"""Jonker and Volgenant's assignment on CUDA: an instance is a program, its columns are the lanes.

The steps of `nestruct.structures.solvers.jonker_volgenant.jonker_volgenant_kernel`, one by one:
the same subtractions of doubles in the same order, and the same first among equals. So both find
the same assignment, whatever ties there are. What that keeps in small arrays are vectors in
registers here; memory holds the scores only.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.structures.rows import NO_MEMBER, NOT_FINITE, OK
from nestruct.structures.solvers.lanes_cuda import pick


@triton.jit
def _cost(scores, i, size, lane):
    """What row i pays for each column; lanes without a column are forbidden."""
    values = tl.load(scores + i * size + lane, mask=lane < size, other=float("-inf"))
    return -values.to(tl.float64)


@triton.jit
def _lowest(values, place, none):
    """The least value, and the first place among those that have it."""
    low = tl.min(values, 0)
    return low, tl.min(tl.where(values == low, place, none), 0)


@triton.jit
def _jonker_volgenant_kernel(
    scores,  # [row, n, n]
    assigned,  # [row, n]: the column of each row
    codes,
    size,
    OK: tl.constexpr,  # noqa: N803
    NOT_FINITE: tl.constexpr,  # noqa: N803
    NO_MEMBER: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0).to(tl.int64)
    scores += program * size * size
    lane = tl.arange(0, LANES)
    infinite = float("inf")

    # Column reduction.
    price = tl.full((LANES,), infinite, tl.float64)
    row_of = tl.full((LANES,), -1, tl.int32)  # column -> row, -1 when free
    column_of = tl.full((LANES,), -1, tl.int32)  # row -> column
    unusable = tl.zeros((LANES,), tl.int32)
    for i in range(size):
        cost = _cost(scores, i, size, lane)
        unusable = tl.where(cost > -infinite, unusable, 1)
        row_of = tl.where(cost < price, i, row_of)
        price = tl.where(cost < price, cost, price)
    price = tl.where(price == infinite, 0.0, price)  # an empty column: augmenting finds that out
    for back in range(size):
        j = size - 1 - back
        i = pick(row_of, lane, j)
        mine = (i >= 0) & (pick(column_of, lane, i) < 0)
        column_of = tl.where((lane == i) & mine, j, column_of)
        row_of = tl.where((lane == j) & (mine == 0), -1, row_of)
    free = tl.zeros((LANES,), tl.int32)
    num_free = size * 0
    for i in range(size):
        is_free = pick(column_of, lane, i) < 0
        free = tl.where((lane == num_free) & is_free, i, free)
        num_free += is_free.to(tl.int32)
    code = tl.where(tl.max(unusable, 0) == 1, NOT_FINITE, OK)
    num_free = tl.where(code == OK, num_free, 0)

    # Two rounds of augmenting row reduction.
    for _ in range(2):
        waiting = num_free
        num_free = size * 0
        place = size * 0
        budget = 8 * size
        while place < waiting:
            i = pick(free, lane, place)
            place += 1
            values = _cost(scores, i, size, lane) - price
            low, column = _lowest(values, lane, LANES)
            second, other = _lowest(tl.where(lane == column, infinite, values), lane, LANES)
            budget -= 1
            if (budget < 0) | (second == infinite):
                free = tl.where(lane == num_free, i, free)
                num_free += 1
            else:
                loser = pick(row_of, lane, column)
                if low < second:
                    price = tl.where(lane == column, price - (second - low), price)
                elif loser >= 0:
                    column = other
                    loser = pick(row_of, lane, column)
                row_of = tl.where(lane == column, i, row_of)
                column_of = tl.where(lane == i, column, column_of)
                if loser >= 0:
                    column_of = tl.where(lane == loser, -1, column_of)
                    if low < second:
                        place -= 1
                        free = tl.where(lane == place, loser, free)
                    else:
                        free = tl.where(lane == num_free, loser, free)
                        num_free += 1

    # A shortest path from each row that is still free to a free column, after Dijkstra.
    turn = size * 0
    while turn < num_free:
        start = pick(free, lane, turn)
        turn += 1
        distance = _cost(scores, start, size, lane) - price
        before = tl.zeros((LANES,), tl.int32) + start
        place_of = lane  # in the kernel's list of columns, the settled ones first
        settled = size * 0
        end = size * 0 - 1
        shortest = tl.min(distance, 0)
        while end < 0:
            waits = tl.where(place_of >= settled, distance, infinite)
            shortest, nearest = _lowest(waits, place_of, LANES)
            if shortest == infinite:
                code = NO_MEMBER
                num_free = size * 0
                end = size
            else:
                j = pick(lane, place_of, nearest)
                place_of = tl.where(place_of == settled, nearest, place_of)
                place_of = tl.where(lane == j, settled, place_of)
                settled += 1
                i = pick(row_of, lane, j)
                if i < 0:
                    end = j
                else:
                    cost = _cost(scores, i, size, lane)
                    slack = pick(cost, lane, j) - pick(price, lane, j) - shortest
                    values = cost - price - slack
                    closer = (place_of >= settled) & (values < distance)
                    distance = tl.where(closer, values, distance)
                    before = tl.where(closer, i, before)
        if code == OK:
            price = tl.where(place_of < settled - 1, price + (distance - shortest), price)
            while end >= 0:
                i = pick(before, lane, end)
                row_of = tl.where(lane == end, i, row_of)
                following = pick(column_of, lane, i)
                column_of = tl.where(lane == i, end, column_of)
                end = tl.where(i == start, -1, following)
    tl.store(assigned + program * size + lane, column_of.to(tl.int64), mask=lane < size)
    tl.store(codes + program, code.to(tl.int64))


def jonker_volgenant_cuda(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The column of each row ``[row, n]``, and a code for each instance.

    Args:
        rows: Scores ``[row, n, n]``, -inf where a row may not take a column.
    """
    count, size = rows.shape[:2]
    assigned = torch.empty(count, size, dtype=torch.long, device=rows.device)
    codes = torch.empty(count, dtype=torch.long, device=rows.device)
    lanes = triton.next_power_of_2(size)
    with torch.cuda.device_of(rows):
        _jonker_volgenant_kernel[(count,)](
            rows,
            assigned,
            codes,
            size,
            OK=OK,
            NOT_FINITE=NOT_FINITE,
            NO_MEMBER=NO_MEMBER,
            LANES=lanes,
            num_warps=max(1, lanes // 128),
        )
    return assigned, codes
