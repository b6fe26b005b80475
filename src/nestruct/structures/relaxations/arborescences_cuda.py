"""Log Z and marginals of arborescences on CUDA, and the derivative of marginals: the launches.

Scores are first moved so that each word's best arc weighs 1; with one root arc only, its best arc
from a word, and the best root arc too. `elimination_cuda` then works in float64. All it loses is
below 1e-308, and no sum notices while all that it meets is below 1e280: the factors, and the
derivatives of log Z by weights. Rows where it is not are found on the device, and
`elimination_wide_cuda` does them in the log domain, in a launch that all others leave at once.

Padding hangs from the root, or from the first word where the root has one arc: a factor of 1.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.structures.relaxations.elimination_cuda import (
    eliminate_change_kernel,
    eliminate_kernel,
    places_of,
    undo_change_kernel,
    undo_kernel,
)
from nestruct.structures.relaxations.elimination_wide_cuda import wide_change_kernel, wide_kernel
from nestruct.structures.relaxations.log_domain import FORBIDDEN


class Solved(NamedTuple):
    """Rows as kernels take them, and what they found, for derivatives; float64 ``[row, n, n]``."""

    fronts: Tensor  # [row]: the word that changed places with word 1
    weights: Tensor  # logarithms
    factors: Tensor
    slopes: Tensor  # of log Z by weights
    wide: Tensor  # [row]: whether factors and slopes are logarithms


def sums_cuda(scores: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor, Solved]:
    """Log Z and marginals of scores ``[row, node, node]``, and what their derivative takes.

    Args:
        scores: No more than ``matrix_tree.MOST_NODES`` nodes.
        lengths: Words of each row.
        single_root: Whether one word alone hangs from the root.
    """
    scores, lengths = scores.contiguous(), lengths.contiguous()
    count, size = scores.shape[:2]
    rows = scores.new_empty(count, dtype=torch.float64)
    fronts, wide = rows.new_empty(2, count, dtype=torch.int32)
    weights, factors, slopes = scores.new_empty(3, count, size, size, dtype=torch.float64)
    marginals, values = torch.empty_like(scores), scores.new_empty(count)
    solved = Solved(fronts, weights, factors, slopes, wide)
    grid, (one, sums) = (count,), _tiles(size)
    with torch.cuda.device_of(scores):
        _prepare_kernel[grid](
            *(scores, lengths, fronts, weights, factors, rows, size),
            LOW=FORBIDDEN,
            SINGLE=int(single_root),
            **one,
        )
        eliminate_kernel[grid](factors, size, SINGLE=int(single_root), **sums)
        undo_kernel[grid](factors, slopes, size, SINGLE=int(single_root), **sums)
        wide_kernel[grid](
            *(wide, weights, factors, slopes, size), LOW=FORBIDDEN, SINGLE=int(single_root), **one
        )
        _finish_kernel[grid](
            *(lengths, fronts, rows, weights, factors, slopes, wide, marginals, values, size),
            **one,
        )
    return values, marginals, solved


def derivative_cuda(given: Tensor, lengths: Tensor, solved: Solved, single_root: bool) -> Tensor:
    """The derivative of ``marginals . given`` by the scores, in the dtype of ``given``."""
    given, lengths = given.contiguous(), lengths.contiguous()
    fronts, weights, factors, slopes, wide = solved
    changes, bends = torch.empty_like(weights), torch.empty_like(weights)
    out = torch.empty_like(given)
    size, grid = given.shape[1], (len(given),)
    one, sums = _tiles(size)
    with torch.cuda.device_of(given):
        _begin_change_kernel[grid](given, lengths, fronts, weights, changes, size, **one)
        eliminate_change_kernel[grid](factors, changes, size, SINGLE=int(single_root), **sums)
        undo_change_kernel[grid](
            factors, slopes, changes, bends, size, SINGLE=int(single_root), **sums
        )
        wide_change_kernel[grid](
            *(given, lengths, fronts, weights, factors, slopes, wide, changes, bends, size),
            LOW=FORBIDDEN,
            SINGLE=int(single_root),
            **one,
        )
        _finish_change_kernel[grid](
            given, lengths, fronts, weights, slopes, wide, bends, out, size, **one
        )
    return out


def _tiles(size: int) -> tuple[dict[str, int], dict[str, int]]:
    """For programs that look at a whole matrix at once, and for those that look at 16 columns."""
    tile = max(2, triton.next_power_of_2(size))
    whole = {"TILE": tile, "num_warps": max(1, min(32, tile**2 // 256))}
    return whole, {"TILE": tile, "num_warps": max(1, tile // 16)}


@triton.jit
def _front(scores, length, size, TILE: tl.constexpr):  # noqa: N803
    """`matrix_tree._front_word`."""
    node = tl.arange(0, TILE)
    i, j = node[:, None], node[None, :]
    infinite = float("inf")
    words = (i > 0) & (i <= length) & (j > 0) & (j <= length)
    path = tl.load(scores + i * size + j, mask=words & (i != j), other=-infinite)
    path = tl.where(i == j, infinite, path)
    for k in range(1, length + 1):
        into = tl.max(tl.where(j == k, path, -infinite), 1)
        out = tl.max(tl.where(i == k, path, -infinite), 0)
        path = tl.maximum(path, tl.minimum(into[:, None], out[None, :]))
    real = (node > 0) & (node <= length)
    worst = tl.min(tl.where(real[None, :], path, infinite), 1)
    worst = tl.where(real, worst, -infinite)
    best = tl.min(tl.where(real & (worst == tl.max(worst, 0)), node, TILE), 0)
    return tl.where(best < TILE, best, 1)  # 1: NaN, or no word


@triton.jit(do_not_specialize=["size"])
def _prepare_kernel(
    scores,
    lengths,
    fronts,
    weights,  # logarithms, at most 0
    factors,  # their exponentials
    offsets,  # what has been taken off log Z
    size,
    LOW: tl.constexpr,  # noqa: N803
    SINGLE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0).to(tl.int64)
    scores += program * size * size
    length = tl.load(lengths + program).to(tl.int32)
    length = tl.minimum(tl.maximum(length, 0), size - 1)
    front = length * 0 + 1
    if SINGLE:
        front = _front(scores, length, size, TILE)
    tl.store(fronts + program, front)
    node = tl.arange(0, TILE)
    i, j = node[:, None], node[None, :]
    places, arcs = places_of(front, length, size, TILE)
    weight = tl.load(scores + places, mask=arcs, other=LOW).to(tl.float64)
    host = tl.where(j > 1, SINGLE, 0)
    weight = tl.where((j > length) & (i == host), 0.0, weight)
    weight = tl.where(weight < LOW, LOW, weight)
    top = tl.max(tl.where(i >= SINGLE, weight, LOW), 0)
    top = tl.where(top > LOW / 2, top, 0.0)
    weight -= top[None, :]
    offset = tl.sum(tl.where((node > 0) & (node < size), top, 0.0), 0)
    if SINGLE:
        root = tl.max(tl.max(tl.where((i == 0) & (j < size), weight, LOW), 1), 0)
        root = tl.where(root > LOW / 2, root, 0.0)
        weight = tl.where(i == 0, weight - root, weight)
        offset += root
    offset += tl.sum(tl.sum(tl.where(weight == weight, 0.0, weight), 1), 0)  # NaN
    tl.store(offsets + program, offset)
    weight = tl.where(weight < LOW, LOW, weight)
    inside = (i < size) & (j < size)
    at = program * size * size + i * size + j
    tl.store(weights + at, weight, mask=inside)
    tl.store(factors + at, tl.exp(weight), mask=inside)


@triton.jit(do_not_specialize=["size"])
def _finish_kernel(
    lengths,
    fronts,
    offsets,
    weights,
    factors,
    slopes,
    wide,  # [row]: whether factors and slopes are logarithms
    marginals,
    values,
    size,
    TILE: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0).to(tl.int64)
    weights += program * size * size
    factors += program * size * size
    slopes += program * size * size
    marginals += program * size * size
    is_wide = tl.load(wide + program) != 0
    length = tl.load(lengths + program).to(tl.int32)
    places, arcs = places_of(tl.load(fronts + program), length, size, TILE)
    found = _marginals(weights, slopes, is_wide, arcs, size, TILE)
    node = tl.arange(0, TILE)
    inside = (node < size)[:, None] & (node < size)[None, :]
    tl.store(marginals + places, found.to(marginals.dtype.element_ty), mask=inside)
    word = (node > 0) & (node < size)
    degree = tl.load(factors + node * size + node, mask=word, other=1.0)
    if is_wide == 0:
        degree = tl.log(degree)
    value = tl.load(offsets + program) + tl.sum(tl.where(word, degree, 0.0), 0)
    tl.store(values + program, value.to(values.dtype.element_ty))


@triton.jit
def _marginals(weights, slopes, is_wide, arcs, size, TILE: tl.constexpr):  # noqa: N803
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    weight = tl.load(weights + i * size + j, mask=arcs, other=0.0)
    slope = tl.load(slopes + i * size + j, mask=arcs, other=0.0)
    if is_wide:
        weight += slope
        slope = tl.full((TILE, TILE), 1.0, tl.float64)
    return tl.where(arcs, tl.exp(weight) * slope, 0.0)


@triton.jit(do_not_specialize=["size"])
def _begin_change_kernel(
    slopes_given,  # by scores
    lengths,
    fronts,
    weights,
    changes,
    size,
    TILE: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0).to(tl.int64)
    slopes_given += program * size * size
    weights += program * size * size
    changes += program * size * size
    length = tl.load(lengths + program).to(tl.int32)
    places, arcs = places_of(tl.load(fronts + program), length, size, TILE)
    given = tl.load(slopes_given + places, mask=arcs, other=0.0).to(tl.float64)
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    weight = tl.load(weights + i * size + j, mask=arcs, other=0.0)
    tl.store(changes + i * size + j, tl.exp(weight) * given, mask=(i < size) & (j < size))


@triton.jit(do_not_specialize=["size"])
def _finish_change_kernel(
    slopes_given,
    lengths,
    fronts,
    weights,
    slopes,
    wide,
    bends,
    out,
    size,
    TILE: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0).to(tl.int64)
    slopes_given += program * size * size
    weights += program * size * size
    slopes += program * size * size
    bends += program * size * size
    out += program * size * size
    is_wide = tl.load(wide + program) != 0
    length = tl.load(lengths + program).to(tl.int32)
    places, arcs = places_of(tl.load(fronts + program), length, size, TILE)
    given = tl.load(slopes_given + places, mask=arcs, other=0.0).to(tl.float64)
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    bend = tl.load(bends + i * size + j, mask=arcs, other=0.0)
    found = _marginals(weights, slopes, is_wide, arcs, size, TILE)
    if is_wide:  # its bend is that of a logarithm
        bend = found * bend
    else:
        bend = tl.exp(tl.load(weights + i * size + j, mask=arcs, other=0.0)) * bend
    change = tl.where(arcs, found * given + bend, 0.0)
    tl.store(out + places, change.to(out.dtype.element_ty), mask=(i < size) & (j < size))
