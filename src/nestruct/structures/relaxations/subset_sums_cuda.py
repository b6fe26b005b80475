"""Sums over k-subsets on CUDA, and draws: a row is a program, a count of items is a lane.

With E[i, j] the log of the sum over j-subsets of the first i items, the chance that item i is one
of j, and the next row of E, have one exponential in common:

    odds  =  E[i-1, j-1] + score_i - E[i-1, j],     p[i, j]  =  sigmoid(odds),
    E[i, j]  =  max(E[i-1, j-1] + score_i, E[i-1, j]) + log(1 + exp(-|odds|)).

All that follows is made of p, as in `subset_sums`. That has ratios in place of logarithms, for
which far weights must be sorted out first: more launches than the logarithms cost here, where they
are taken in all lanes at once. A step waits for the one before it, so n steps are what a call
takes, however many rows there are.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.errors import InputError
from nestruct.structures.relaxations.log_domain import FORBIDDEN

_SIZES = ["n", "k"]  # a kernel is not compiled anew for each
_MOST = 8191  # k: lanes shift through the memory beside a processor, 8 bytes each


@triton.jit
def _climb(
    scores,  # of one row
    slopes,
    chances,  # [n, k + 1]: p
    leans,  # [n, k + 1]: how p changes along the slopes
    n,
    k,
    LOW: tl.constexpr,  # noqa: N803
    KEEP: tl.constexpr,  # noqa: N803 (p)
    BACKWARD: tl.constexpr,  # noqa: N803 (leans too)
    LANES: tl.constexpr,  # noqa: N803
):
    """Item by item from the first; the log-partition, NaN where a score is NaN or infinite."""
    count = tl.arange(0, LANES)
    before = tl.maximum(count - 1, 0)
    value = tl.where(count > 0, tl.full((LANES,), LOW, tl.float64), 0.0)
    mean = tl.zeros((LANES,), tl.float64)  # of the slopes of a j-subset's items
    bad = n * 0
    for i in range(n):
        score = tl.load(scores + i).to(tl.float64)
        wrong = (score != score) | (score == float("inf"))
        bad = tl.maximum(bad, wrong.to(tl.int32))
        score = tl.where(wrong, 0.0, tl.maximum(score, LOW))
        grown = tl.gather(value, before, 0) + score
        odds = grown - value
        small = tl.exp(-tl.abs(odds))
        # Not small / (1 + small): to divide a tiny number takes the slow way through a division.
        chance = tl.where(odds < 0, small, 1.0) * (1.0 / (1.0 + small))
        chance = tl.where(count > 0, chance, 0.0)
        value = tl.where(count > 0, tl.maximum(grown, value) + tl.log(1.0 + small), 0.0)
        at = i * (k + 1) + count
        if KEEP:
            tl.store(chances + at, chance, mask=count <= k)
        if BACKWARD:
            excess = tl.gather(mean, before, 0) + tl.load(slopes + i).to(tl.float64) - mean
            tl.store(leans + at, chance * (1.0 - chance) * excess, mask=count <= k)
            mean += chance * excess
    found = tl.sum(tl.where(count == k, value, 0.0), 0)
    return tl.where(bad > 0, float("nan"), found)


@triton.jit(do_not_specialize=_SIZES)
def _sums_kernel(
    rows,
    slopes,
    chances,  # [row, n, k + 1]; in the end the parts that marginals are sums of
    leans,
    values,
    n,
    k,
    LOW: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803 (marginals too)
    BACKWARD: tl.constexpr,  # noqa: N803 (their derivative along slopes)
    LANES: tl.constexpr,  # noqa: N803
    STAGES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    rows += row * n
    if WANT:
        chances += row * n * (k + 1)
    if BACKWARD:
        slopes += row * n
        leans += row * n * (k + 1)
    value = _climb(rows, slopes, chances, leans, n, k, LOW, WANT, BACKWARD, LANES)
    tl.store(values + row, value)
    if WANT:
        tl.debug_barrier()
        count = tl.arange(0, LANES)
        after = tl.minimum(count + 1, LANES - 1)
        share = tl.where(count == k, tl.full((LANES,), 1.0, tl.float64), 0.0)
        pull = tl.zeros((LANES,), tl.float64)
        for back in tl.range(n, num_stages=STAGES):
            at = (n - 1 - back) * (k + 1) + count
            chance = tl.load(chances + at, mask=count <= k, other=0.0)
            taken = share * chance
            if BACKWARD:
                lean = tl.load(leans + at, mask=count <= k, other=0.0)
                change = pull * chance + share * lean
                tl.store(chances + at, change, mask=count <= k)
                pull += tl.where(count < k, tl.gather(change, after, 0), 0.0) - change
            else:
                tl.store(chances + at, taken, mask=count <= k)
            share += tl.where(count < k, tl.gather(taken, after, 0), 0.0) - taken


@triton.jit(do_not_specialize=_SIZES)
def _draws_kernel(
    rows,
    uniform,
    chances,
    z,
    values,
    n,
    k,
    LOW: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
    STAGES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    rows += row * n
    uniform += row * n
    z += row * n
    chances += row * n * (k + 1)
    tl.store(values + row, _climb(rows, rows, chances, chances, n, k, LOW, True, False, LANES))
    tl.debug_barrier()
    count = tl.arange(0, LANES)
    due = tl.zeros((LANES,), tl.int32) + k  # in all lanes the same
    for back in tl.range(n, num_stages=STAGES):
        i = n - 1 - back
        chance = tl.load(chances + i * (k + 1) + count, mask=count <= k, other=0.0)
        take = tl.load(uniform + i).to(tl.float64) < tl.gather(chance, due, 0)  # 0 with none due
        tl.store(z + i + 0 * count, take.to(z.dtype.element_ty), mask=count == 0)
        due -= take.to(tl.int32)


def subset_sums_cuda(
    k: int, rows: Tensor, slopes: Tensor | None, want: bool
) -> tuple[Tensor, Tensor]:
    """What `inside_outside_batched.sums_batched` gives."""
    rows = rows.contiguous()
    values, chances = _tables(k, rows, want)
    leans = torch.empty_like(chances) if slopes is not None else chances
    with torch.cuda.device_of(rows):
        _sums_kernel[(len(rows),)](
            rows,
            rows if slopes is None else slopes.contiguous(),
            chances,
            leans,
            values,
            rows.shape[1],
            k,
            WANT=want,
            BACKWARD=slopes is not None,
            **_options(k),
        )
    return (chances.sum(-1) if want else rows[:, :0]), values


def subset_draws_cuda(k: int, rows: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One exact draw per row, item by item from the last, given how many are due; log-partitions.

    Args:
        k: How many items.
        rows: Scores ``[row, items]``.
        uniform: Draws from [0, 1), shaped as ``rows``.
    """
    rows = rows.contiguous()
    (values, chances), z = _tables(k, rows, True), torch.empty_like(rows)
    with torch.cuda.device_of(rows):
        _draws_kernel[(len(rows),)](
            rows, uniform.contiguous(), chances, z, values, rows.shape[1], k, **_options(k)
        )
    return z, values


def _tables(k: int, rows: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    size = (*rows.shape, k + 1) if keep else (0,)
    return rows.new_empty(len(rows), dtype=torch.float64), rows.new_empty(size, dtype=torch.float64)


def _options(k: int) -> dict[str, float]:
    """What a kernel is compiled for.

    Going down, tables are read three steps before they are needed, if that many rows of them fit
    the memory beside the processor: a read takes longer than a step.
    """
    if k > _MOST:
        raise InputError(f"KSubset: on a GPU k is at most {_MOST:,}, got {k:,}; use a CPU.")
    lanes = triton.next_power_of_2(k + 1)
    warps, stages = min(16, max(1, lanes // 128)), 4 if lanes <= 512 else 1
    return {"LOW": FORBIDDEN, "LANES": lanes, "STAGES": stages, "num_warps": warps}
