"""Eisner's algorithm on CUDA: a sentence is a program, all spans of one width are its lanes.

The chart is that of `nestruct.structures.solvers.eisner`, indexed by width and start, so that lanes
side by side read numbers side by side. Splits are found again on the way down.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.structures.solvers.lanes_cuda import pick

RIGHT = tl.constexpr(0)
LEFT = tl.constexpr(1)
ARC_RIGHT = tl.constexpr(2)
ARC_LEFT = tl.constexpr(3)


@triton.jit
def _eisner_kernel(
    scores,
    lengths,
    chart,  # [row, kind, width, start]
    heads,
    totals,
    size,
    FIRST: tl.constexpr,  # noqa: N803 (the first node of the chart, 1 with a single root)
    LANES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    scores += row * size * size
    chart += row * 4 * size * size
    area = size * size
    length = tl.load(lengths + row).to(tl.int32)
    lane = tl.arange(0, LANES)
    nothing = float("-inf")
    tl.store(chart + RIGHT * area + lane, lane * 0.0, mask=lane <= length)
    tl.store(chart + LEFT * area + lane, lane * 0.0, mask=lane <= length)
    tl.debug_barrier()
    for width in range(1, length - FIRST + 1):
        alive = (lane >= FIRST) & (lane + width <= length)
        inner = tl.full((LANES,), nothing, chart.dtype.element_ty)
        for k in range(width):
            at = chart + RIGHT * area + k * size + lane
            one = tl.load(at, mask=alive, other=nothing)
            at = chart + LEFT * area + (width - k - 1) * size + lane + k + 1
            inner = tl.maximum(inner, one + tl.load(at, mask=alive, other=nothing))
        end = lane + width
        arc_right = inner + tl.load(scores + lane * size + end, mask=alive, other=nothing)
        arc_left = inner + tl.load(scores + end * size + lane, mask=alive, other=nothing)
        right, left = arc_right, arc_left
        for k in range(1, width):
            at = chart + ARC_RIGHT * area + k * size + lane
            one = tl.load(at, mask=alive, other=nothing)
            at = chart + RIGHT * area + (width - k) * size + lane + k
            right = tl.maximum(right, one + tl.load(at, mask=alive, other=nothing))
            at = chart + LEFT * area + k * size + lane
            one = tl.load(at, mask=alive, other=nothing)
            at = chart + ARC_LEFT * area + (width - k) * size + lane + k
            left = tl.maximum(left, one + tl.load(at, mask=alive, other=nothing))
        at = chart + width * size + lane
        tl.store(at + RIGHT * area, right, mask=alive)
        tl.store(at + LEFT * area, left, mask=alive)
        tl.store(at + ARC_RIGHT * area, arc_right, mask=alive)
        tl.store(at + ARC_LEFT * area, arc_left, mask=alive)
        tl.debug_barrier()

    # From the widest span down: (kind, start, width) in one number.
    wide = tl.arange(0, 2 * LANES)
    stack = tl.zeros((2 * LANES,), tl.int32)
    found = tl.zeros((LANES,), tl.int32)
    if FIRST:
        alive = (lane >= 1) & (lane <= length)
        at = chart + LEFT * area + (lane - 1) * size + 1
        value = tl.load(at, mask=alive, other=nothing)
        at = chart + RIGHT * area + (length - lane) * size + lane
        value += tl.load(at, mask=alive, other=nothing)
        value += tl.load(scores + lane, mask=alive, other=nothing)
        best = tl.max(value, 0)
        child = tl.min(tl.where(value == best, lane, LANES), 0)
        stack = tl.where(wide == 0, LEFT + 4 * (1 + LANES * (child - 1)), stack)
        stack = tl.where(wide == 1, RIGHT + 4 * (child + LANES * (length - child)), stack)
    else:
        best = tl.load(chart + RIGHT * area + length * size)
        stack = tl.where(wide == 0, RIGHT + 4 * LANES * length, stack)
    depth = tl.where(best > nothing, 1 + FIRST, 0)
    while depth > 0:
        depth -= 1
        entry = pick(stack, wide, depth)
        kind, start, width = entry % 4, entry // 4 % LANES, entry // 4 // LANES
        if width > 0:
            is_arc = kind >= ARC_RIGHT
            gap = is_arc.to(tl.int32)  # an arc's two parts do not share a node
            least = (kind == RIGHT).to(tl.int32)
            dependent = tl.where(kind == ARC_RIGHT, start + width, start)
            head = tl.where(kind == ARC_RIGHT, start, start + width)
            found = tl.where(is_arc & (lane == dependent), head, found)
            one = tl.where(kind == RIGHT, ARC_RIGHT, tl.where(kind == LEFT, LEFT, RIGHT))
            two = tl.where(kind == RIGHT, RIGHT, tl.where(kind == LEFT, ARC_LEFT, LEFT))
            alive = (lane >= least) & (lane < width + least)
            at = chart + one * area + lane * size + start
            value = tl.load(at, mask=alive, other=nothing)
            at = chart + two * area + (width - lane - gap) * size + start + lane + gap
            value += tl.load(at, mask=alive, other=nothing)
            split = tl.min(tl.where(value == tl.max(value, 0), lane, LANES), 0)
            entry = one + 4 * (start + LANES * split)
            stack = tl.where(wide == depth, entry, stack)
            entry = two + 4 * (start + split + gap + LANES * (width - split - gap))
            stack = tl.where(wide == depth + 1, entry, stack)
            depth += 2
    tl.store(heads + row * size + lane, found.to(tl.int64), mask=(lane > 0) & (lane <= length))
    tl.store(totals + row, best)


def eisner_cuda(scores: Tensor, lengths: Tensor, single_root: int) -> tuple[Tensor, Tensor]:
    """The head of each word (0 for the root and padding), and what the best tree scores.

    Args:
        scores: ``[row, head, dependent]``, -inf where an arc is not allowed.
        lengths: Words of each row.
        single_root: Whether exactly one word hangs from the root.
    """
    count, size = scores.shape[:2]
    chart = scores.new_empty(count, 4, size, size)
    heads = torch.zeros(count, size, dtype=torch.long, device=scores.device)
    totals = scores.new_empty(count)
    lanes = triton.next_power_of_2(size)
    with torch.cuda.device_of(scores):
        _eisner_kernel[(count,)](
            scores,
            lengths,
            chart,
            heads,
            totals,
            size,
            FIRST=single_root,
            LANES=lanes,
            num_warps=max(1, lanes // 64),
        )
    return heads, totals
