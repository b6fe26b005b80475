"""A soft projective parse: Eisner's algorithm with a softmax in place of every argmax, O(n^3).

C. Corro and I. Titov, "Differentiable Perturb-and-Parse", 2019. Spans are those of
``solvers/eisner.py``. A span of i..j has one part s_k for each way to split it (a sum of two
narrower spans), and gets

    b = softmax(s),     value = sum over k of b_k s_k.

Arcs are then found going down from the whole sentence: a span with share c hands c b_k on to both
halves of split k. So z is the mean tree of a law that draws split after split: a mixture of trees,
though not with the weights of the Gibbs law (`soft_eisner`), for which values would have to be
``logsumexp(s)``. At low temperatures, so for large scores, it is the best tree.

The derivative is written out, as two more passes over the chart. Let g be the loss's derivative by
z. Then D, a span's expected sum of g over its arcs, goes up as values do, with the same b; and the
loss's derivative v by a span's value goes down as shares do:

    derivative by s_k  =  b_k (v (1 + s_k - value) + c (D_k - D)).

Nothing of size n^3 is kept: each pass computes the weights b anew.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from nestruct.kernels import LANES, jit, spread_rows
from nestruct.structures.relaxations.soft_parse_batched import parse_batched

# What is split: a span headed at its left end (RIGHT), one headed at its right end (LEFT), and the
# inside of an arc (INNER), to which the arc's own score comes on top.
RIGHT, LEFT, INNER, ARC_RIGHT, ARC_LEFT = 0, 1, 2, 3, 4
# The halves of each; RIGHT's first half is one node wider than its number says, and the second half
# of RIGHT and INNER begins one node later.
FIRST = (ARC_RIGHT, LEFT, RIGHT)
SECOND = (RIGHT, ARC_LEFT, LEFT)
_COLUMNS = 256  # of a table: as many lanes as that allows, so that it stays in the cache


def soft_parse(
    scores: Float[Tensor, "batch nodes nodes"],
    lengths: Int[Tensor, " batch"],
    *,
    single_root: bool,
) -> tuple[Float[Tensor, "batch nodes nodes"], Float[Tensor, " batch"]]:
    """The soft parse of each sentence, differentiable once; and its value, hugely negative if none.

    Args:
        scores: Arcs over the temperature, heads x dependents, finite; `FORBIDDEN` where there can
            be none: on the diagonal, into the root, beyond ``lengths``.
        lengths: Words of each sentence.
        single_root: Whether one word hangs from the root, or any number.
    """
    z, value = _SoftParse.apply(scores, lengths, single_root)
    return z, value


class _SoftParse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(scores, lengths)
        ctx.single_root = single_root
        run = parse_on_cpu if scores.device.type == "cpu" else parse_batched
        z, value = run(scores.detach(), lengths, single_root)
        ctx.mark_non_differentiable(value)
        return z, value

    @staticmethod
    @once_differentiable
    def backward(ctx, slope: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        scores, lengths = ctx.saved_tensors
        run = parse_on_cpu if scores.device.type == "cpu" else parse_batched
        return run(scores, lengths, ctx.single_root, slope)[0], None, None


def parse_on_cpu(
    scores: Tensor, lengths: Tensor, single_root: bool, slope: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The soft parse and its value; with ``slope``, g, the derivative by scores instead."""
    rows = scores.double().contiguous()  # one kernel to compile, and it is no faster in float32
    slopes = rows[:0] if slope is None else slope.double().contiguous()
    out, value = torch.empty_like(rows), rows.new_empty(len(rows))
    arrays = [tensor.numpy() for tensor in (rows, lengths.contiguous(), slopes, out, value)]

    def work(part: slice) -> None:
        order = np.argsort(arrays[1][part])  # sentences of like length share a chart
        _kernel(single_root, order, *(array[part] for array in arrays))

    spread_rows(work, len(rows), rows.numel())
    return out.to(scores.dtype), value.to(scores.dtype)


@jit
def _kernel(single_root, order, rows, lengths, slopes, out, values):
    """The kernel; ``slopes`` is empty for the parse itself.

    A table has spans by width and then by first node, for a few sentences side by side: all inner
    loops run over neighbours, without branches or calls, so that they are vectorised.
    """
    count, size = rows.shape[0], rows.shape[1]
    first = 1 if single_root else 0
    nodes = size - first
    lanes = max(1, min(LANES, count, _COLUMNS // size))
    backward = len(slopes) > 0
    arcs = np.empty((2, nodes, nodes * lanes))
    chart = np.zeros((5, nodes, nodes * lanes))
    tops, scales = np.empty((3, nodes, nodes * lanes)), np.empty((3, nodes, nodes * lanes))
    means = np.zeros((5 if backward else 0, nodes, nodes * lanes))
    shares, pulls = np.empty_like(chart), np.empty_like(means)
    roots = np.empty((lanes, nodes))
    buffers = np.empty((4, nodes * lanes))
    for start in range(0, count, lanes):
        group = order[start : start + lanes]
        longest = max(0, lengths[group[-1]] + 1 - first)
        for phase in range(2 if backward else 1):
            sums, out_table = (means, pulls) if phase else (chart, shares)
            _load(slopes if phase else rows, group, first, longest, lanes, arcs)
            _go_up(chart, tops, scales, phase == 0, arcs, sums, buffers, longest, lanes)
            _clear(out_table, longest)
            for lane in range(len(group)):
                row, length, chances = group[lane], lengths[group[lane]], roots[lane]
                if phase == 0:
                    values[row] = 0.0
                if length > 0 and single_root:
                    if phase == 0:
                        values[row] = _choose_root(rows[row], chart, length, lane, lanes, chances)
                    else:
                        _pull_root(slopes[row], means, length, lane, lanes, chances)
                    _seed(chances, out_table, length, lane, lanes)
                elif length > 0 and phase == 0:
                    values[row] = chart[RIGHT, length, lane]
                    shares[RIGHT, length, lane] = 1.0
            _go_down(chart, tops, scales, means, shares, out_table, phase, buffers, longest, lanes)
        found = pulls if backward else shares
        for lane in range(len(group)):
            row, length = group[lane], lengths[group[lane]]
            for i in range(size):
                for j in range(size):
                    out[row, i, j] = 0.0
            if single_root:
                for word in range(length):
                    out[row, 0, word + 1] = roots[lane, word]
            for i in range(first, length):
                for j in range(i + 1, length + 1):
                    place = (i - first) * lanes + lane
                    out[row, i, j] = found[ARC_RIGHT, j - i, place]
                    out[row, j, i] = found[ARC_LEFT, j - i, place]


@jit
def _load(rows, group, first, nodes, lanes, arcs):
    """Arcs to the right and to the left, as a table has them; the last sentence in spare lanes."""
    for lane in range(lanes):
        row = rows[group[min(lane, len(group) - 1)]]
        for width in range(1, nodes):
            for i in range(nodes - width):
                arcs[0, width, i * lanes + lane] = row[first + i, first + i + width]
                arcs[1, width, i * lanes + lane] = row[first + i + width, first + i]


@jit
def _clear(table, nodes):
    for kind in range(table.shape[0]):
        for width in range(nodes):
            for place in range(table.shape[2]):
                table[kind, width, place] = 0.0


@jit
def _part(row, table, length, lane, lanes, word):
    """A part of a whole sentence: the root's arc and what is on either side of its word."""
    after = table[RIGHT, length - 1 - word, word * lanes + lane]
    return row[0, word + 1] + table[LEFT, word, lane] + after


@jit
def _choose_root(row, chart, length, lane, lanes, chances):
    """The chances of all words to hang from the root, and the value of the sentence."""
    top, total, value = -np.inf, 0.0, 0.0
    for word in range(length):
        top = max(top, _part(row, chart, length, lane, lanes, word))
    for word in range(length):
        part = _part(row, chart, length, lane, lanes, word)
        chances[word] = math.exp(part - top)
        total += chances[word]
        value += chances[word] * part
    for word in range(length):
        chances[word] /= total
    return value / total


@jit
def _pull_root(row, means, length, lane, lanes, chances):
    """Turns the chances of all words to hang from the root into the derivatives by their parts."""
    mean = 0.0
    for word in range(length):
        mean += chances[word] * _part(row, means, length, lane, lanes, word)
    for word in range(length):
        chances[word] *= _part(row, means, length, lane, lanes, word) - mean


@jit
def _seed(parts, table, length, lane, lanes):
    """Hands the parts of a whole sentence on."""
    for word in range(length):
        table[LEFT, word, lane] += parts[word]
        table[RIGHT, length - 1 - word, word * lanes + lane] += parts[word]


@jit
def _go_up(chart, tops, scales, is_new, arcs, sums, buffers, nodes, lanes):
    """Fills ``sums``, the expected sum of ``arcs`` over each span, with the weights of the chart.

    ``is_new``: it is the chart itself, whose weights are to be found.
    """
    for width in range(1, nodes):
        size = (nodes - width) * lanes
        for kind in (INNER, RIGHT, LEFT):
            first, second = FIRST[kind], SECOND[kind]
            top, scale = tops[kind, width, :size], scales[kind, width, :size]
            cell, weights = sums[kind, width, :size], buffers[0, :size]
            if is_new:
                for place in range(size):
                    top[place] = -np.inf
                    scale[place] = 0.0
                for split in range(width):
                    wide, skip = split + (kind == RIGHT), split + (kind != LEFT)
                    a = chart[first, wide, :size]
                    b = chart[second, width - skip, skip * lanes : skip * lanes + size]
                    for place in range(size):
                        part = a[place] + b[place]
                        top[place] = part if part > top[place] else top[place]
            for place in range(size):
                cell[place] = 0.0
            for split in range(width):
                wide, skip = split + (kind == RIGHT), split + (kind != LEFT)
                a = chart[first, wide, :size]
                b = chart[second, width - skip, skip * lanes : skip * lanes + size]
                _weigh(a, b, top, weights)
                if is_new:
                    for place in range(size):
                        scale[place] += weights[place]
                a = sums[first, wide, :size]
                b = sums[second, width - skip, skip * lanes : skip * lanes + size]
                for place in range(size):
                    cell[place] += weights[place] * (a[place] + b[place])
            if is_new:
                for place in range(size):
                    scale[place] = 1.0 / scale[place]
            for place in range(size):
                cell[place] *= scale[place]
            if kind == INNER:
                for place in range(size):
                    sums[ARC_RIGHT, width, place] = cell[place] + arcs[0, width, place]
                    sums[ARC_LEFT, width, place] = cell[place] + arcs[1, width, place]


@jit
def _go_down(chart, tops, scales, means, shares, out, backward, buffers, nodes, lanes):
    """Hands shares on, or with ``backward`` the derivatives by values; ``out`` is seeded."""
    for width in range(nodes - 1, 0, -1):
        size = (nodes - width) * lanes
        for kind in (RIGHT, LEFT, INNER):
            first, second = FIRST[kind], SECOND[kind]
            top, scale = tops[kind, width, :size], scales[kind, width, :size]
            weights, constant, pull = buffers[0, :size], buffers[1, :size], buffers[2, :size]
            if kind == INNER:
                for place in range(size):
                    both = out[ARC_RIGHT, width, place] + out[ARC_LEFT, width, place]
                    out[INNER, width, place] = both
            share = shares[kind, width, :size]
            if backward:
                for place in range(size):
                    pull[place] = out[kind, width, place]
                    constant[place] = pull[place] * (1.0 - chart[kind, width, place])
                    constant[place] -= share[place] * means[kind, width, place]
            for split in range(width):
                wide, skip = split + (kind == RIGHT), split + (kind != LEFT)
                low, high = skip * lanes, skip * lanes + size
                a, b = chart[first, wide, :size], chart[second, width - skip, low:high]
                _weigh(a, b, top, weights)
                if backward:
                    factor = buffers[3, :size]
                    for place in range(size):
                        factor[place] = constant[place] + pull[place] * (a[place] + b[place])
                    a, b = means[first, wide, :size], means[second, width - skip, low:high]
                    for place in range(size):
                        factor[place] += share[place] * (a[place] + b[place])
                    for place in range(size):
                        weights[place] *= factor[place] * scale[place]
                else:
                    for place in range(size):
                        weights[place] *= share[place] * scale[place]
                a, b = out[first, wide, :size], out[second, width - skip, low:high]
                for place in range(size):
                    a[place] += weights[place]
                for place in range(size):
                    b[place] += weights[place]


@jit
def _weigh(a, b, top, weights):
    """``exp(a + b - top)`` without a call, so that it is vectorised: four times as fast.

    A polynomial for ``exp(x / 1024)``, to the power of 1024. Off by 2e-13 of a weight at most, for
    weights above 1e-13; exactly 0 for forbidden parts.
    """
    for place in range(len(weights)):
        x = (a[place] + b[place] - top[place]) / 1024
        p = 1 / 24 + x * (1 / 120 + x * (1 / 720 + x / 5040))
        p = 1 + x * (1 + x * (1 / 2 + x * (1 / 6 + x * p)))
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        weights[place] = p if x > -0.6 else 0.0  # x of -0.6: a weight of 1e-267
