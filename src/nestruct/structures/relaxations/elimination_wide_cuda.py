"""The elimination of `matrix_tree` on CUDA in the log domain, for rows that float64 cannot hold.

The steps of `elimination_cuda` with logarithms of weights, and of their slopes, so that any range
is right: scores over a temperature of 0.001, or a mask of -1e9 that is all there is. Undoing an
elimination hands over chances: with those of arcs (h, m) that stand for the way through word k,

    T[h, m] = G[h, m] w[h, k] w[k, m] / d_k,

the arc (k, m) has the sum over h, and (h, k) the sum over m and its share of ``1 - sum of T``.
Changes are those of logarithms: an average over ways for weights, any number for slopes.
"""

import triton
import triton.language as tl

from nestruct.structures.relaxations.elimination_cuda import (
    heads_of,
    places_of,
    put,
    read_row_and_column,
    read_tile,
    row_and_column,
    write_row_and_column,
)

MOST = tl.constexpr(1e280)  # see `arborescences_cuda`


@triton.jit
def _through(row, column, k, SINGLE: tl.constexpr, LOW: tl.constexpr, TILE: tl.constexpr):  # noqa: N803
    """Log of w[h, k] w[k, m] / d_k, of w[h, k] / d_k, and of d_k."""
    node = tl.arange(0, TILE)
    heads = tl.where(heads_of(k, SINGLE, TILE), column, LOW)
    top = tl.max(heads, 0)
    degree = top + tl.log(tl.sum(tl.exp(heads - top), 0))
    share = tl.where(node < k, column - degree, LOW)
    ways = share[:, None] + tl.where(node < k, row, LOW)[None, :]
    return tl.maximum(ways, LOW), share, degree


@triton.jit
def _step(tile, k, SINGLE: tl.constexpr, LOW: tl.constexpr, TILE: tl.constexpr):  # noqa: N803
    """Eliminates word k: the new tile, the chances of ways through k, row, column, share, d_k."""
    row, column = row_and_column(tile, k, TILE)
    ways, share, degree = _through(row, column, k, SINGLE, LOW, TILE)
    top = tl.maximum(tile, ways)
    new = top + tl.log(tl.exp(tile - top) + tl.exp(ways - top))
    return new, tl.exp(ways - new), row, column, share, degree


@triton.jit
def _log_ratio(chance, weight, LOW: tl.constexpr):  # noqa: N803
    return tl.where(chance > 0.0, tl.log(tl.where(chance > 0.0, chance, 1.0)) - weight, LOW)


@triton.jit
def _ratio(change, chance):
    return tl.where(chance > 0.0, change / tl.where(chance > 0.0, chance, 1.0), 0.0)


@triton.jit(do_not_specialize=["size"])
def wide_kernel(
    wide,  # [row]: set where the range is left, and these are done
    weights,  # logarithms
    factors,
    slopes,
    size,
    LOW: tl.constexpr,  # noqa: N803
    SINGLE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """Finds the rows that float64 does not hold; their factors and slopes, as logarithms."""
    program = tl.program_id(0).to(tl.int64)
    weights += program * size * size
    factors += program * size * size
    slopes += program * size * size
    total = read_tile(factors, size, size, 0.0, TILE) + read_tile(slopes, size, size, 0.0, TILE)
    fits = tl.sum(tl.sum(total, 1), 0) < MOST  # what divides by 0 is no number
    tl.store(wide + program, 1 - fits.to(tl.int32))
    if fits == 0:
        tl.debug_barrier()  # all have read before anything is written there
        tile = read_tile(weights, size, size, LOW, TILE)
        for step in range(size - 1):
            k = size - 1 - step
            tile, _, row, column, _, degree = _step(tile, k, SINGLE, LOW, TILE)
            write_row_and_column(factors, size, k, row, column, TILE)
            tl.store(factors + k * size + k, degree)
        tl.debug_barrier()
        tile = tl.full((TILE, TILE), LOW, tl.float64)
        for k in range(1, size):
            out, into = read_row_and_column(factors, size, k, TILE)
            ways, share, _ = _through(out, into, k, SINGLE, LOW, TILE)
            chances = tl.exp(tile + ways)
            row = tl.sum(chances, 0)
            column = tl.sum(chances, 1)
            own = tl.where(heads_of(k, SINGLE, TILE), tl.exp(share), 0.0)
            column = tl.maximum(column + own * (1.0 - tl.sum(row, 0)), 0.0)
            row, column = _log_ratio(row, out, LOW), _log_ratio(column, into, LOW)
            write_row_and_column(slopes, size, k, row, column, TILE)
            tile = put(tile, k, row, column, TILE)


@triton.jit(do_not_specialize=["size"])
def wide_change_kernel(
    given,  # slopes by scores, in the caller's order
    lengths,
    fronts,
    weights,
    factors,
    slopes,
    wide,
    changes,  # overwritten by those of the logarithms of the factors
    bends,  # of the logarithms of the slopes
    size,
    LOW: tl.constexpr,  # noqa: N803
    SINGLE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """How the logarithms of their slopes change."""
    program = tl.program_id(0).to(tl.int64)
    weights += program * size * size
    factors += program * size * size
    slopes += program * size * size
    given += program * size * size
    changes += program * size * size
    bends += program * size * size
    if tl.load(wide + program) != 0:
        tile = read_tile(weights, size, size, LOW, TILE)
        length = tl.load(lengths + program).to(tl.int32)
        places, arcs = places_of(tl.load(fronts + program), length, size, TILE)
        change = tl.load(given + places, mask=arcs, other=0.0).to(tl.float64)
        for step in range(size - 1):
            k = size - 1 - step
            tile, chances, _, _, share, _ = _step(tile, k, SINGLE, LOW, TILE)
            row, column = row_and_column(change, k, TILE)
            own = tl.where(heads_of(k, SINGLE, TILE), tl.exp(share), 0.0)
            more = tl.sum(own * column, 0)
            write_row_and_column(changes, size, k, row, column, TILE)
            tl.store(changes + k * size + k, more)
            change += chances * ((column - more)[:, None] + row[None, :] - change)
        tl.debug_barrier()
        tile = tl.full((TILE, TILE), LOW, tl.float64)
        change = tl.zeros((TILE, TILE), tl.float64)
        for k in range(1, size):
            out, into = read_row_and_column(factors, size, k, TILE)
            more_out, more_into = read_row_and_column(changes, size, k, TILE)
            more_share = more_into - tl.load(changes + k * size + k)
            ways, share, _ = _through(out, into, k, SINGLE, LOW, TILE)
            chances = tl.exp(tile + ways)
            moves = chances * (change + more_share[:, None] + more_out[None, :])
            row, more_row = tl.sum(chances, 0), tl.sum(moves, 0)
            own = tl.where(heads_of(k, SINGLE, TILE), tl.exp(share), 0.0)
            missing = 1.0 - tl.sum(row, 0)
            column = tl.maximum(tl.sum(chances, 1) + own * missing, 0.0)
            more_column = own * (more_share * missing - tl.sum(more_row, 0))
            more_column = _ratio(tl.sum(moves, 1) + more_column, column) - more_into
            more_row = _ratio(more_row, row) - more_out
            write_row_and_column(bends, size, k, more_row, more_column, TILE)
            row, column = _log_ratio(row, out, LOW), _log_ratio(column, into, LOW)
            tile = put(tile, k, row, column, TILE)
            change = put(change, k, more_row, more_column, TILE)
