"""The k best members of a dynamic programme, and the best one with each part.

Both are the recurrence once more: with the k best totals of a node in place of its best one, and
with the best total outside of a node in place of its share. Level by level on every device, so many
rows at a time as memory should hold.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from nestruct.structures.recurrence import Recurrence, edge_values, score_table, value_table

MAX_VALUES = 1 << 23  # of one step: 64 MB


def k_best(recurrence: Recurrence, scores: Tensor, goals: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Members ``[k, ..., parts]`` and totals ``[k, ...]`` in float64; zeros and -inf if fewer.

    Totals of a row are NaN where a score that counts is NaN or +inf.
    """
    found = [_k_best(recurrence, *some, k) for some in _pieces(recurrence, scores, goals, k)]
    z, totals = (torch.cat(each, 1) for each in zip(*found, strict=True))
    return z.view(k, *scores.shape), totals.view(k, *scores.shape[:-1])


def max_marginals(recurrence: Recurrence, scores: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
    """The best total with each part, shaped as ``scores``; and that of each row."""
    found = [_max_marginals(recurrence, *some) for some in _pieces(recurrence, scores, goals, 1)]
    best_with, best = (torch.cat(each) for each in zip(*found, strict=True))
    return best_with.view(scores.shape), best.view(scores.shape[:-1])


def _pieces(
    recurrence: Recurrence, scores: Tensor, goals: Tensor, k: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of scores and goals, as many at a time as memory should hold."""
    rows, goal = scores.reshape(-1, recurrence.num_parts), goals.reshape(-1).clamp(min=0)
    widest = max((level.first.numel() for level in recurrence.levels(scores)), default=0)
    at_once = max(1, MAX_VALUES // (k * (recurrence.num_nodes + len(_ranks(k, True)) * widest)))
    return zip(rows.split(at_once), goal.split(at_once), strict=True)


def _ranks(k: int, binary: bool) -> list[tuple[int, int]]:
    """Which of the best of two tails can be among the k best sums."""
    others = range(k) if binary else range(1)
    return [(i, j) for i in range(k) for j in others if (i + 1) * (j + 1) <= k]


def _k_best(recurrence: Recurrence, scores: Tensor, goal: Tensor, k: int) -> tuple[Tensor, Tensor]:
    table, bad = _table(recurrence, scores)
    values = table.new_full((k, len(table), recurrence.num_nodes + 1), -torch.inf)
    values[0] = 0.0
    levels, ways = recurrence.levels(scores), []
    number = torch.arange(k, device=scores.device)
    for level in levels:
        ranks = _ranks(k, level.is_binary)
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
        ranks = _ranks(k, level.is_binary)
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
    return z.to(scores.dtype), totals


def _max_marginals(recurrence: Recurrence, scores: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    table, bad = _table(recurrence, scores)
    goal = goal[:, None]
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
    return found[:, :-2].to(scores.dtype), best


def _table(recurrence: Recurrence, scores: Tensor) -> tuple[Tensor, Tensor]:
    used = recurrence.used_on(scores)
    finite = (scores < torch.inf) | ~used
    return score_table(torch.where(finite & used, scores, 0.0), -torch.inf), ~finite.all(1)
