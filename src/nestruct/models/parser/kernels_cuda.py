"""The kernels of `nestruct.models.parser.kernels` on CUDA: one pass over what they read and write.

In plain torch a step of the LSTM is a dozen launches and twice the traffic, and the grid of pairs
is written and read again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 4  # sentences of a program
_TILE = 16  # heads and dependents of a program


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _lstm_kernel(
    gates,
    index,
    added,
    state,
    hidden,
    places,
    features,
    index_stride,  # from one direction to the next
    places_stride,
    num_items,
    num_places,
    examples,
    width,  # numbers from a row of outputs to the next, of which SIZE are used
    SIZE: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)  # member and direction
    member, direction = row // 2, row % 2
    example = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)[None, :]
    is_example = example < examples
    inside = is_example[:, None] & (lane < SIZE)
    item = tl.load(index + direction * index_stride + example, mask=is_example, other=0)
    place = tl.load(places + direction * places_stride + example, mask=is_example, other=0)
    here = (row * examples + example)[:, None]
    one = gates + ((member * num_items + item) * 2 + direction)[:, None] * (4 * SIZE) + lane
    two = added + here * (4 * SIZE) + lane
    enter = tl.load(one, mask=inside) + tl.load(two, mask=inside)
    keep = tl.load(one + SIZE, mask=inside) + tl.load(two + SIZE, mask=inside)
    new = tl.load(one + 2 * SIZE, mask=inside) + tl.load(two + 2 * SIZE, mask=inside)
    show = tl.load(one + 3 * SIZE, mask=inside) + tl.load(two + 3 * SIZE, mask=inside)
    before = tl.load(state + here * SIZE + lane, mask=inside)
    inner = tl.sigmoid(keep) * before + tl.sigmoid(enter) * _tanh(new)
    output = tl.sigmoid(show) * _tanh(inner)
    tl.store(state + here * SIZE + lane, inner, mask=inside)
    tl.store(hidden + here * width + lane, output, mask=inside)
    at = ((member * num_places + place) * 2 + direction)[:, None] * width
    tl.store(features + at + lane, output, mask=inside)


@triton.jit
def _arc_kernel(
    head,
    dependent,
    weight,
    lengths,
    scores,
    tokens,
    examples,
    SIZE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)  # member and sentence
    member, example = row // examples, row % examples
    length = tl.load(lengths + example)
    heads = tl.program_id(1) * TILE + tl.arange(0, TILE)
    dependents = tl.program_id(2) * TILE + tl.arange(0, TILE)
    above = head + ((member * tokens + heads) * examples + example) * SIZE
    below = dependent + ((member * tokens + dependents) * examples + example) * SIZE
    is_head, is_dependent = heads <= length, dependents <= length
    total = tl.zeros((TILE, TILE), tl.float32)
    if (tl.program_id(1) * TILE <= length) & (tl.program_id(2) * TILE <= length):
        for k in range(SIZE):
            h = tl.load(above + k, mask=is_head, other=0.0)
            d = tl.load(below + k, mask=is_dependent, other=0.0)
            w = tl.load(weight + member * SIZE + k)
            total += w * _tanh(h[:, None] + d[None, :])
    counts = is_head[:, None] & (is_dependent & (dependents > 0))[None, :]
    counts = counts & (heads[:, None] != dependents[None, :])
    inside = (heads < tokens)[:, None] & (dependents < tokens)[None, :]
    at = (row * tokens + heads)[:, None] * tokens + dependents[None, :]
    tl.store(scores + at, tl.where(counts, total, 0.0), mask=inside)


def lstm_step_cuda(
    gates: Tensor,
    index: Tensor,
    added: Tensor,
    state: Tensor,
    hidden: Tensor,
    places: Tensor,
    features: Tensor,
) -> None:
    """See `nestruct.models.parser.kernels.lstm_step`."""
    members, _, examples, size = state.shape
    grid = (2 * members, triton.cdiv(examples, _ROWS))
    with torch.cuda.device_of(state):
        _lstm_kernel[grid](
            gates,
            index,
            added,
            state,
            hidden,
            places,
            features,
            index.stride(0),
            places.stride(0),
            gates.shape[1],
            features.shape[1],
            examples,
            hidden.shape[-1],
            SIZE=size,
            LANES=triton.next_power_of_2(size),
            ROWS=_ROWS,
        )


def score_arcs_cuda(head: Tensor, dependent: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    """See `nestruct.models.parser.kernels.score_arcs`."""
    members, tokens, examples, size = head.shape
    head, dependent, weight = head.contiguous(), dependent.contiguous(), weight.contiguous()
    scores = head.new_empty(members, examples, tokens, tokens)
    tiles = triton.cdiv(tokens, _TILE)
    with torch.cuda.device_of(head):
        _arc_kernel[(members * examples, tiles, tiles)](
            head,
            dependent,
            weight,
            lengths,
            scores,
            tokens,
            examples,
            SIZE=size,
            TILE=_TILE,
            num_warps=2,
        )
    return scores
