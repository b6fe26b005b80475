"""A Markov chain on spanning trees that swaps one edge at a time: MCMC for the Gibbs law.

The down-up walk on the bases of a matroid. One step takes a uniformly chosen edge out of the tree
and puts one back: edge e, among all that join the two halves (the old one included), with
probability proportional to ``exp(score_e)``. A tree and its neighbour go through the same two
halves, so the flow between them is the same in both directions and the law
``p(z) = exp(z . scores - A)`` is stationary. Whatever the scores, of the order of n log n steps
suffice (N. Anari et al., "Log-Concave Polynomials IV", 2021).

What the paper's Figure 2 times; `SpanningTree.sample` draws from the same law exactly.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nestruct.noise import Noise
from nestruct.structures.draws import Draws
from nestruct.structures.solvers.prim import edge_index
from nestruct.structures.spanning_tree import SpanningTree


def swap_edges(
    structure: SpanningTree,
    z: Float[Tensor, "*batch edges"],
    scores: Float[Tensor, "*batch edges"],
    *,
    num_steps: int,
    draws: torch.Generator | Noise,
) -> Float[Tensor, "*batch edges"]:
    """The trees that the chain is at after some steps, all rows at once.

    Args:
        structure: Which trees.
        z: Where each chain starts; rows of NaN (no tree there) stay.
        scores: The scores of the law.
        num_steps: Steps of each chain.
        draws: Where all draws come from, a generator or a noise; see `Samplable.sample`.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.structures.edge_swap import swap_edges
        >>> tree, scores = nestruct.SpanningTree(4), torch.zeros(5, 6)
        >>> draws = torch.Generator().manual_seed(0)
        >>> z = swap_edges(tree, tree.argmax(scores), scores, num_steps=20, draws=draws)
        >>> bool(tree.contains(z).all())
        True
    """
    n = structure.num_nodes
    if n <= 2:  # there is one tree
        return z
    source = Draws("swap_edges", draws)
    rows = scores.detach().expand_as(z)
    rows = rows - rows.amax(-1, keepdim=True)  # keeps the noise's bits
    parent = _root(structure, z)
    for _ in range(num_steps):
        parent = _step(parent, rows, source)
    node = torch.arange(1, n, device=z.device)
    edges = edge_index(n, z.device)[node, parent[..., 1:]]
    moved = torch.zeros_like(z).scatter_(-1, edges, 1.0)
    return torch.where(z.isnan(), torch.nan, moved)


def _root(structure: SpanningTree, z: Float[Tensor, "*batch edges"]) -> Int[Tensor, "*batch nodes"]:
    """Each node's parent when node 0 is the root, which is its own."""
    node = torch.arange(structure.num_nodes, device=z.device)
    joined = structure.dense(z) == 1
    parent = torch.zeros(*z.shape[:-1], structure.num_nodes, dtype=torch.long, device=z.device)
    reached = (node == 0).expand_as(parent)
    for _ in range(structure.num_nodes - 1):  # always as many: a captured graph cannot look
        links = joined & reached[..., None, :]
        found = links.any(-1) & ~reached
        parent = torch.where(found, links.byte().argmax(-1), parent)
        reached = reached | found
    return parent


def _step(
    parent: Int[Tensor, "*batch nodes"], scores: Float[Tensor, "*batch edges"], draws: Draws
) -> Int[Tensor, "*batch nodes"]:
    """One step of every chain."""
    n = parent.shape[-1]
    node = torch.arange(n, device=parent.device)
    jumps = [parent]  # to the ancestors 1, 2, 4, ... above: they reach the root in log n steps
    for _ in range((n - 1).bit_length() - 1):
        jumps.append(jumps[-1].gather(-1, jumps[-1]))
    cut = 1 + (draws.uniform(scores[..., :1]) * (n - 1)).long().clamp(max=n - 2)
    below = node == cut  # the half without the root, once the edge above `cut` is out
    for jump in jumps:
        below = below | below.gather(-1, jump)
    low, high = torch.triu_indices(n, n, 1, device=parent.device)
    noise = draws.log_exponential(scores)
    joins = below[..., low] != below[..., high]
    edge = torch.where(joins, scores - noise, -torch.inf).argmax(-1, keepdim=True)
    inner = torch.where(below.gather(-1, low[edge]), low[edge], high[edge])
    outer = low[edge] + high[edge] - inner
    path = (node == inner).long()
    for jump in jumps:
        path = path.scatter_add(-1, jump, path).clamp(max=1)
    # The way from `inner` up to `cut` turns around; then `inner` hangs below `outer`.
    turns = (path == 1) & below & (node != cut)
    return parent.scatter(-1, torch.where(turns, parent, inner), torch.where(turns, node, outer))
