"""The best member of a dynamic programme: its recurrence with max and +, and the way back.

R. Bellman, 1954; for chains A. Viterbi, 1967. What is computed from what is data, a `Recurrence`;
its number is the solver's option, and the goal of each row comes where other solvers have lengths.
"""

import numpy as np
import torch
from torch import Tensor

from nestruct.kernels import LANES, jit
from nestruct.structures.recurrence import (
    Recurrence,
    edge_values,
    plain_tables,
    recurrence_of,
    score_table,
    value_table,
)
from nestruct.structures.rows import BAD_LENGTH, NO_MEMBER, NOT_FINITE, OK


def derivation_kernel(rows, goals, handle, z, codes):
    """CPU kernel: ``rows [count, parts]`` to 0/1 ``z``, one code per row."""
    recurrence = recurrence_of(handle)
    if recurrence.kernels is not None and recurrence.kernels.best is not None:
        recurrence.kernels.best(rows, goals, z, codes)
        return
    _kernel(rows, goals, *recurrence.edges, recurrence.used, z, codes)


@jit
def _kernel(rows, goals, heads, starts, first, second, part, place, used, z, codes):
    """``LANES`` rows are filled side by side; ways are found again on the way down."""
    count, num_parts, num_nodes = rows.shape[0], rows.shape[1], len(place) - 1
    table = np.zeros((num_parts + 1, LANES), rows.dtype)
    values = np.zeros((num_nodes + 1, LANES))
    best = np.empty(LANES)
    stack = np.empty(num_nodes + 2, np.int64)
    for start in range(0, count, LANES):
        lanes = min(LANES, count - start)
        for lane in range(lanes):
            codes[start + lane] = OK if goals[start + lane] >= 0 else BAD_LENGTH
        for p in used:
            for lane in range(lanes):
                value = rows[start + lane, p]
                if not value < np.inf:
                    if codes[start + lane] == OK:
                        codes[start + lane] = NOT_FINITE
                    value = 0.0
                table[p, lane] = value
        for i in range(len(heads)):
            for lane in range(LANES):
                best[lane] = -np.inf
            for e in range(starts[i], starts[i + 1]):
                a, b, p = first[e], second[e], part[e]
                for lane in range(LANES):
                    value = (values[a, lane] + values[b, lane]) + table[p, lane]
                    best[lane] = value if value > best[lane] else best[lane]
            for lane in range(LANES):
                values[heads[i], lane] = best[lane]
        for lane in range(lanes):
            row = start + lane
            z[row] = 0
            if codes[row] == OK and values[goals[row], lane] == -np.inf:
                codes[row] = NO_MEMBER
            if codes[row] != OK:
                continue
            stack[0], depth = goals[row], 1
            while depth > 0:
                depth -= 1
                i = place[stack[depth]]
                if i < 0:
                    continue
                top, way = -np.inf, starts[i]
                for e in range(starts[i], starts[i + 1]):
                    value = values[first[e], lane] + values[second[e], lane]
                    value += table[part[e], lane]
                    if value > top:
                        top, way = value, e
                if part[way] < num_parts:
                    z[row, part[way]] = 1
                stack[depth], stack[depth + 1] = first[way], second[way]
                depth += 1 if second[way] == num_nodes else 2


def derivation_batched(rows: Tensor, goals: Tensor | None, handle: int) -> tuple[Tensor, Tensor]:
    """Every device: level by level over the whole batch, no host synchronisation."""
    assert goals is not None
    recurrence = recurrence_of(handle)
    if rows.is_cuda:
        from nestruct.structures.solvers.best_derivation_cuda import derivation_cuda, has_kernel

        if has_kernel(recurrence, rows):
            return derivation_cuda(rows, goals, recurrence)
    finite = (rows < torch.inf) | ~recurrence.used_on(rows)
    table = score_table(torch.where(finite, rows, 0.0), -torch.inf)
    values, ways = value_table(recurrence, table), []
    for level in recurrence.levels(rows):
        values[:, level.heads], way = edge_values(level, values, table).max(-1)
        ways.append(way)
    best = values.gather(1, goals.clamp(min=0)[:, None])[:, 0]
    z = follow(recurrence, ways, goals)
    codes = torch.where(best > -torch.inf, OK, NO_MEMBER)
    codes = torch.where(finite.all(1), codes, NOT_FINITE)
    return z.to(rows.dtype), torch.where(goals >= 0, codes, BAD_LENGTH)


def follow(recurrence: Recurrence, ways: list[Tensor], goals: Tensor) -> Tensor:
    """The member, 0/1, whose derivation takes the way ``ways[level] [rows, nodes]`` at a node."""
    marked = torch.zeros(
        len(goals), recurrence.num_nodes + 1, dtype=torch.float32, device=goals.device
    )
    z = marked.new_zeros(len(goals), recurrence.num_parts + 2)
    marked.scatter_(1, goals.clamp(min=0)[:, None], 1.0)
    for level, way in zip(reversed(recurrence.levels(goals)), reversed(ways), strict=True):
        on = marked[:, level.heads]
        for tails, into in ((level.first, marked), (level.second, marked), (level.part, z)):
            into.scatter_add_(1, pick(tails, way), on)
    return z[:, : recurrence.num_parts]


def pick(tails: Tensor, way: Tensor) -> Tensor:
    """The tails ``[nodes, edges]`` that ways ``[rows, nodes]`` lead to."""
    return tails[torch.arange(len(tails), device=tails.device), way]


def derivation_plain(scores: np.ndarray, goal: int, recurrence: Recurrence) -> np.ndarray:
    """The twin: every node's best edge, node after node; `ValueError` when there is none."""
    edges, ways = plain_tables(recurrence), {}
    values: dict[int, float] = {}

    def value_of(edge: tuple) -> float:
        first, second, part = edge
        total = values.get(first, 0.0) + (0.0 if second is None else values.get(second, 0.0))
        return total + (0.0 if part is None else float(scores[part]))

    for node, mine in edges.items():
        ways[node] = max(mine, key=value_of)
        values[node] = value_of(ways[node])
    z = np.zeros_like(scores)
    waiting = [goal]
    if values.get(goal, 0.0) == -np.inf:
        raise ValueError("no member")
    while waiting:
        first, second, part = ways.get(waiting.pop(), (None, None, None))
        waiting += [node for node in (first, second) if node is not None]
        if part is not None:
            z[part] = 1
    return z
