"""The exact law of perturb-and-MAP with one Gumbel per part, for small spaces: an oracle for tests.

It is not the Gibbs law (except for Categorical). In a matroid (subsets of size k, spanning trees)
the argmax is greedy, and the order in which parts are taken is a race between exponential clocks,
so with weights w = exp(scores)

    P(T) = sum over all orders of T's parts of the product of w_e / (sum of w_f over parts f that
    may come next),

here computed over sets of parts instead of orders: the chance that greedy passes through a set,
level by level.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.errors import InputError
from nestruct.structures.categorical import Categorical
from nestruct.structures.k_subset import KSubset
from nestruct.structures.spanning_tree import SpanningTree


def perturb_and_map_law(
    structure: Categorical | KSubset | SpanningTree, scores: Float[Tensor, "*batch parts"]
) -> Float[Tensor, "*batch members"]:
    """The chance of each of ``structure.enumerate()`` to be ``argmax(scores + Gumbel)``.

    Differentiable.

    Example:
        >>> import torch, nestruct
        >>> law = nestruct.perturb_and_map_law(nestruct.KSubset(3, 2), torch.zeros(3))
        >>> law
        tensor([0.3333, 0.3333, 0.3333])
    """
    if not isinstance(structure, Categorical | KSubset | SpanningTree):
        raise InputError(
            f"perturb_and_map_law: only Categorical, KSubset and SpanningTree, got {structure!r}."
        )
    failed = structure.log_partition(scores).isnan()
    members = structure.enumerate().tolist()
    bases = [frozenset(part for part, on in enumerate(row) if on) for row in members]
    rank = len(bases[0])
    levels: list[dict[frozenset, int]] = [{} for _ in range(rank)] + [
        {base: i for i, base in enumerate(bases)}
    ]
    for level in range(rank - 1, -1, -1):
        smaller = {bigger - {part} for bigger in levels[level + 1] for part in bigger}
        levels[level] = {members: i for i, members in enumerate(sorted(smaller, key=sorted))}
    chance = scores.new_ones(*scores.shape[:-1], 1)
    for level in range(rank):
        steps = [(bigger, part) for bigger in levels[level + 1] for part in bigger]
        source = torch.tensor(
            [levels[level][bigger - {part}] for bigger, part in steps], device=scores.device
        )
        target = torch.tensor(
            [levels[level + 1][bigger] for bigger, _ in steps], device=scores.device
        )
        parts = torch.tensor([part for _, part in steps], device=scores.device)
        may_follow = torch.zeros(
            len(levels[level]), scores.shape[-1], dtype=torch.bool, device=scores.device
        )
        may_follow[source, parts] = True
        log_total = torch.where(may_follow, scores[..., None, :], -torch.inf).logsumexp(-1)
        # In a row without an answer there may be nothing left to follow.
        log_total = torch.where(log_total > -torch.inf, log_total, 0.0)
        step = chance[..., source] * (scores[..., parts] - log_total[..., source]).exp()
        chance = scores.new_zeros(*scores.shape[:-1], len(levels[level + 1])).index_add(
            -1, target, step
        )
    return torch.where(failed[..., None], torch.nan, chance)
