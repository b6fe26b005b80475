"""The elimination of `matrix_tree` on CUDA, in float64 and without logarithms: a row is a program.

In place of weights, column k above the diagonal becomes ``q_h = w[h, k] / d_k`` and row k before it
``u_m = w[k, m]``, both as word k is eliminated, with ``d_k`` between them. Each is made when it is
due, of those of the words that went before: nothing is written twice, and a processor's cache holds
a matrix, where its registers do not.

The derivative of log Z by a weight, ``G[h, m]``, is the same before and after an elimination that
both nodes survive. So undoing adds a row and a column to it,

    G[k, m] = sum of q_h G[h, m],     G[h, k] d_k = 1 + sum of (G[h, m] - G[k, m]) u_m,

(without 1 and G[k, m] for a root that is no part of d_k), and marginals are ``w G``. The derivative
of G along a slope of the weights is the same, differentiated. Those are n^3 multiplications and
additions of numbers that are not negative, but for one that takes at most n from at most n; and
twice as many for the derivative.

Float64 holds exp(-700). `elimination_wide_cuda` does again what left that range.
"""

import triton
import triton.language as tl

_CHUNK = tl.constexpr(16)  # of a sum over nodes; all that a program keeps of it in registers


@triton.jit
def read_tile(matrix, size, count, other, TILE: tl.constexpr):  # noqa: N803
    """The arcs between the first nodes of a matrix; ``other`` elsewhere."""
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    arcs = (i < count) & (j < count) & (i != j) & (j > 0)
    return tl.load(matrix + i * size + j, mask=arcs, other=other)


@triton.jit
def places_of(front, length, size, TILE: tl.constexpr):  # noqa: N803
    """Where arcs are in the caller's matrices, in which word 1 is ``front``; which there are."""
    node = tl.arange(0, TILE)
    length = tl.minimum(length, size - 1)  # a row with a bad length has no answer anyway
    order = tl.where(node == 1, front, tl.where(node == front, 1, node))
    i, j = node[:, None], node[None, :]
    arcs = (i <= length) & (j <= length) & (i != j) & (j > 0)
    return order[:, None] * size + order[None, :], arcs


@triton.jit
def row_and_column(tile, k, TILE: tl.constexpr):  # noqa: N803
    """Row and column k of a tile, before the diagonal; 0 after it."""
    node = tl.arange(0, TILE)
    row = tl.sum(tl.where(node[:, None] == k, tile, 0.0), 0)
    column = tl.sum(tl.where(node[None, :] == k, tile, 0.0), 1)
    return tl.where(node < k, row, 0.0), tl.where(node < k, column, 0.0)


@triton.jit
def read_row_and_column(matrix, size, k, TILE: tl.constexpr):  # noqa: N803
    """The same of a matrix in memory."""
    node = tl.arange(0, TILE)
    row = tl.load(matrix + k * size + node, mask=node < k, other=0.0)
    return row, tl.load(matrix + node * size + k, mask=node < k, other=0.0)


@triton.jit
def write_row_and_column(matrix, size, k, row, column, TILE: tl.constexpr):  # noqa: N803
    """Writes what is before the diagonal."""
    node = tl.arange(0, TILE)
    tl.store(matrix + k * size + node, row, mask=node < k)
    tl.store(matrix + node * size + k, column, mask=node < k)


@triton.jit
def put(tile, k, row, column, TILE: tl.constexpr):  # noqa: N803
    """The tile with another row and column k."""
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    tile = tl.where((i == k) & (j < k), row[None, :], tile)
    return tl.where((j == k) & (i < k), column[:, None], tile)


@triton.jit
def heads_of(k, SINGLE: tl.constexpr, TILE: tl.constexpr):  # noqa: N803
    """The nodes that d_k sums over."""
    node = tl.arange(0, TILE)
    if SINGLE:
        return (node < k) & ((node > 0) | (k == 1))
    return node < k


@triton.jit
def _rows(vector, stride, matrix, size, low, high, k, TILE: tl.constexpr):  # noqa: N803
    """Sum over c from low to high of ``vector[c] matrix[c, m]`` for m < k; no diagonal."""
    node = tl.arange(0, TILE)[None, :]
    total = tl.zeros((_CHUNK, TILE), tl.float64)
    for start in range(low, high, _CHUNK):
        c = start + tl.arange(0, _CHUNK)
        factor = tl.load(vector + c * stride, mask=c < high, other=0.0)
        c = c[:, None]
        inside = (c < high) & (node < k) & (c != node)
        block = tl.load(matrix + c * size + node, mask=inside, other=0.0)
        total += block * factor[:, None]
    return tl.sum(total, 0)


@triton.jit
def _columns(vector, stride, matrix, size, low, high, k, TILE: tl.constexpr):  # noqa: N803
    """Sum over c from low to high of ``matrix[h, c] vector[c]`` for h < k; no diagonal."""
    node = tl.arange(0, TILE)[:, None]
    total = tl.zeros((TILE, _CHUNK), tl.float64)
    for start in range(low, high, _CHUNK):
        c = start + tl.arange(0, _CHUNK)
        factor = tl.load(vector + c * stride, mask=c < high, other=0.0)
        c = c[None, :]
        inside = (c < high) & (node < k) & (c != node)
        block = tl.load(matrix + node * size + c, mask=inside, other=0.0)
        total += block * factor[None, :]
    return tl.sum(total, 1)


@triton.jit(do_not_specialize=["size"])
def eliminate_kernel(
    factors,  # [row, node, node]: weights, overwritten
    size,
    SINGLE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """Eliminates all words, the last one first."""
    factors += tl.program_id(0).to(tl.int64) * size * size
    for step in range(size - 1):
        k = size - 1 - step
        row, column = read_row_and_column(factors, size, k, TILE)
        row += _rows(factors + k * size, 1, factors, size, k + 1, size, k, TILE)
        column += _columns(factors + k, size, factors, size, k + 1, size, k, TILE)
        degree = tl.sum(tl.where(heads_of(k, SINGLE, TILE), column, 0.0), 0)
        tl.debug_barrier()  # all have read
        write_row_and_column(factors, size, k, row, column / degree, TILE)
        tl.store(factors + k * size + k, degree)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["size"])
def undo_kernel(
    factors,
    slopes,  # of log Z by weights; nothing on the diagonal
    size,
    SINGLE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """The slopes, of the first words first."""
    place = tl.program_id(0).to(tl.int64) * size * size
    factors += place
    slopes += place
    node = tl.arange(0, TILE)
    for k in range(1, size):
        out = tl.load(factors + k * size + node, mask=node < k, other=0.0)
        degree = tl.load(factors + k * size + k)
        row = _rows(factors + k, size, slopes, size, 0, k, k, TILE)
        column = _columns(factors + k * size, 1, slopes, size, 0, k, k, TILE)
        missing = 1.0 - tl.sum(row * out, 0)
        column = (column + tl.where(heads_of(k, SINGLE, TILE), missing, 0.0)) / degree
        column = tl.maximum(column, 0.0)  # rounding
        write_row_and_column(slopes, size, k, row, column, TILE)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["size"])
def eliminate_change_kernel(
    factors,
    changes,  # [row, node, node]: of the weights, overwritten by those of the factors
    size,
    SINGLE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """How the factors change, if the weights do."""
    place = tl.program_id(0).to(tl.int64) * size * size
    factors += place
    changes += place
    node = tl.arange(0, TILE)
    for step in range(size - 1):
        k = size - 1 - step
        row, column = read_row_and_column(changes, size, k, TILE)
        row += _rows(changes + k * size, 1, factors, size, k + 1, size, k, TILE)
        row += _rows(factors + k * size, 1, changes, size, k + 1, size, k, TILE)
        column += _columns(changes + k, size, factors, size, k + 1, size, k, TILE)
        column += _columns(factors + k, size, changes, size, k + 1, size, k, TILE)
        more = tl.sum(tl.where(heads_of(k, SINGLE, TILE), column, 0.0), 0)
        share = tl.load(factors + node * size + k, mask=node < k, other=0.0)
        column = (column - share * more) / tl.load(factors + k * size + k)
        tl.debug_barrier()  # all have read
        write_row_and_column(changes, size, k, row, column, TILE)
        tl.store(changes + k * size + k, more)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["size"])
def undo_change_kernel(
    factors,
    slopes,
    changes,
    bends,  # how the slopes change; nothing on the diagonal
    size,
    SINGLE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """How the slopes change."""
    place = tl.program_id(0).to(tl.int64) * size * size
    factors += place
    slopes += place
    changes += place
    bends += place
    node = tl.arange(0, TILE)
    for k in range(1, size):
        out = tl.load(factors + k * size + node, mask=node < k, other=0.0)
        more_out = tl.load(changes + k * size + node, mask=node < k, other=0.0)
        slope_row, slope_column = read_row_and_column(slopes, size, k, TILE)
        row = _rows(factors + k, size, bends, size, 0, k, k, TILE)
        row += _rows(changes + k, size, slopes, size, 0, k, k, TILE)
        column = _columns(factors + k * size, 1, bends, size, 0, k, k, TILE)
        column += _columns(changes + k * size, 1, slopes, size, 0, k, k, TILE)
        missing = -tl.sum(row * out + slope_row * more_out, 0)
        column += tl.where(heads_of(k, SINGLE, TILE), missing, 0.0)
        column -= slope_column * tl.load(changes + k * size + k)
        column = column / tl.load(factors + k * size + k)
        write_row_and_column(bends, size, k, row, column, TILE)
        tl.debug_barrier()
