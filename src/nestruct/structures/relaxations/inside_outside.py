"""Sums over the members of a dynamic programme, in the log domain: inside and outside.

With ``v_e = value(first) + value(second) + score(part)`` for each edge e of a node,

    value(node)  =  logsumexp of v_e,          p_e  =  exp(v_e - value(node)),

and p_e is the chance of e given its node. Going down from the goal, whose share is 1, a node hands
``share x p_e`` on to both tails and the part of e: what parts collect are the marginals. (J. Baker,
1979.) The product of the second derivative with a slope g is two more passes of the same kind. The
mean of g over the members below a node goes up, ``D = sum of p_e D_e`` with ``D_e = D(first) +
D(second) + g(part)``, and a derivative comes down with the share:

    by v_e:  p_e (derivative(node) + share (D_e - D)).

So log-partition and marginals are differentiable, and nothing of the size of all edges is kept.
Everything is summed in float64: on the CPU by one kernel, elsewhere level by level.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestruct.errors import InputError
from nestruct.kernels import LANES, jit, spread_rows
from nestruct.structures.recurrence import Recurrence
from nestruct.structures.relaxations.exponential import exponentiate
from nestruct.structures.relaxations.inside_outside_batched import sample_batched, sums_batched
from nestruct.structures.relaxations.log_domain import FORBIDDEN

_MANY = 20_000  # parts: a table of them for many rows would not stay in the cache
_PIECE = 256  # rows that are widened to float64 at once


def log_sum(recurrence: Recurrence, scores: Tensor, goals: Tensor) -> Tensor:
    """The log-partition of each row ``[..., parts]``; hugely negative if there is no member.

    NaN where a score that counts is, or where the goal is -1. Differentiable twice.
    """
    return _LogSum.apply(scores, goals, recurrence)


def marginals(recurrence: Recurrence, scores: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
    """The marginals of each row, NaN without a member; its log-partition. Differentiable once."""
    return _Marginals.apply(scores, goals, recurrence, torch.nan)


def mapped_first(info: Any, in_dims: tuple, *tensors: Tensor) -> list[Tensor]:
    """For vmap: every tensor with the mapped axis first."""
    return [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=False)
    ]


class _LogSum(torch.autograd.Function):
    @staticmethod
    def forward(scores: Tensor, goals: Tensor, recurrence: Recurrence) -> Tensor:
        return _run(recurrence, scores, goals)[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.recurrence = inputs[2]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple:
        found, _ = _Marginals.apply(*ctx.saved_tensors, ctx.recurrence, 0.0)
        return slope[..., None] * found, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, scores: Tensor, goals: Tensor, recurrence: Recurrence):
        return _LogSum.apply(*mapped_first(info, in_dims, scores, goals), recurrence), 0


class _Marginals(torch.autograd.Function):
    @staticmethod
    def forward(
        scores: Tensor, goals: Tensor, recurrence: Recurrence, failed: float
    ) -> tuple[Tensor, Tensor]:
        return _run(recurrence, scores, goals, want=True, failed=failed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:2], output[0])
        ctx.recurrence = inputs[2]
        ctx.set_materialize_grads(False)  # most losses use one of the two

    @staticmethod
    def backward(ctx: Any, slope: Tensor | None, value_slope: Tensor | None) -> tuple:
        scores, goals, found = ctx.saved_tensors
        change = None
        if slope is not None:
            change = _Curvature.apply(scores, goals, slope, ctx.recurrence)
        if value_slope is not None:
            passed = value_slope[..., None] * found
            change = passed if change is None else change + passed
        return change, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, scores: Tensor, goals: Tensor, *rest: Any):
        return _Marginals.apply(*mapped_first(info, in_dims, scores, goals), *rest), (0, 0)


class _Curvature(torch.autograd.Function):
    """The derivative of ``marginals . slope``; its own only where a recurrence has `plain` sums."""

    @staticmethod
    def forward(scores: Tensor, goals: Tensor, slope: Tensor, recurrence: Recurrence) -> Tensor:
        return _run(recurrence, scores, goals, slope, want=True)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        # It always counts as differentiable, so that nobody takes it for a constant.
        scores, _, slope, ctx.recurrence = inputs
        ctx.save_for_backward(scores, slope)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple:
        plain = ctx.recurrence.kernels and ctx.recurrence.kernels.plain
        if plain is None:
            raise InputError("Marginals can be differentiated once here, log-partitions twice.")

        def curvature(scores: Tensor, along: Tensor) -> Tensor:
            marginals = torch.func.grad(lambda inner: plain(inner).sum())
            return torch.func.vjp(marginals, scores)[1](along)[0]

        change, along_change = torch.func.vjp(curvature, *ctx.saved_tensors)[1](slope)
        return change, None, along_change, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, scores: Tensor, goals: Tensor, slope: Tensor, recurrence: Any
    ):
        moved = mapped_first(info, in_dims, scores, goals, slope)
        return _Curvature.apply(*moved, recurrence), 0


def _run(
    recurrence: Recurrence,
    scores: Tensor,
    goals: Tensor,
    slope: Tensor | None = None,
    *,
    want: bool = False,
    failed: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Marginals if they are wanted, or their derivative along a slope; and log-partitions.

    Where no member is, or a score is bad, the former are ``failed``.
    """
    lead = scores.shape[:-1]
    rows = scores.detach().reshape(math.prod(lead), scores.shape[-1])
    goals = goals.expand(lead).reshape(-1)
    slopes = None if slope is None else slope.detach().expand(scores.shape).reshape(rows.shape)
    if rows.device.type == "cpu":
        found, value = _on_cpu(recurrence, rows, goals, slopes, want, failed)
    else:
        found, value = sums_batched(recurrence, rows, goals, slopes, want)
        found = torch.where((value > FORBIDDEN / 2)[:, None], found, failed)
    return found.to(scores.dtype).view(*lead, found.shape[-1]), value.to(scores.dtype).view(lead)


@torch.no_grad()
def sample(
    recurrence: Recurrence, scores: Tensor, goals: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """One exact draw for each row, and its log-partition.

    Args:
        recurrence: The dynamic programme.
        scores: ``[..., parts]``.
        goals: The goal of each row.
        uniform: ``[..., nodes]``, draws from [0, 1).
    """
    return _Sample.apply(scores, goals, uniform, recurrence)


class _Sample(torch.autograd.Function):
    """Not differentiable; a function for its rule of vmap."""

    @staticmethod
    def forward(scores: Tensor, goals: Tensor, uniform: Tensor, recurrence: Recurrence):
        lead = scores.shape[:-1]
        rows = scores.reshape(math.prod(lead), scores.shape[-1])
        goals, draws = goals.expand(lead).reshape(-1), uniform.reshape(len(rows), uniform.shape[-1])
        if rows.device.type == "cpu":
            z = torch.empty_like(rows)
            value = torch.empty(len(rows), dtype=torch.float64)
            _spread(recurrence, rows, goals, None, z, value, draws)
        else:
            z, value = sample_batched(recurrence, rows, goals, draws)
        return z.to(scores.dtype).view(scores.shape), value.to(scores.dtype).view(lead)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, scores: Tensor, goals: Tensor, uniform: Tensor, recurrence: Any
    ):
        moved = mapped_first(info, in_dims, scores, goals, uniform)
        return _Sample.apply(*moved, recurrence), (0, 0)


def _on_cpu(
    recurrence: Recurrence,
    rows: Tensor,
    goals: Tensor,
    slopes: Tensor | None,
    want: bool,
    failed: float = 0.0,
) -> tuple[Tensor, Tensor]:
    value = torch.empty(len(rows), dtype=torch.float64)
    out = torch.empty(len(rows), rows.shape[1] if want else 0, dtype=rows.dtype)
    sums = recurrence.kernels and recurrence.kernels.sums
    if sums is not None:
        given = (rows, goals, rows[:, :0] if slopes is None else slopes, out, value)
        arrays = [tensor.contiguous().numpy() for tensor in given]
        spread_rows(lambda part: sums(*(array[part] for array in arrays)), len(rows), rows.numel())
    else:
        _spread(recurrence, rows, goals, slopes, out, value, None)
    out[~(value > FORBIDDEN / 2)] = failed
    return out, value


def _spread(
    recurrence: Recurrence,
    rows: Tensor,
    goals: Tensor,
    slopes: Tensor | None,
    out: Tensor,
    value: Tensor,
    uniform: Tensor | None,
) -> None:
    # In float64 whatever comes in: one kernel to compile, and it is no faster in float32. Widened
    # piece by piece: copies of a whole batch would cost as much time as the sums.
    none = rows.new_empty(len(rows), 0)
    given = [rows, none if slopes is None else slopes, none if uniform is None else uniform]
    recipe = (*recurrence.edges, recurrence.used, recurrence.max_edges)

    def work(part: slice) -> None:
        for start in range(part.start, min(part.stop, len(rows)), _PIECE):
            piece = slice(start, min(start + _PIECE, part.stop))
            wide = [tensor[piece].double().contiguous().numpy() for tensor in given]
            own = [tensor[piece].contiguous().numpy() for tensor in (goals, value)]
            found = np.empty((len(wide[0]), out.shape[1]))
            _kernel(*wide, own[0], found, own[1], *recipe)
            out[piece] = torch.from_numpy(found)
            value[piece] = torch.from_numpy(own[1])

    spread_rows(work, len(rows), rows.numel())


@jit
def _kernel(
    rows, slopes, uniform, goals, out, values, heads, starts, first, second, part, place, used, most
):
    """What is asked shows in the shapes: no ``out``, only values; ``slopes``, the derivative."""
    count, num_parts, num_nodes = rows.shape[0], rows.shape[1], len(place) - 1
    backward, down = slopes.shape[1] > 0, out.shape[1] > 0
    drawn = uniform.shape[1] > 0
    width = LANES if count <= LANES or num_parts > _MANY else 4 * LANES
    table = np.zeros((num_parts + 1, width))
    slope = np.zeros((num_parts + 1 if backward else 1, width))
    found = np.zeros((num_parts + 1 if down else 1, width))
    inside = np.zeros((num_nodes + 1, width))
    means = np.zeros((num_nodes + 1 if backward else 1, width))
    shares = np.zeros((num_nodes + 1 if down else 1, width))
    pulls = np.zeros((num_nodes + 1 if backward else 1, width))
    weights, edges = np.empty(most * width), (first, second, part)
    stack = np.empty(num_nodes + 2, np.int64)
    top, scale, mean = np.empty(width), np.empty(width), np.empty(width)
    for start in range(0, count, width):
        lanes = min(width, count - start)
        bad = np.zeros(width, np.bool_)
        for p in used:
            for lane in range(lanes):
                value = rows[start + lane, p]
                if not value < np.inf:
                    bad[lane], value = True, 0.0
                table[p, lane] = max(value, -1e30)  # FORBIDDEN
                if backward:
                    slope[p, lane] = slopes[start + lane, p]
        for i in range(len(heads)):
            low, high, head = starts[i], starts[i + 1], heads[i]
            _weigh(inside, table, edges, low, high, top, weights)
            for lane in range(width):
                scale[lane] = 0.0
                mean[lane] = 0.0
            for e in range(low, high):
                for lane in range(width):
                    scale[lane] += weights[(e - low) * width + lane]
                if backward:
                    a, b, p = first[e], second[e], part[e]
                    for lane in range(width):
                        mean[lane] += weights[(e - low) * width + lane] * (
                            means[a, lane] + means[b, lane] + slope[p, lane]
                        )
            for lane in range(width):
                inside[head, lane] = top[lane] + np.log(scale[lane]) if high > low else -1e30
                if backward:
                    means[head, lane] = mean[lane] / scale[lane] if high > low else 0.0
        for lane in range(lanes):
            goal = goals[start + lane]
            values[start + lane] = np.nan if goal < 0 or bad[lane] else inside[goal, lane]
            if drawn:
                row = start + lane
                _draw(row, lane, goal, inside, table, uniform, starts, edges, place, stack, out)
        if not down or drawn:
            continue
        shares[:] = 0.0
        found[:] = 0.0
        pulls[:] = 0.0
        for lane in range(lanes):
            shares[max(goals[start + lane], 0), lane] = 1.0
        for i in range(len(heads) - 1, -1, -1):
            low, high, head = starts[i], starts[i + 1], heads[i]
            some = 0.0
            for lane in range(width):
                some += shares[head, lane]
            if some == 0.0:
                continue
            # Divided by their own sum, chances are right however large the scores are.
            _weigh(inside, table, edges, low, high, top, weights)
            for lane in range(width):
                scale[lane] = 0.0
            for e in range(high - low):
                for lane in range(width):
                    scale[lane] += weights[e * width + lane]
            for lane in range(width):
                scale[lane] = 1.0 / scale[lane]
            for e in range(low, high):
                at, a, b, p = (e - low) * width, first[e], second[e], part[e]
                if backward:
                    for lane in range(width):
                        chance, share = weights[at + lane] * scale[lane], shares[head, lane]
                        excess = means[a, lane] + means[b, lane] + slope[p, lane]
                        excess -= means[head, lane]
                        mean[lane] = chance * (pulls[head, lane] + share * excess)
                    for lane in range(width):
                        pulls[a, lane] += mean[lane]
                    for lane in range(width):
                        pulls[b, lane] += mean[lane]
                    for lane in range(width):
                        found[p, lane] += mean[lane]
                for lane in range(width):
                    mean[lane] = weights[at + lane] * scale[lane] * shares[head, lane]
                for lane in range(width):
                    shares[a, lane] += mean[lane]
                for lane in range(width):
                    shares[b, lane] += mean[lane]
                if not backward:
                    for lane in range(width):
                        found[p, lane] += mean[lane]
        for lane in range(lanes):
            out[start + lane] = 0.0
        for p in used:
            for lane in range(lanes):
                out[start + lane, p] = found[p, lane]


@jit
def _weigh(inside, table, edges, low, high, top, weights):
    """``exp(v_e - top)`` of a node's edges, with top the largest v_e."""
    first, second, part = edges
    width = len(top)
    for lane in range(width):
        top[lane] = -np.inf
    for e in range(low, high):
        at, a, b, p = (e - low) * width, first[e], second[e], part[e]
        for lane in range(width):
            value = (inside[a, lane] + inside[b, lane]) + table[p, lane]
            weights[at + lane] = value
            top[lane] = value if value > top[lane] else top[lane]
    for e in range(high - low):
        at = e * width
        for lane in range(width):
            weights[at + lane] -= top[lane]
    exponentiate(weights[: (high - low) * width])


@jit
def _draw(row, lane, goal, inside, table, uniform, starts, edges, place, stack, z):
    """Walks down from the goal; at each node an edge is drawn with its chance p_e."""
    first, second, part = edges
    num_nodes, num_parts = len(place) - 1, z.shape[1]
    z[row] = 0.0
    stack[0], depth = max(goal, 0), 1
    while depth > 0:
        depth -= 1
        node = stack[depth]
        i = place[node]
        if i < 0:
            continue
        left, way = uniform[row, node], starts[i]
        for e in range(starts[i], starts[i + 1]):
            v = inside[first[e], lane] + inside[second[e], lane] + table[part[e], lane]
            chance = math.exp(v - inside[node, lane])
            if chance > 0.0:
                way = e
                left -= chance
                if left < 0.0:
                    break
        if part[way] < num_parts:
            z[row, part[way]] = 1.0
        stack[depth], stack[depth + 1] = first[way], second[way]
        depth += 1 if second[way] == num_nodes else 2
