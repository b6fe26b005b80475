"""The kernels of `nestruct.models.relational.pair_blocks` on CUDA.

Floors per pair, for H = 256: 6 H^2 multiplications and additions, 4 H exponentials and, in memory,
2 H numbers of two bytes written and as many read.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.models.relational.pair_blocks import LIMIT
from nestruct.models.relational.tree_moves_cuda import Blocks

FIRST = Blocks(64, 128, 64, 4, 1)
SECOND = Blocks(64, 256, 64, 4, 1)


@triton.jit
def _elu(x, LIMIT: tl.constexpr):  # noqa: N803
    return tl.where(x > 0, tl.minimum(x, LIMIT), tl.exp(x) - 1)


@triton.jit
def _first_block_kernel(
    received,  # [member, row, hidden]; rows are examples x nodes
    sent,
    weight,  # [member, hidden, hidden]
    bias,
    edges,  # [member, row x (nodes - 1), hidden]
    totals,  # [member, row, hidden]
    sums,  # [member, tile, 2, hidden]
    rows,
    tiles,
    NODES: tl.constexpr,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    LIMIT: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
):
    HALF: tl.constexpr = edges.dtype.element_ty  # noqa: N806
    program = tl.program_id(0)
    part = program % (HIDDEN // COLUMNS)
    tile = program // (HIDDEN // COLUMNS) % tiles
    member = (program // (HIDDEN // COLUMNS) // tiles).to(tl.int64)
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    node = row % NODES
    column, chunk = part * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, CHUNK)
    received += member * rows * HIDDEN
    sent += member * rows * HIDDEN
    weight += member * (HIDDEN * HIDDEN)
    edges += member * rows * ((NODES - 1) * HIDDEN)
    start = tl.load(bias + member * HIDDEN + column)[None, :]
    weights = ()  # they stay in shared memory
    for c in tl.static_range(HIDDEN // CHUNK):
        at = weight + column[:, None] * HIDDEN + (c * CHUNK + chunk)[None, :]
        weights += (tl.load(at),)  # type: ignore[assignment]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for place in range(NODES - 1):
        sender = row - node + place + (place >= node).to(tl.int32)
        out = tl.zeros((ROWS, COLUMNS), tl.float32) + start
        for c in tl.static_range(HIDDEN // CHUNK):
            unit = (c * CHUNK + chunk)[None, :]
            to = tl.load(received + row[:, None] * HIDDEN + unit, mask=inside[:, None], other=0.0)
            by = tl.load(sent + sender[:, None] * HIDDEN + unit, mask=inside[:, None], other=0.0)
            hidden = _elu(to.to(tl.float32) + by.to(tl.float32), LIMIT).to(HALF)
            out = tl.dot(hidden, weights[c].T, out)
        short = _elu(out, LIMIT).to(HALF)
        pair = row.to(tl.int64) * (NODES - 1) + place
        tl.store(edges + pair[:, None] * HIDDEN + column[None, :], short, mask=inside[:, None])
        out = tl.where(inside[:, None], short.to(tl.float32), 0.0)
        total += out
        squares += out * out
    at = totals + (member * rows + row)[:, None] * HIDDEN + column[None, :]
    tl.store(at, tl.minimum(total, LIMIT).to(HALF), mask=inside[:, None])
    sums += (member * tiles + tile) * (2 * HIDDEN)
    tl.store(sums + column, tl.sum(total, 0))
    tl.store(sums + HIDDEN + column, tl.sum(squares, 0))


@triton.jit
def _second_block_kernel(
    edges,  # [member, pair, hidden]: changed in place
    received,
    sent,
    skip,  # [member, hidden, hidden]
    weight,
    bias,
    sums,  # [member, tile, 2, hidden]
    pairs,
    tiles,
    NODES: tl.constexpr,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    LIMIT: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
):
    HALF: tl.constexpr = edges.dtype.element_ty  # noqa: N806
    program = tl.program_id(0)
    tile, member = program % tiles, (program // tiles).to(tl.int64)
    pair = tile * ROWS + tl.arange(0, ROWS)
    inside = (pair < pairs)[:, None]
    row, place = pair // (NODES - 1), pair % (NODES - 1)
    node = row % NODES
    sender = row - node + place + (place >= node).to(tl.int32)
    rows = pairs // (NODES - 1)
    unit, chunk = tl.arange(0, HIDDEN), tl.arange(0, CHUNK)
    at = edges + (member * pairs + pair)[:, None] * HIDDEN + unit[None, :]
    before = tl.load(at, mask=inside, other=0.0)
    received += member * rows * HIDDEN
    sent += member * rows * HIDDEN
    skip += member * (HIDDEN * HIDDEN)
    weight += member * (HIDDEN * HIDDEN)
    out = tl.zeros((ROWS, HIDDEN), tl.float32) + tl.load(bias + member * HIDDEN + unit)[None, :]
    for begin in range(0, HIDDEN, CHUNK):
        these = begin + chunk
        this = tl.load(skip + these[:, None] * HIDDEN + unit[None, :])
        then = tl.load(weight + unit[:, None] * HIDDEN + these[None, :])
        to = tl.load(received + row[:, None] * HIDDEN + these[None, :], mask=inside, other=0.0)
        by = tl.load(sent + sender[:, None] * HIDDEN + these[None, :], mask=inside, other=0.0)
        first = tl.dot(before, this.T) + (to.to(tl.float32) + by.to(tl.float32))
        out = tl.dot(_elu(first, LIMIT).to(HALF), then.T, out)
    short = _elu(out, LIMIT).to(HALF)
    tl.store(at, short, mask=inside)
    out = tl.where(inside, short.to(tl.float32), 0.0)
    sums += (member * tiles + tile) * (2 * HIDDEN)
    tl.store(sums + unit, tl.sum(out, 0))
    tl.store(sums + HIDDEN + unit, tl.sum(out * out, 0))


def first_block_cuda(
    received: Tensor, sent: Tensor, n: int, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `nestruct.models.relational.pair_blocks.first_block_plain`."""
    members, rows, size = received.shape
    blocks, tiles = FIRST, triton.cdiv(rows, FIRST.rows)
    columns = min(blocks.columns, size)
    edges = received.new_empty(members, rows * (n - 1), size)
    totals = torch.empty_like(received)
    sums = received.new_empty(members, tiles, 2, size, dtype=torch.float32)
    with torch.cuda.device_of(received):
        _first_block_kernel[(members * tiles * (size // columns),)](
            received,
            sent,
            weight,
            bias,
            edges,
            totals,
            sums,
            rows,
            tiles,
            NODES=n,
            HIDDEN=size,
            LIMIT=LIMIT,
            ROWS=blocks.rows,
            COLUMNS=columns,
            CHUNK=min(blocks.chunk, size),
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            maxnreg=blocks.registers,
        )
    return edges, totals, sums


def second_block_cuda(
    edges: Tensor,
    received: Tensor,
    sent: Tensor,
    skip: Tensor,
    n: int,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    """See `nestruct.models.relational.pair_blocks.second_block_plain`."""
    members, pairs, size = edges.shape
    blocks, tiles = SECOND, triton.cdiv(pairs, SECOND.rows)
    sums = bias.new_empty(members, tiles, 2, size)
    with torch.cuda.device_of(edges):
        _second_block_kernel[(members * tiles,)](
            edges,
            received,
            sent,
            skip,
            weight,
            bias,
            sums,
            pairs,
            tiles,
            NODES=n,
            HIDDEN=size,
            LIMIT=LIMIT,
            ROWS=blocks.rows,
            CHUNK=min(blocks.chunk, size),
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            maxnreg=blocks.registers,
        )
    return sums
