"""Prim's maximum spanning tree on CUDA: an instance is a row of a block, its nodes are the lanes.

The steps of `nestruct.structures.solvers.prim.prim_torch`, one by one, so both find the same
tree, whatever ties there are. Plain torch has eight launches for each of n - 1 steps; here the best
edges stay in registers, and memory is read once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_LANES = 512  # of a program


@triton.jit
def _prim_kernel(
    scores,  # [row, edges]
    z,  # [row, edges]: zeros
    feasible,
    count,
    size,
    EDGES: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    node = tl.arange(0, LANES)[None, :]
    scores += (row * EDGES)[:, None]
    infinite = float("inf")
    link = tl.broadcast_to(node - 1, (ROWS, LANES))  # the edge from node 0
    outside = inside[:, None] & (node > 0) & (node < NODES)
    best = tl.load(scores + link, mask=outside, other=-infinite)
    answer = inside
    for _ in range(size - 1):
        usable = tl.where(outside, best, -infinite)
        top = tl.max(usable, 1)
        answer = answer & (top > -infinite)
        first = tl.where(outside & (usable == top[:, None]), node, LANES)
        chosen = tl.minimum(tl.min(first, 1), NODES - 1)[:, None]  # NaN is equal to nothing
        edge = tl.sum(tl.where(node == chosen, link, 0), 1)
        tl.store(z + row * EDGES + edge, tl.full((ROWS,), 1, z.dtype.element_ty), mask=inside)
        outside = outside & (node != chosen)
        low, high = tl.minimum(node, chosen), tl.maximum(node, chosen)
        edges = low * (2 * NODES - low - 1) // 2 + high - low - 1
        value = tl.load(scores + edges, mask=outside, other=-infinite)
        better = value > best
        best, link = tl.where(better, value, best), tl.where(better, edges, link)
    tl.store(feasible + row, answer, mask=inside)


def prim_cuda(rows: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """A tree for each row of scores, and whether all its edges are allowed.

    Args:
        rows: Scores ``[row, edges]``, -inf for what is forbidden.
        num_nodes: At least two.
    """
    z = torch.zeros_like(rows)
    feasible = torch.empty(len(rows), dtype=torch.bool, device=rows.device)
    lanes = triton.next_power_of_2(num_nodes)
    block = max(1, _LANES // lanes)
    with torch.cuda.device_of(rows):
        _prim_kernel[(triton.cdiv(len(rows), block),)](
            rows,
            z,
            feasible,
            len(rows),
            num_nodes,
            EDGES=rows.shape[1],
            NODES=num_nodes,
            ROWS=block,
            LANES=lanes,
            num_warps=max(4, lanes // 128),
        )
    return z, feasible
