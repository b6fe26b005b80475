"""The k best members of a dynamic programme, and the best one with each part.

Both are the recurrence once more: with the k best totals of a node in place of its best one, and
with the best total outside of a node in place of its share. Level by level on every device.
"""

import torch
from torch import Tensor

from nestruct.structures.recurrence import Recurrence, edge_values, score_table, value_table


def k_best(recurrence: Recurrence, scores: Tensor, goals: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Members ``[k, ..., parts]`` and totals ``[k, ...]`` in float64; zeros and -inf if fewer.

    Totals of a row are NaN where a score that counts is NaN or +inf.
    """
    lead = scores.shape[:-1]
    table, bad = _table(recurrence, scores)
    goal = goals.reshape(-1).clamp(min=0)
    values = table.new_full((k, len(table), recurrence.num_nodes + 1), -torch.inf)
    values[0] = 0.0
    levels, ways = recurrence.levels(scores), []
    # Of two tails, the ranks that can be among the k best sums.
    pairs = [(i, j) for i in range(k) for j in range(k) if (i + 1) * (j + 1) <= k]
    number = torch.arange(k, device=scores.device)
    for level in levels:
        ranks = pairs if level.is_binary else [(i, 0) for i in range(k)]
        sums = torch.stack(
            [
                (values[i][:, level.first] + values[j][:, level.second]) + table[:, level.part]
                for i, j in ranks
            ],
            -1,
        ).flatten(-2)
        # Sorted, not topk: equal totals then keep their order on every device.
        best, way = sums.sort(dim=-1, descending=True, stable=True)
        best, way = best[..., :k], way[..., :k]
        values.index_fill_(2, level.heads, -torch.inf)  # brackets would copy a number to a GPU
        values[: best.shape[-1], :, level.heads] = best.movedim(-1, 0)
        ways.append(way)
    totals = values.gather(2, goal.expand(k, -1)[..., None])[..., 0]
    # One more than the rank of the derivation that each result takes at a node.
    taken = torch.zeros_like(values, dtype=torch.long)
    at_goal = goal.expand(k, -1)[..., None]
    taken.scatter_add_(2, at_goal, (number + 1)[:, None, None].expand_as(at_goal))
    z = table.new_zeros(k, *table.shape)
    for level, way in zip(reversed(levels), reversed(ways), strict=True):
        ranks = pairs if level.is_binary else [(i, 0) for i in range(k)]
        rank = taken[:, :, level.heads]
        on = (rank > 0).long()
        index = (rank - 1).clamp(0, way.shape[-1] - 1)
        chosen = way.gather(2, index.movedim(0, -1)).movedim(-1, 0)
        edge, pair = chosen // len(ranks), chosen % len(ranks)
        node = torch.arange(len(level.heads), device=scores.device)
        first, second = torch.zeros_like(pair), torch.zeros_like(pair)
        for place, (i, j) in enumerate(ranks):
            first = first + i * (pair == place)
            second = second + j * (pair == place)
        taken.scatter_add_(2, level.first[node, edge], on * (first + 1))
        taken.scatter_add_(2, level.second[node, edge], on * (second + 1))
        z.scatter_add_(2, level.part[node, edge], on.double())
    z = torch.where((totals > -torch.inf)[..., None], z[..., : recurrence.num_parts], 0.0)
    totals = torch.where(bad, torch.nan, totals)
    return z.to(scores.dtype).view(k, *scores.shape), totals.view(k, *lead)


def max_marginals(recurrence: Recurrence, scores: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
    """The best total with each part, shaped as ``scores``; and that of each row."""
    lead = scores.shape[:-1]
    table, bad = _table(recurrence, scores)
    goal = goals.reshape(-1).clamp(min=0)[:, None]
    values, levels = value_table(recurrence, table), recurrence.levels(scores)
    for level in levels:
        values[:, level.heads] = edge_values(level, values, table).amax(-1)
    nodes = torch.arange(values.shape[1], device=scores.device)
    outside = torch.where(nodes == goal, torch.zeros_like(values), -torch.inf)
    found = torch.full_like(table, -torch.inf)
    for level in reversed(levels):
        above = outside[:, level.heads, None] + table[:, level.part]
        one, two = values[:, level.first], values[:, level.second]
        for index, into, total in (
            (level.part, found, above + one + two),
            (level.first, outside, above + two),
            (level.second, outside, above + one),
        ):
            into.scatter_reduce_(1, index.flatten().expand(len(into), -1), total.flatten(1), "amax")
    best = torch.where(bad, torch.nan, values.gather(1, goal)[:, 0])
    return found[:, :-2].to(scores.dtype).view(scores.shape), best.view(lead)


def _table(recurrence: Recurrence, scores: Tensor) -> tuple[Tensor, Tensor]:
    flat, used = scores.reshape(-1, recurrence.num_parts), recurrence.used_on(scores)
    finite = (flat < torch.inf) | ~used
    return score_table(torch.where(finite & used, flat, 0.0), -torch.inf), ~finite.all(1)
