"""Sums over k-subsets: elementary symmetric polynomials, O(nk).

``E[i, j]``, the sum over j-subsets of the first i items, is ``E[i-1, j] + exp(score_i) E[i-1,
j-1]``: only additions of positive numbers, so it is accurate at any score scale. It is a
`Recurrence` with kernels of its own for the CPU and for CUDA. Tensors of logarithms, one for each
item, are their twin, and have derivatives of every order.
"""

import functools
import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.kernels import spread_rows
from nestruct.structures.draws import Draws
from nestruct.structures.recurrence import Kernels, Recurrence
from nestruct.structures.relaxations import inside_outside, log_domain
from nestruct.structures.relaxations.log_domain import FORBIDDEN
from nestruct.structures.relaxations.subset_sums import subset_draws, subset_sums


def log_subsets(scores: Float[Tensor, "*batch items"], k: int) -> Float[Tensor, "*batch"]:
    """Log of the sum over all k-subsets of the exponentiated sum of their scores."""
    return inside_outside.log_sum(*_problem(scores, k))


def subset_marginals(scores: Float[Tensor, "*batch items"], k: int) -> tuple[Tensor, Tensor]:
    """Each item's chance to be in the subset; what `log_subsets` gives, in one go."""
    return inside_outside.marginals(*_problem(scores, k))


def _problem(scores: Tensor, k: int) -> tuple[Recurrence, Tensor, Tensor]:
    recurrence = subset_recurrence(scores.shape[-1], k)
    goals = torch.full(scores.shape[:-1], int(recurrence.goals), device=scores.device)
    return recurrence, scores, goals


@functools.lru_cache(maxsize=32)
def subset_recurrence(num_items: int, k: int) -> Recurrence:
    """The node (i, j) is the sum over j-subsets of the first i items."""
    node = np.full((num_items + 1, k + 2), -1)
    node[:, 1:] = np.arange((num_items + 1) * (k + 1)).reshape(num_items + 1, k + 1)
    levels = []
    for i in range(1, num_items + 1):
        j = np.arange(max(0, k - num_items + i), min(i, k) + 1)
        without = np.where(j < i, node[i - 1, j + 1], -1)
        edges = np.stack([without, node[i - 1, j]], 1)
        levels.append((node[i, j + 1], edges, -1, [[-1, i - 1]]))
    kernels = Kernels(
        sums=functools.partial(subset_sums, k),
        sums_cuda=functools.partial(_sums_cuda, k),
        plain=functools.partial(plain_log_subsets, k=k),
    )
    return Recurrence(
        (num_items + 1, k + 1), num_items, levels, node[num_items, k + 1], kernels=kernels
    )


def _sums_cuda(k: int, *given: Any) -> tuple[Tensor, Tensor]:
    from nestruct.structures.relaxations.subset_sums_cuda import subset_sums_cuda

    return subset_sums_cuda(k, *given)


def plain_log_subsets(scores: Float[Tensor, "*batch items"], k: int) -> Float[Tensor, "*batch"]:
    """The twin of `log_subsets` in operations of torch."""
    return _tables(scores, k)[-1][..., k]


def sample_subsets(
    scores: Float[Tensor, "*batch items"], k: int, draws: Draws
) -> tuple[Float[Tensor, "*batch items"], Float[Tensor, "*batch"]]:
    """One exact draw per row, item by item, given how many are still due; and `log_subsets`."""
    uniform = draws.uniform(scores)
    if scores.device.type in ("cpu", "cuda"):
        return _Draw.apply(scores, uniform, k)
    return plain_sample(scores, uniform, k)


def plain_sample(
    scores: Float[Tensor, "*batch items"], uniform: Float[Tensor, "*batch items"], k: int
) -> tuple[Float[Tensor, "*batch items"], Float[Tensor, "*batch"]]:
    """The twin of `sample_subsets` in operations of torch, at given draws from [0, 1)."""
    tables = _tables(scores, k)
    due = torch.full(scores.shape[:-1], k, device=scores.device)
    taken = []
    for item in range(scores.shape[-1] - 1, -1, -1):
        due_now = due[..., None]
        without = tables[item].gather(-1, due_now)
        with_item = tables[item].gather(-1, (due_now - 1).clamp(min=0)) + scores[..., item, None]
        take = (uniform[..., item, None] < torch.sigmoid(with_item - without)) & (due_now > 0)
        taken.append(take)
        due = due - take[..., 0].long()
    return torch.cat(taken[::-1], -1).to(scores.dtype), tables[-1][..., k]


class _Draw(torch.autograd.Function):
    """`sample_subsets` by kernels. Not differentiable; a function for its rule of vmap."""

    @staticmethod
    def forward(scores: Tensor, uniform: Tensor, k: int) -> tuple[Tensor, Tensor]:
        lead = scores.shape[:-1]
        rows, draws = (t.reshape(math.prod(lead), scores.shape[-1]) for t in (scores, uniform))
        if scores.is_cuda:
            from nestruct.structures.relaxations.subset_sums_cuda import subset_draws_cuda

            z, value = subset_draws_cuda(k, rows, draws)
        else:
            z, value = rows.new_empty(rows.shape), torch.empty(len(rows), dtype=torch.float64)
            arrays = [tensor.contiguous().numpy() for tensor in (rows, draws, z, value)]
            run = functools.partial(subset_draws, k)
            spread_rows(lambda part: run(*(each[part] for each in arrays)), len(rows), z.numel())
        return z.view(scores.shape), value.view(lead)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, scores: Tensor, uniform: Tensor, k: int):
        moved = inside_outside.mapped_first(info, in_dims, scores, uniform)
        return _Draw.apply(*moved, k), (0, 0)


def entropy_from(
    scores: Float[Tensor, "*batch items"], k: int, first: int = 1
) -> Float[Tensor, "*batch"]:
    """The entropy in what items ``first`` to n tell, given those before; all of it from item 1 on.

    ``H[i, j] = h(p) + p H[i-1, j-1] + (1 - p) H[i-1, j]`` with p the chance that item i is one of
    the j among the first i, and h the entropy of that choice.
    """
    tables = _tables(scores, k)
    found = torch.zeros_like(tables[0])
    for item in range(first - 1, scores.shape[-1]):
        before = tables[item]
        log_odds = before[..., :-1] + scores[..., item, None] - before[..., 1:]
        chance = torch.sigmoid(log_odds)
        choice = torch.nn.functional.softplus(log_odds) - log_odds * chance
        later = choice + chance * found[..., :-1] + (1 - chance) * found[..., 1:]
        found = torch.cat([found[..., :1], later], -1)
    return found[..., k]


def _tables(scores: Float[Tensor, "*batch items"], k: int) -> list[Float[Tensor, "*batch orders"]]:
    """``tables[i][..., j]``: log of the sum over j-subsets of the first i items, j = 0..k."""
    lead = scores.shape[:-1]
    table = torch.cat([scores.new_zeros(*lead, 1), scores.new_full((*lead, k), FORBIDDEN)], -1)
    tables = [table]
    for item in range(scores.shape[-1]):
        grown = table[..., :-1] + scores[..., item, None]
        table = torch.cat([table[..., :1], log_domain.add(table[..., 1:], grown)], -1)
        tables.append(table)
    return tables
