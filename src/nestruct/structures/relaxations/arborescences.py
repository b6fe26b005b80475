"""Log-partition and marginals of arborescences on CUDA, each with its derivative, by kernels.

`arborescences_cuda` has them. Derivatives of a higher order are those of `matrix_tree`'s own torch.
"""

from typing import Any

import torch
from torch import Tensor

from nestruct.structures.relaxations import matrix_tree
from nestruct.structures.relaxations.inside_outside import mapped_first


def log_sum(scores: Tensor, lengths: Tensor | None, single_root: bool) -> Tensor:
    """Log of the sum over arborescences, see `matrix_tree.log_arborescences`. Differentiable."""
    if lengths is None:
        lengths = torch.full(scores.shape[:-2], scores.shape[-1] - 1, device=scores.device)
    return _Sums.apply(scores, lengths, single_root)[0]


class _Sums(torch.autograd.Function):
    """Log-partition and marginals; then what was solved, for the derivative of marginals."""

    @staticmethod
    def forward(scores: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, ...]:
        from nestruct.structures.relaxations.arborescences_cuda import sums_cuda

        lead, rows = scores.shape[:-2], scores.detach().reshape(-1, *scores.shape[-2:])
        values, marginals, solved = sums_cuda(rows, lengths.reshape(-1), single_root)
        return tuple(part.view(lead + part.shape[1:]) for part in (values, marginals, *solved))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*inputs[:2], *output[1:])
        ctx.save_for_forward(*inputs[:2], *output[1:])
        ctx.single_root = inputs[2]
        ctx.set_materialize_grads(False)  # the first derivative has no slope for marginals

    @staticmethod
    def backward(ctx: Any, value_slope: Tensor | None, slope: Tensor | None, *_: None) -> tuple:
        scores, lengths, marginals, *solved = ctx.saved_tensors
        change = None
        if slope is not None:
            change = _Curvature.apply(scores, lengths, slope, *solved, ctx.single_root)
        if value_slope is not None:
            passed = value_slope[..., None, None] * marginals
            change = passed if change is None else change + passed
        return change, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple:
        scores, lengths, marginals, *solved = ctx.saved_tensors
        # The derivative of marginals is symmetric: along a tangent it is what it is by a slope.
        change = _Curvature.apply(scores, lengths, tangent, *solved, ctx.single_root)
        return (marginals * tangent).sum((-2, -1)), change, *[None] * len(solved)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, scores: Tensor, lengths: Tensor, single_root: bool):
        found = _Sums.apply(*mapped_first(info, in_dims, scores, lengths), single_root)
        return found, (0,) * len(found)


class _Curvature(torch.autograd.Function):
    """The derivative of ``marginals . slope``; its own derivatives are those of plain torch."""

    @staticmethod
    def forward(scores: Tensor, lengths: Tensor, slope: Tensor, *rest: Any) -> Tensor:
        from nestruct.structures.relaxations.arborescences_cuda import Solved, derivative_cuda

        *parts, single_root = rest
        axes = scores.dim() - 2
        rows = slope.detach().expand(scores.shape).reshape(-1, *scores.shape[-2:])
        # Under vmap what was solved may be expanded: kernels count on rows one after the other.
        solved = Solved(*(part.reshape(-1, *part.shape[axes:]).contiguous() for part in parts))
        found = derivative_cuda(rows, lengths.reshape(-1), solved, single_root)
        return found.to(scores.dtype).view(scores.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.single_root, ctx.rest = inputs[-1], len(inputs) - 3

    @staticmethod
    def backward(ctx: Any, change: Tensor) -> tuple:
        scores, lengths, slope = ctx.saved_tensors

        def total(inner: Tensor) -> Tensor:
            return matrix_tree.log_arborescences_torch(inner, lengths, ctx.single_root).sum()

        def product(inner: Tensor, along: Tensor) -> Tensor:
            return torch.func.vjp(torch.func.grad(total), inner)[1](along)[0]

        by_scores, by_slope = torch.func.vjp(product, scores, slope)[1](change)
        return by_scores, None, by_slope, *[None] * ctx.rest

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any):
        moved = mapped_first(info, in_dims, *inputs[:-1])
        return _Curvature.apply(*moved, inputs[-1]), 0
