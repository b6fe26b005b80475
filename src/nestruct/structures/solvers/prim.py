"""Maximum spanning tree of a complete graph: dense Prim in O(n^2).

R. C. Prim, "Shortest connection networks and some generalizations", 1957. Scores are the
``n(n-1)/2`` undirected edges in the order of ``torch.triu_indices(n, n, 1)``; edge (i, j) with i <
j sits at ``i(2n - i - 1)/2 + j - i - 1``.
"""

import numpy as np
import torch
from torch import Tensor

from nestruct.kernels import jit
from nestruct.structures.rows import NO_MEMBER, NOT_FINITE, OK


@jit
def prim_kernel(rows, lengths, num_nodes, z, codes):
    """CPU kernel: ``rows [count, edges]`` to 0/1 ``z``, one code per row."""
    n = num_nodes
    first = np.empty(n, np.int64)  # edge (i, j) with i < j is first[i] + j
    for i in range(n):
        first[i] = i * (2 * n - i - 1) // 2 - i - 1
    best = np.empty(n)  # score of the best edge from an outside node to the tree, and that edge
    link = np.empty(n, np.int64)
    outside = np.empty(n, np.int64)
    for row in range(rows.shape[0]):
        scores, tree = rows[row], z[row]
        code = OK
        for edge in range(scores.shape[0]):
            tree[edge] = 0
            if not scores[edge] < np.inf:
                code = NOT_FINITE
        if code == OK:
            for j in range(n):
                best[j] = -np.inf
                outside[j] = j + 1
            newest = 0
            for size in range(n - 1, 0, -1):
                chosen = 0
                top = -np.inf
                for place in range(size):
                    j = outside[place]
                    edge = first[newest] + j if newest < j else first[j] + newest
                    if scores[edge] > best[j]:
                        best[j] = scores[edge]
                        link[j] = edge
                    if best[j] > top:
                        top = best[j]
                        chosen = place
                if top == -np.inf:
                    code = NO_MEMBER
                    break
                newest = outside[chosen]
                tree[link[newest]] = 1
                outside[chosen] = outside[size - 1]
        codes[row] = code


def prim_batched(rows: Tensor, lengths: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor]:
    """CUDA: a row of a block for each instance; elsewhere plain torch. No host synchronisation."""
    if num_nodes == 1:
        codes = torch.full((len(rows),), OK, device=rows.device)
        return torch.zeros_like(rows), codes
    if rows.is_cuda and rows.dtype in (torch.float32, torch.float64):
        from nestruct.structures.solvers.prim_cuda import prim_cuda

        z, feasible = prim_cuda(rows.contiguous(), num_nodes)
    else:
        z, feasible = prim_torch(rows, num_nodes)
    codes = torch.where(feasible, OK, NO_MEMBER)
    return z, torch.where((rows < torch.inf).all(-1), codes, NOT_FINITE)


def prim_torch(rows: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """n - 1 masked argmaxes over the whole batch: trees, and whether their edges are allowed."""
    n, count = num_nodes, rows.shape[0]
    edges = edge_index(n, rows.device)
    dense = rows[:, edges.clamp(min=0)]  # [count, n, n]; the diagonal is never read
    outside = torch.ones(count, n, dtype=torch.bool, device=rows.device)
    outside[:, 0] = False
    best, link = dense[:, 0], edges[0].expand(count, n)
    z = torch.zeros_like(rows)
    feasible = torch.ones(count, dtype=torch.bool, device=rows.device)
    for _ in range(n - 1):
        top, chosen = best.masked_fill(~outside, -torch.inf).max(-1, keepdim=True)
        feasible = feasible & (top[:, 0] > -torch.inf)
        z.scatter_(1, link.gather(1, chosen).clamp(min=0), 1.0)
        outside = outside.scatter(1, chosen, False)
        row = dense.gather(1, chosen[:, :, None].expand(count, 1, n))[:, 0]
        better = row > best
        best = torch.where(better, row, best)
        link = torch.where(better, edges[chosen[:, 0]], link)
    return z, feasible


def edge_index(num_nodes: int, device: torch.device | None = None) -> Tensor:
    """``[n, n]``: which edge joins two nodes, -1 on the diagonal."""
    # Computed on the device every time: a copy from the host is illegal inside a capture.
    node = torch.arange(num_nodes, device=device)
    low, high = torch.minimum(node[:, None], node), torch.maximum(node[:, None], node)
    return torch.where(low == high, -1, low * (2 * num_nodes - low - 1) // 2 + high - low - 1)


def prim_plain(scores: np.ndarray, num_nodes: int) -> np.ndarray:
    """The twin: grow the tree by the best edge that leaves it; `ValueError` when none does."""
    nodes = range(num_nodes)
    edges = {pair: e for e, pair in enumerate((i, j) for i in nodes for j in nodes if i < j)}
    z = np.zeros_like(scores)
    tree = {0}
    while len(tree) < num_nodes:
        leaving = [pair for pair in edges if len(tree & set(pair)) == 1]
        best = max(
            (p for p in leaving if scores[edges[p]] > -np.inf), key=lambda p: scores[edges[p]]
        )
        z[edges[best]] = 1
        tree |= set(best)
    return z
