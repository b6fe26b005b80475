"""The exact law of perturb-and-MAP with one Gumbel per part: of small spaces, and of one subset.

It is not the Gibbs law (except for Categorical). In a matroid (subsets of size k, spanning trees)
the argmax is greedy, and the order in which parts are taken is a race between exponential clocks,
so with weights w = exp(scores)

    P(T) = sum over all orders of T's parts of the product of w_e / (sum of w_f over parts f that
    may come next),

here computed over sets of parts instead of orders: the chance that greedy passes through a set,
level by level.

For subsets the clocks give one integral instead. S wins if all its clocks ring before the first of
the others, which rings at a rate of W, the sum of the others' weights. Given that time t, the
chance is the product over S of ``1 - exp(-w_i t)``; with ``u = exp(-W t)``, which is uniform,

    P(S) = integral from 0 to 1 of the product over S of (1 - u^(w_i / W)) du.
"""

import math

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


def log_top_k_chance(scores: Tensor, z: Tensor) -> Float[Tensor, "*batch"]:
    """Log of the chance that ``argmax(scores + Gumbel)`` of a `KSubset` is ``z``, for any size.

    With it a subset model that is trained with perturb-and-MAP samples has a bound of its own law:
    ``log p(x, z) - log q(z)`` at a sample z. Differentiable with respect to the scores. About as
    accurate as float64 is.

    Args:
        scores: ``[..., items]``.
        z: 0/1, of the same shape: a 1 for each chosen item.

    Example:
        >>> import torch, nestruct
        >>> z = torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> nestruct.structures.log_top_k_chance(torch.zeros(4), z).exp()  # one of six subsets
        tensor(0.1667)
    """
    if z.shape != scores.shape:
        raise InputError(
            f"log_top_k_chance: z must have the shape of the scores, {tuple(scores.shape)}, got "
            f"{tuple(z.shape)}."
        )
    chosen, wide = z > 0, scores.double()
    others = torch.where(chosen, -torch.inf, wide).logsumexp(-1, keepdim=True)
    # Nobody else is there: all clocks ring in time. A number keeps the derivative finite.
    others = torch.where(others == -torch.inf, -_FAR, others)
    # s = log(W t): the integrand is smooth and falls off fast on both sides, where the trapezoid
    # rule gains digits with every node. In u it has corners at 0 and 1 that no polynomial fits.
    k = int(chosen.sum(-1).max()) if chosen.numel() else 0
    times = _log_times(k).to(wide.device)
    total = times - times.exp()
    for item in chosen.byte().topk(k).indices.unbind(-1):
        place = item[..., None]
        rang = _log_one_minus_exp(wide.gather(-1, place) - others + times)
        total = total + torch.where(chosen.gather(-1, place), rang, 0.0)
    found = total.logsumexp(-1) + math.log(float(times[1] - times[0]))
    return torch.where(wide.isnan().any(-1), torch.nan, found).to(scores.dtype)


_FAR = 1e4  # a log-weight beyond all others
_EARLY = -18.0  # log of the time before which nothing happens: less than 2e-8 of the whole


def _log_times(k: int) -> Float[Tensor, " nodes"]:
    """Nodes from before the first of k clocks can matter until after the last."""
    last = math.log(k + 10 * math.sqrt(k) + 40)
    step = min(0.25, 1 / math.sqrt(k + 1))  # the peak becomes narrow as k grows
    return torch.linspace(_EARLY, last, 1 + math.ceil((last - _EARLY) / step), dtype=torch.float64)


def _log_one_minus_exp(log_x: Tensor) -> Tensor:
    """``log(1 - exp(-x))`` for ``x = exp(log_x)``, right for any x, its derivative too."""
    small = log_x < -15
    x = torch.where(small, 0.0, log_x.clamp(max=6.0)).exp()
    return torch.where(small, log_x, torch.log(-torch.expm1(-x)))
