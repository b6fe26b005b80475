"""The kernels of `nestruct.models.relational.tree_moves` on CUDA.

Floors per receiver, for n nodes and H = 256: (n - 1) messages of 2 H^2 multiplications and
additions (and 2 * 16 H for their first layer, again for every block of columns) and a move of 4
H^2; in memory H numbers of two bytes, written and read. Three blocks of messages fit a
multiprocessor of an H200, so one makes inputs on the ordinary cores while others multiply.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.models.relational.tree_moves import INPUTS


class Blocks(NamedTuple):
    """How a kernel is cut in programs; the least of these that the sizes need is taken."""

    rows: int  # receivers
    columns: int  # numbers of a message
    chunk: int  # hidden units between two products
    warps: int
    stages: int
    registers: int | None = None  # of a thread, at most


MESSAGES = Blocks(64, 128, 64, 4, 1)
MOVES = Blocks(128, 256, 128, 8, 1)  # takes the shared memory of an H100 or H200
SMALL_MOVES = Blocks(64, 256, 32, 4, 2)  # for less of it, 7% slower
LARGE = 228 << 10  # bytes of it in a multiprocessor


@triton.jit
def _relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _count(bits):
    """How many bits are set."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    return ((bits * 0x01010101) >> 24) & 0xFF


@triton.jit
def _ends(positions, receiver, sender, HALF: tl.constexpr, INPUTS: tl.constexpr):  # noqa: N803
    """[rows, inputs]: of both ends' coordinates high, low and high parts, and ones."""
    k = tl.arange(0, INPUTS)[None, :]
    part, coordinate = k // 4, k % 4
    at = tl.where(coordinate < 2, receiver[:, None], sender[:, None])
    value = tl.load(positions + at * 2 + coordinate % 2)
    rest = value - value.to(HALF).to(tl.float32)
    return tl.where(part == 3, 1.0, tl.where(part == 1, rest, value)).to(HALF)


@triton.jit
def _add_messages(
    total,
    senders,  # as bits
    row,
    node,
    positions,
    first,
    second,
    bias,
    column,
    HIDDEN: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
):
    HALF: tl.constexpr = second.dtype.element_ty  # noqa: N806
    inputs, chunk = tl.arange(0, INPUTS)[None, :], tl.arange(0, CHUNK)
    start = tl.load(bias + column)[None, :]
    firsts, seconds = (), ()  # they stay in shared memory
    for c in tl.static_range(HIDDEN // CHUNK):
        unit = c * CHUNK + chunk
        narrow = tl.load(first + unit[:, None] * INPUTS + inputs)
        firsts += (narrow,)  # type: ignore[assignment]
        wide = tl.load(second + column[:, None] * HIDDEN + unit[None, :])
        seconds += (wide,)  # type: ignore[assignment]
    for _ in range(tl.max(_count(senders), 0)):
        lowest = senders & -senders
        # A power of two says its place in its exponent; zero, for no sender, gets node 0.
        power = (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        ends = _ends(positions, row, row - node + tl.maximum(power, 0), HALF, INPUTS)
        out = tl.zeros(total.shape, tl.float32) + start
        for c in tl.static_range(HIDDEN // CHUNK):
            hidden = _relu(tl.dot(ends, firsts[c].T)).to(HALF)
            out = tl.dot(hidden, seconds[c].T, out)
        total += tl.where((senders != 0)[:, None], _relu(out), 0.0)
        senders = senders ^ lowest
    return total


@triton.jit
def _message_kernel(
    positions,  # [member, row, 2]; rows are cells x nodes
    bits,  # [member, row]
    order,  # [member, row]
    first,  # [member, kind x hidden, inputs]
    second,  # [member, kind x hidden, hidden]
    bias,  # [member, kind x hidden]
    totals,  # [member, row, hidden]
    rows,
    tiles,
    NODES: tl.constexpr,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    part = program % (HIDDEN // COLUMNS)
    tile = program // (HIDDEN // COLUMNS) % tiles
    member = (program // (HIDDEN // COLUMNS) // tiles).to(tl.int64)
    place = tile * ROWS + tl.arange(0, ROWS)
    inside = place < rows
    row = tl.load(order + member * rows + place, mask=inside, other=0)
    node = row % NODES
    edges = tl.load(bits + member * rows + row)
    others = edges ^ (((1 << NODES) - 1) ^ (1 << node))
    edges, others = tl.where(inside, edges, 0), tl.where(inside, others, 0)
    positions += member * rows * 2
    first += member * (2 * HIDDEN * INPUTS)
    second += member * (2 * HIDDEN * HIDDEN)
    bias += member * (2 * HIDDEN)
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    total = _add_messages(
        total, others, row, node, positions, first, second, bias, column, HIDDEN, INPUTS, CHUNK
    )
    first, second, bias = first + HIDDEN * INPUTS, second + HIDDEN * HIDDEN, bias + HIDDEN
    total = _add_messages(
        total, edges, row, node, positions, first, second, bias, column, HIDDEN, INPUTS, CHUNK
    )
    at = totals + (member * rows + row)[:, None] * HIDDEN + column[None, :]
    tl.store(at, total.to(totals.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _move_kernel(
    positions,
    totals,
    at,  # [member, hidden, 2]: move_in on positions
    inner,  # [member, hidden, hidden]: move_in on totals
    bias_in,
    hidden,
    bias_hidden,
    out,  # [member, 2, hidden]
    bias_out,
    moved,
    rows,
    tiles,
    HIDDEN: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    tile, member = program % tiles, (program // tiles).to(tl.int64)
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    here = member * rows + row
    unit, chunk = tl.arange(0, HIDDEN), tl.arange(0, CHUNK)
    x = tl.load(positions + here * 2, mask=inside, other=0.0)
    y = tl.load(positions + here * 2 + 1, mask=inside, other=0.0)
    total = tl.load(
        totals + here[:, None] * HIDDEN + unit[None, :], mask=inside[:, None], other=0.0
    )
    at += member * (HIDDEN * 2)
    inner += member * (HIDDEN * HIDDEN)
    hidden += member * (HIDDEN * HIDDEN)
    units = member * HIDDEN + unit
    sums = tl.zeros((ROWS, HIDDEN), tl.float32) + tl.load(bias_hidden + units)[None, :]
    for begin in range(0, HIDDEN, CHUNK):
        these = begin + chunk
        weight = tl.load(inner + these[:, None] * HIDDEN + unit[None, :])
        next_weight = tl.load(hidden + unit[:, None] * HIDDEN + these[None, :])
        across, up = tl.load(at + these * 2), tl.load(at + these * 2 + 1)
        bias = tl.load(bias_in + member * HIDDEN + these)
        first = tl.dot(total, weight.T)
        first += x[:, None] * across[None, :] + y[:, None] * up[None, :] + bias[None, :]
        sums = tl.dot(_relu(first).to(hidden.dtype.element_ty), next_weight.T, sums)
    sums = _relu(sums)
    right = tl.load(out + member * (2 * HIDDEN) + unit)
    above = tl.load(out + member * (2 * HIDDEN) + HIDDEN + unit)
    x += tl.sum(sums * right[None, :], 1) + tl.load(bias_out + member * 2)
    y += tl.sum(sums * above[None, :], 1) + tl.load(bias_out + member * 2 + 1)
    tl.store(moved + here * 2, x, mask=inside)
    tl.store(moved + here * 2 + 1, y, mask=inside)


def sum_messages_cuda(
    here: Tensor, bits: Tensor, order: Tensor, n: int, layers: Sequence[Tensor]
) -> Tensor:
    """See `nestruct.models.relational.tree_moves.sum_messages_plain`."""
    members, rows, _ = here.shape
    size = layers[1].shape[-1]
    totals = here.new_empty(members, rows, size, dtype=layers[1].dtype)
    blocks, tiles = MESSAGES, triton.cdiv(rows, MESSAGES.rows)
    columns = min(blocks.columns, size)
    with torch.cuda.device_of(here):
        _message_kernel[(members * tiles * (size // columns),)](
            here,
            bits,
            order,
            *layers[:3],
            totals,
            rows,
            tiles,
            NODES=n,
            HIDDEN=size,
            INPUTS=INPUTS,
            ROWS=blocks.rows,
            COLUMNS=columns,
            CHUNK=min(blocks.chunk, size),
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            maxnreg=blocks.registers,
        )
    return totals


def move_cuda(here: Tensor, totals: Tensor, layers: Sequence[Tensor]) -> Tensor:
    """See `nestruct.models.relational.tree_moves.move_plain`."""
    members, rows, _ = here.shape
    size = totals.shape[-1]
    moved = torch.empty_like(here)
    blocks = MOVES if _has_large_memory(here.device) else SMALL_MOVES
    tiles = triton.cdiv(rows, blocks.rows)
    with torch.cuda.device_of(here):
        _move_kernel[(members * tiles,)](
            here,
            totals,
            *layers[3:],
            moved,
            rows,
            tiles,
            HIDDEN=size,
            ROWS=blocks.rows,
            CHUNK=min(blocks.chunk, size),
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            maxnreg=blocks.registers,
        )
    return moved


@functools.cache
def _has_large_memory(device: torch.device) -> bool:
    if device.type != "cuda":  # the interpreter
        return True
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor >= LARGE
