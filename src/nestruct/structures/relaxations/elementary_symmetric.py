"""Sums over k-subsets: elementary symmetric polynomials in the log domain, O(nk).

``E[i, j]``, the sum over j-subsets of the first i items, is ``E[i-1, j] + exp(score_i) E[i-1,
j-1]``: only additions of positive numbers, so it is accurate at any score scale.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.structures.draws import Draws
from nestruct.structures.relaxations import log_domain
from nestruct.structures.relaxations.log_domain import FORBIDDEN


def log_subsets(scores: Float[Tensor, "*batch items"], k: int) -> Float[Tensor, "*batch"]:
    """Log of the sum over all k-subsets of the exponentiated sum of their scores."""
    return _tables(scores, k)[-1][..., k]


def sample_subsets(
    scores: Float[Tensor, "*batch items"], k: int, draws: Draws
) -> Float[Tensor, "*batch items"]:
    """One exact draw per row: item by item, given how many are still due."""
    tables = _tables(scores, k)
    due = torch.full(scores.shape[:-1], k, device=scores.device)
    uniform = draws.uniform(scores)
    taken = []
    for item in range(scores.shape[-1] - 1, -1, -1):
        due_now = due[..., None]
        without = tables[item].gather(-1, due_now)
        with_item = tables[item].gather(-1, (due_now - 1).clamp(min=0)) + scores[..., item, None]
        take = (uniform[..., item, None] < torch.sigmoid(with_item - without)) & (due_now > 0)
        taken.append(take)
        due = due - take[..., 0].long()
    return torch.cat(taken[::-1], -1).to(scores.dtype)


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
