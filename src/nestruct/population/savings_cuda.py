"""Kernels for members with few examples each, whose work is reading memory.

`row_products` and `with_own_terms` read and write members' rows once. `bernoulli` is the last layer
of a decoder, its members' own terms and the log-likelihood: the shared product of some rows at a
time, which the cache may still hold when the log-likelihood reads it.
"""

import math

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor, nn

_AT_ONCE = 8192  # rows of which the logits are in memory at once


@triton.jit
def _own_terms_kernel(
    base,
    index,
    inner,
    own,
    own_bias,
    out,
    num_rows,
    num_examples,
    num_pairs,
    size,
    own_stride,
    own_bias_stride,
    HAS_INDEX: tl.constexpr,  # noqa: N803
    HAS_OWN_BIAS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    member = row // num_examples
    pair = member % num_pairs
    sign = tl.where(member < num_pairs, 1.0, -1.0)
    scale = tl.load(inner + row, mask=inside, other=0.0)
    source = row
    if HAS_INDEX:
        source = tl.load(index + row, mask=inside, other=0)
    for start in range(0, size, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        mask = inside[:, None] & (column < size)[None, :]
        value = tl.load(base + source[:, None] * size + column[None, :], mask=mask, other=0.0)
        place = pair[:, None] * own_stride + column[None, :]
        move = scale[:, None] * tl.load(own + place, mask=mask, other=0.0)
        if HAS_OWN_BIAS:
            place = pair[:, None] * own_bias_stride + column[None, :]
            move += tl.load(own_bias + place, mask=mask, other=0.0)
        place = row[:, None] * size + column[None, :]
        tl.store(out + place, value + sign[:, None] * move, mask=mask)


@triton.jit
def _row_products_kernel(
    x,
    right,
    out,
    num_rows,
    num_examples,
    num_pairs,
    size,
    right_stride,
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    pair = (row // num_examples) % num_pairs
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, size, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        mask = inside[:, None] & (column < size)[None, :]
        one = tl.load(x + row[:, None] * size + column[None, :], mask=mask, other=0.0)
        place = pair[:, None] * right_stride + column[None, :]
        total += tl.sum(one * tl.load(right + place, mask=mask, other=0.0), 1)
    tl.store(out + row, total, mask=inside)


@triton.jit
def _bernoulli_kernel(
    shared,
    inner,
    own,
    own_bias,
    x,
    index,
    out,
    num_rows,
    num_examples,
    num_inputs,
    own_stride,
    own_bias_stride,
    sign,
    HAS_OWN_BIAS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    pair = row // num_examples
    scale = sign * tl.load(inner + row, mask=inside, other=0.0)
    example = tl.load(index + row, mask=inside, other=0)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, num_inputs, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        mask = inside[:, None] & (column < num_inputs)[None, :]
        place = row[:, None] * num_inputs + column[None, :]
        logits = tl.load(shared + place, mask=mask, other=0.0)
        place = pair[:, None] * own_stride + column[None, :]
        logits += scale[:, None] * tl.load(own + place, mask=mask, other=0.0)
        if HAS_OWN_BIAS:
            place = pair[:, None] * own_bias_stride + column[None, :]
            logits += sign * tl.load(own_bias + place, mask=mask, other=0.0)
        place = example[:, None] * num_inputs + column[None, :]
        seen = tl.load(x + place, mask=mask, other=0.0)
        # softplus, of which neither branch overflows
        soft = tl.maximum(logits, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(logits)))
        total += tl.sum(tl.where(mask, seen * logits - soft, 0.0), 1)
    tl.store(out + row, total, mask=inside)


def row_products(
    x: Float[Tensor, "members rows size"], right: Float[Tensor, "pairs size"]
) -> Float[Tensor, "members rows"]:
    """``x . right`` of every row, where member i has the factor of pair ``i % pairs``."""
    x, right = x.contiguous(), _rows(right)
    members, rows, size = x.shape
    out = x.new_empty(members, rows)
    grid = (math.ceil(out.numel() / 32),)
    shape = (out.numel(), rows, len(right), size, right.stride(0))
    with torch.cuda.device_of(out):
        _row_products_kernel[grid](x, right, out, *shape, ROWS=32, COLUMNS=128)
    return out


def with_own_terms(
    base: Tensor,
    index: Int[Tensor, "members rows"] | None,
    inner: Float[Tensor, "members rows"],
    own: Float[Tensor, "pairs size"],
    own_bias: Float[Tensor, "pairs size"] | None,
) -> Float[Tensor, "members rows size"]:
    """``base[index] +- (inner own + own_bias)``; ``base`` has a row for each without an index."""
    base, own = base.contiguous(), _rows(own)
    moves = own if own_bias is None else _rows(own_bias)
    members, rows = inner.shape
    size = base.shape[-1]
    out = base.new_empty(members, rows, size)
    shape = (inner.numel(), rows, len(own), size, own.stride(0), moves.stride(0))
    with torch.cuda.device_of(out):
        _own_terms_kernel[(math.ceil(inner.numel() / 16),)](
            base,
            inner if index is None else index.contiguous(),
            inner.contiguous(),
            own,
            moves,
            out,
            *shape,
            HAS_INDEX=index is not None,
            HAS_OWN_BIAS=own_bias is not None,
            ROWS=16,
            COLUMNS=128,
        )
    return out


def bernoulli(
    hidden: Float[Tensor, "members rows size"],
    layer: nn.Linear,
    inner: Float[Tensor, "members rows"],
    own: Float[Tensor, "pairs inputs"],
    own_bias: Float[Tensor, "pairs inputs"] | None,
    batch: Float[Tensor, "batch inputs"],
    index: Int[Tensor, "members rows"],
) -> Float[Tensor, "members rows"]:
    """The log-likelihood at the logits ``layer(hidden) +- (inner own + own_bias)``.

    Args:
        hidden: What the layer sees.
        layer: The decoder's last one.
        inner: Sigma times ``hidden . right`` of each row.
        own: The left factors.
        own_bias: The bias's directions, times sigma.
        batch: The examples.
        index: Which of them each row is compared with.
    """
    batch, index, inner = batch.contiguous(), index.contiguous(), inner.contiguous()
    own = _rows(own)
    moves = own if own_bias is None else _rows(own_bias)
    members, rows, _ = hidden.shape
    pairs, out = len(own), hidden.new_empty(members, rows)
    each = max(1, _AT_ONCE // rows)
    with torch.cuda.device_of(out):
        for first in range(0, pairs, each):
            last = min(first + each, pairs)
            for half in range(members // pairs):  # the own terms are in the cache the second time
                some = slice(half * pairs + first, half * pairs + last)
                shared = nn.functional.linear(hidden[some], layer.weight, layer.bias).contiguous()
                count, num_inputs = (last - first) * rows, shared.shape[-1]
                _bernoulli_kernel[(math.ceil(count / 8),)](
                    shared,
                    inner[some],
                    own[first:last],
                    moves[first:last],
                    batch,
                    index[some],
                    out[some],
                    count,
                    rows,
                    num_inputs,
                    own.stride(0),
                    moves.stride(0),
                    1.0 - 2.0 * half,
                    HAS_OWN_BIAS=own_bias is not None,
                    ROWS=8,
                    COLUMNS=256,
                )
    return out


def _rows(tensor: Tensor) -> Tensor:
    """With rows whose numbers lie side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
