"""The sums of `inside_outside` on CUDA: a row is a program, in one launch.

As in `best_derivation_cuda`, level by level. Going down, nodes of a level may hand shares on to the
same node, so they are added atomically; they are then read past the cache next to the processor,
which does not see such additions. Their order is not fixed: sums differ in the last digits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.structures.recurrence import Recurrence
from nestruct.structures.relaxations.log_domain import FORBIDDEN
from nestruct.structures.solvers.best_derivation_cuda import SIZES, edges_of, tile_of


@triton.jit
def _weigh(rows, values, first, second, alive, at_edge, own, num_parts, LOW: tl.constexpr):  # noqa: N803
    """Of a tile's edges ``exp(v_e - top)``, top and the tails; and whether a score is bad."""
    score = tl.load(rows + own, mask=alive & (own < num_parts), other=0.0).to(tl.float64)
    wrong = (score != score) | (score == float("inf"))
    score = tl.where(wrong, 0.0, tl.maximum(score, LOW))
    one = tl.load(first + at_edge, mask=alive, other=0)
    two = tl.load(second + at_edge, mask=alive, other=0)
    total = (tl.load(values + one) + tl.load(values + two)) + score
    total = tl.where(alive, total, float("-inf"))
    top = tl.max(total, 1)
    top = tl.where(top == float("-inf"), 0.0, top)
    return tl.exp(total - top[:, None]), top, one, two, tl.max(tl.max(wrong.to(tl.int32), 1), 0)


@triton.jit(do_not_specialize=SIZES)
def _sums_kernel(
    rows,
    slopes,
    goals,
    values,
    means,
    shares,
    pulls,
    found,
    out,
    bounds,
    heads,
    starts,
    first,
    second,
    part,
    place,
    num_levels,
    num_nodes,
    num_parts,
    LOW: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803 (marginals too)
    BACKWARD: tl.constexpr,  # noqa: N803 (their derivative along slopes)
    NODES: tl.constexpr,  # noqa: N803
    EDGES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    rows += row * num_parts
    values += row * (num_nodes + 1)
    if WANT:
        shares += row * (num_nodes + 1)
        found += row * num_parts
    if BACKWARD:
        slopes += row * num_parts
        means += row * (num_nodes + 1)
        pulls += row * (num_nodes + 1)
    node, edge = tl.arange(0, NODES), tl.arange(0, EDGES)
    bad = num_levels * 0
    for level in range(num_levels):
        low = tl.load(bounds + level)
        high = tl.load(bounds + level + 1)
        for begin in range(low, high, NODES):
            alive, at_edge, own, at, here = edges_of(
                begin, high, starts, part, num_parts, node, edge
            )
            weight, top, one, two, wrong = _weigh(
                rows, values, first, second, alive, at_edge, own, num_parts, LOW
            )
            bad = tl.maximum(bad, wrong)
            scale = tl.sum(weight, 1)
            head = tl.load(heads + at, mask=here, other=0)
            value = tl.where(scale > 0, top + tl.log(tl.where(scale > 0, scale, 1.0)), LOW)
            tl.store(values + head, value, mask=here)
            if BACKWARD:
                slope = tl.load(slopes + own, mask=alive & (own < num_parts), other=0.0)
                mean = tl.load(means + one) + tl.load(means + two) + slope.to(tl.float64)
                mean = tl.sum(weight * mean, 1) / tl.where(scale > 0, scale, 1.0)
                tl.store(means + head, mean, mask=here)
        tl.debug_barrier()

    goal = tl.load(goals + row)
    value = tl.load(values + tl.maximum(goal, 0))
    tl.store(out + row, tl.where((goal < 0) | (bad > 0), float("nan"), value))
    if WANT:
        tl.atomic_add(shares + tl.maximum(goal, 0), 1.0, sem="relaxed")
        tl.debug_barrier()
        for back in range(num_levels):
            low = tl.load(bounds + (num_levels - 1 - back))
            high = tl.load(bounds + (num_levels - back))
            for begin in range(low, high, NODES):
                alive, at_edge, own, at, here = edges_of(
                    begin, high, starts, part, num_parts, node, edge
                )
                weight, top, one, two, wrong = _weigh(
                    rows, values, first, second, alive, at_edge, own, num_parts, LOW
                )
                scale = tl.sum(weight, 1)
                chance = weight / tl.where(scale > 0, scale, 1.0)[:, None]
                head = tl.load(heads + at, mask=here, other=0)
                share = tl.load(shares + head, mask=here, other=0.0, cache_modifier=".cg")
                passed = chance * share[:, None]
                change = passed
                if BACKWARD:
                    slope = tl.load(slopes + own, mask=alive & (own < num_parts), other=0.0)
                    excess = tl.load(means + one) + tl.load(means + two) + slope.to(tl.float64)
                    excess -= tl.load(means + head, mask=here, other=0.0)[:, None]
                    pull = tl.load(pulls + head, mask=here, other=0.0, cache_modifier=".cg")
                    change = chance * (pull[:, None] + share[:, None] * excess)
                    some = alive & (change != 0.0)
                    tl.atomic_add(pulls + one, change, mask=some & (one < num_nodes), sem="relaxed")
                    tl.atomic_add(pulls + two, change, mask=some & (two < num_nodes), sem="relaxed")
                some = alive & (passed != 0.0)
                tl.atomic_add(shares + one, passed, mask=some & (one < num_nodes), sem="relaxed")
                tl.atomic_add(shares + two, passed, mask=some & (two < num_nodes), sem="relaxed")
                some = alive & (own < num_parts) & (change != 0.0)
                change = change.to(found.dtype.element_ty)
                tl.atomic_add(found + own, change, mask=some, sem="relaxed")
            tl.debug_barrier()


def sums_cuda(
    recurrence: Recurrence, rows: Tensor, goals: Tensor, slopes: Tensor | None, want: bool
) -> tuple[Tensor, Tensor]:
    """What `inside_outside_batched.sums_batched` gives."""
    rows, tables = rows.contiguous(), recurrence.tables(rows)
    count, num_nodes = len(rows), recurrence.num_nodes
    backward = slopes is not None

    def zeros(wanted: bool) -> Tensor:
        size = (count, num_nodes + 1) if wanted else (0,)
        return torch.zeros(size, dtype=torch.float64, device=rows.device)

    values, means, shares, pulls = zeros(True), zeros(backward), zeros(want), zeros(backward)
    found = torch.zeros_like(rows) if want else rows.new_empty(count, 0)
    out = torch.empty(count, dtype=torch.float64, device=rows.device)
    with torch.cuda.device_of(rows):
        _sums_kernel[(count,)](
            rows,
            rows if slopes is None else slopes.contiguous(),
            goals.contiguous(),
            values,
            means,
            shares,
            pulls,
            found,
            out,
            *tables.tensors,
            num_nodes,
            recurrence.num_parts,
            LOW=FORBIDDEN,
            WANT=want,
            BACKWARD=backward,
            **tile_of(recurrence, tables),
        )
    return found, out
