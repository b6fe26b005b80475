"""The best member of a dynamic programme on CUDA: a row is a program, in one launch.

Level by level, a tile of nodes and their edges at a time; only then is the next level read. The way
back is walked with a stack, and a node's best edge found again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.structures.recurrence import Recurrence, Tables
from nestruct.structures.rows import BAD_LENGTH, NO_MEMBER, NOT_FINITE, OK

_TILE = 1024  # edges that a program looks at together
_MOST_NODES = 128
SIZES = ["num_levels", "num_nodes", "num_parts"]  # a kernel is not compiled anew for each
_MOST = 4096  # edges of a node


@triton.jit
def edges_of(begin, high, tables_starts, tables_part, num_parts, node, edge):
    """A tile of edges: which there are, their places in the tables, their parts, their nodes."""
    at = begin + node
    here = at < high
    start = tl.load(tables_starts + at, mask=here, other=0)
    end = tl.load(tables_starts + at + 1, mask=here, other=0)
    place = start[:, None] + edge[None, :]
    alive = place < end[:, None]
    part = tl.load(tables_part + place, mask=alive, other=num_parts)
    return alive, place, part, at, here


@triton.jit(do_not_specialize=SIZES)
def _derivation_kernel(
    rows,
    goals,
    values,
    stack,
    z,
    codes,
    bounds,
    heads,
    starts,
    first,
    second,
    part,
    place,
    num_levels,
    num_nodes,
    num_parts,
    OK: tl.constexpr,  # noqa: N803
    NOT_FINITE: tl.constexpr,  # noqa: N803
    NO_MEMBER: tl.constexpr,  # noqa: N803
    BAD_LENGTH: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    EDGES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    rows += row * num_parts
    z += row * num_parts
    values += row * (num_nodes + 1)
    stack += row * (num_nodes + 2)
    node, edge = tl.arange(0, NODES), tl.arange(0, EDGES)
    nothing = float("-inf")
    bad = num_levels * 0
    for level in range(num_levels):
        low = tl.load(bounds + level)
        high = tl.load(bounds + level + 1)
        for begin in range(low, high, NODES):
            alive, at_edge, own, at, here = edges_of(
                begin, high, starts, part, num_parts, node, edge
            )
            score = tl.load(rows + own, mask=alive & (own < num_parts), other=0.0).to(tl.float64)
            wrong = (score != score) | (score == float("inf"))
            bad = tl.maximum(bad, tl.max(tl.max(wrong.to(tl.int32), 1), 0))
            one = tl.load(values + tl.load(first + at_edge, mask=alive, other=0))
            two = tl.load(values + tl.load(second + at_edge, mask=alive, other=0))
            total = tl.where(alive, (one + two) + score, nothing)
            total = tl.where(wrong, 0.0, total)
            head = tl.load(heads + at, mask=here, other=0)
            tl.store(values + head, tl.max(total, 1), mask=here)
        tl.debug_barrier()

    goal = tl.load(goals + row).to(tl.int32)
    best = tl.load(values + tl.maximum(goal, 0))
    code = tl.where(best > nothing, OK, NO_MEMBER)
    code = tl.where(bad > 0, NOT_FINITE, code)
    code = tl.where(goal < 0, BAD_LENGTH, code)
    tl.store(codes + row, code.to(tl.int64))
    tl.store(stack, goal)
    depth = tl.where(code == OK, 1, 0)
    while depth > 0:
        depth -= 1
        tl.debug_barrier()
        at = tl.load(place + tl.load(stack + depth))
        tl.debug_barrier()  # all have read before anything is written there
        if at >= 0:
            start = tl.load(starts + at)
            at_edge = start + edge
            alive = at_edge < tl.load(starts + at + 1)
            own = tl.load(part + at_edge, mask=alive, other=num_parts)
            score = tl.load(rows + own, mask=alive & (own < num_parts), other=0.0).to(tl.float64)
            one = tl.load(values + tl.load(first + at_edge, mask=alive, other=0))
            two = tl.load(values + tl.load(second + at_edge, mask=alive, other=0))
            total = tl.where(alive, (one + two) + score, nothing)
            way = start + tl.min(tl.where(total == tl.max(total, 0), edge, EDGES), 0)
            taken = tl.load(part + way)
            tl.store(z + taken, 1.0, mask=taken < num_parts)
            tail = tl.load(second + way)
            tl.store(stack + depth, tl.load(first + way))
            tl.store(stack + depth + 1, tail)
            depth += tl.where(tail == num_nodes, 1, 2)


def tile_of(recurrence: Recurrence, tables: Tables) -> dict[str, int]:
    """How many nodes and edges a program looks at together, and its number of warps."""
    edges = triton.next_power_of_2(max(1, recurrence.max_edges))
    nodes = 1 if tables.most_nodes == 1 else min(_MOST_NODES, max(1, _TILE // edges))
    return {"NODES": nodes, "EDGES": edges, "num_warps": min(8, max(1, nodes * edges // 256))}


def has_kernel(recurrence: Recurrence, rows: Tensor) -> bool:
    """Whether a program can hold the edges of every node."""
    return rows.is_cuda and 0 < recurrence.max_edges <= _MOST and len(rows) > 0


def derivation_cuda(rows: Tensor, goals: Tensor, recurrence: Recurrence) -> tuple[Tensor, Tensor]:
    """The best member of each row ``[row, parts]``, 0/1, and a code for each."""
    rows, tables = rows.contiguous(), recurrence.tables(rows)
    count, num_nodes = len(rows), recurrence.num_nodes
    values = torch.zeros(count, num_nodes + 1, dtype=torch.float64, device=rows.device)
    stack = torch.empty(count, num_nodes + 2, dtype=torch.int32, device=rows.device)
    z, codes = (
        torch.zeros_like(rows),
        torch.empty_like(goals, memory_format=torch.contiguous_format),
    )
    with torch.cuda.device_of(rows):
        _derivation_kernel[(count,)](
            rows,
            goals.contiguous(),
            values,
            stack,
            z,
            codes,
            *tables.tensors,
            num_nodes,
            recurrence.num_parts,
            OK=OK,
            NOT_FINITE=NOT_FINITE,
            NO_MEMBER=NO_MEMBER,
            BAD_LENGTH=BAD_LENGTH,
            **tile_of(recurrence, tables),
        )
    return z, codes
