"""The sums and samples of `inside_outside` in plain torch: level by level over the whole batch."""

import torch
from torch import Tensor

from nestruct.structures.recurrence import Level, Recurrence, edge_values, score_table, value_table
from nestruct.structures.relaxations.log_domain import FORBIDDEN


def sums_batched(
    recurrence: Recurrence, rows: Tensor, goals: Tensor, slopes: Tensor | None, want: bool
) -> tuple[Tensor, Tensor]:
    """Every device: level by level over the whole batch, no host synchronisation."""
    if rows.is_cuda:
        if recurrence.kernels and recurrence.kernels.sums_cuda:
            return recurrence.kernels.sums_cuda(rows, slopes, want)

        from nestruct.structures.relaxations.inside_outside_cuda import sums_cuda
        from nestruct.structures.solvers.best_derivation_cuda import has_kernel

        if has_kernel(recurrence, rows):
            return sums_cuda(recurrence, rows, goals, slopes, want)
    levels, values, table, bad = _inside_batched(recurrence, rows)
    goal = goals.clamp(min=0)[:, None]
    value = torch.where(bad | (goals < 0), torch.nan, values.gather(1, goal)[:, 0])
    if not want:
        return table[:, :0], value
    shares = value_table(recurrence, table).scatter_(1, goal, 1.0)
    found = torch.zeros_like(table)
    if slopes is not None:
        slope = score_table(slopes, -torch.inf)
        slope[:, -1] = 0.0
        means, pulls = value_table(recurrence, table), value_table(recurrence, table)
        for level in levels:
            chances = _chances(level, values, table)
            means[:, level.heads] = (chances * edge_values(level, means, slope)).sum(-1)
    for level in reversed(levels):
        chances, share = _chances(level, values, table), shares[:, level.heads, None]
        passed = change = chances * share
        if slopes is not None:
            excess = edge_values(level, means, slope) - means[:, level.heads, None]
            change = chances * (pulls[:, level.heads, None] + share * excess)
            _add(pulls, level.first, change)
            _add(pulls, level.second, change)
        _add(shares, level.first, passed)
        _add(shares, level.second, passed)
        _add(found, level.part, change)
    return found[:, : recurrence.num_parts], value


def _inside_batched(
    recurrence: Recurrence, rows: Tensor
) -> tuple[list[Level], Tensor, Tensor, Tensor]:
    used = recurrence.used_on(rows)
    finite = (rows < torch.inf) | ~used
    table = score_table(torch.where(finite & used, rows, 0.0), FORBIDDEN)
    values, levels = value_table(recurrence, table), recurrence.levels(rows)
    for level in levels:
        values[:, level.heads] = edge_values(level, values, table).logsumexp(-1)
    return levels, values, table, ~finite.all(1)


def _chances(level: Level, values: Tensor, table: Tensor) -> Tensor:
    return edge_values(level, values, table).softmax(-1)


def _add(into: Tensor, index: Tensor, change: Tensor) -> None:
    into.index_add_(1, index.flatten(), change.flatten(1))


def sample_batched(
    recurrence: Recurrence, rows: Tensor, goals: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Every device: all nodes draw an edge; those that the goal leads to mark theirs."""
    levels, values, table, bad = _inside_batched(recurrence, rows)
    goal = goals.clamp(min=0)[:, None]
    value = torch.where(bad | (goals < 0), torch.nan, values.gather(1, goal)[:, 0])
    marked, z = value_table(recurrence, table).scatter_(1, goal, 1.0), torch.zeros_like(table)
    for level in reversed(levels):
        chances = _chances(level, values, table)
        passed = chances.cumsum(-1) <= uniform[:, level.heads, None]
        # The first edge that the draw does not pass, or if it passes all, the last with a chance.
        later = (chances.flip(-1) > 0).int().argmax(-1)
        way = torch.minimum(passed.sum(-1), chances.shape[-1] - 1 - later)
        on, node = marked[:, level.heads], torch.arange(len(level.heads), device=rows.device)
        for tails, into in ((level.first, marked), (level.second, marked), (level.part, z)):
            into.scatter_add_(1, tails[node, way], on)
    return z[:, : recurrence.num_parts], value
