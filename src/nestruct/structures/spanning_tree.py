"""Spanning trees of the complete graph: the latent space of the paper's graph-layout task."""

import itertools
import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.noise import Noise
from nestruct.structures.base import GibbsStructure, SizedStructure, check_enumerable
from nestruct.structures.draws import Draws
from nestruct.structures.k_best import KBestStructure
from nestruct.structures.relaxations import matrix_tree
from nestruct.structures.solvers import solve
from nestruct.structures.solvers.prim import edge_index


class SpanningTree(SizedStructure, GibbsStructure, KBestStructure):
    """A spanning tree over ``num_nodes`` nodes.

    ``scores [..., n(n-1)/2]`` are undirected edges in triu order: edge e joins the nodes
    ``torch.triu_indices(n, n, 1)[:, e]``.

    Example:
        >>> import torch, nestruct
        >>> nestruct.SpanningTree(3).argmax(torch.tensor([0.1, 0.7, 0.2]))
        tensor([0., 1., 1.])
    """

    counts_solved = True
    equal_sizes = True
    nested = False

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = n = check_count("SpanningTree", "num_nodes", num_nodes, 1)
        self.part_shape = (n * (n - 1) // 2,)
        self.rank = n - 1

    def __repr__(self) -> str:
        return f"SpanningTree({self.num_nodes})"

    def argmax(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "*batch edges"]:
        """The maximum spanning tree. See `Structure.argmax`."""
        self._check("argmax", scores, context)
        return solve(scores, None, "prim", self.num_nodes, f"{self!r}.argmax")

    def log_count(self, lengths: None = None) -> Float[Tensor, ""]:
        """Cayley: ``log n^(n-2)``."""
        self._check_size(lengths, "log_count")
        return torch.tensor((self.num_nodes - 2) * math.log(self.num_nodes), dtype=torch.float64)

    def enumerate(self, size: int | None = None) -> Float[Tensor, "members edges"]:
        """Every tree, one per Pruefer sequence, in lexicographic order of the sequences."""
        self._check_size(size)
        n = self.num_nodes
        check_enumerable(repr(self), float(self.log_count()))
        if n <= 2:
            return torch.ones(1, n - 1)
        sequences = torch.tensor(list(itertools.product(range(n), repeat=n - 2)))
        degree = 1 + torch.nn.functional.one_hot(sequences, n).sum(1)
        edges = edge_index(n)
        z = torch.zeros(len(sequences), self.part_shape[0])
        every = torch.arange(len(sequences))
        for node in sequences.T:
            leaf = (degree == 1).int().argmax(1)  # the first leaf
            z[every, edges[leaf, node]] = 1
            degree[every, leaf] -= 1
            degree[every, node] -= 1
        last_two = (degree == 1).int().topk(2, dim=1).indices
        z[every, edges[last_two[:, 0], last_two[:, 1]]] = 1
        return z

    def contains(self, z: Tensor, **context: Tensor) -> Bool[Tensor, "*batch"]:
        """Whether each ``z`` has n - 1 edges that connect all nodes."""
        legal = self._check_members(z, context) & (z.sum(-1) == self.num_nodes - 1)
        if self.num_nodes == 1:
            return legal
        joined = self.dense((z == 1).float()) + torch.eye(self.num_nodes, device=z.device)
        for _ in range(self.num_nodes.bit_length()):  # squaring doubles the length of paths
            joined = (joined @ joined).clamp(max=1.0)
        return legal & (joined > 0).flatten(-2).all(-1)

    def dense(self, parts: Tensor) -> Tensor:
        """Edges as a matrix ``[..., n, n]``, symmetric, 0 on the diagonal."""
        edges = edge_index(self.num_nodes, parts.device)
        return torch.where(edges < 0, 0.0, parts[..., edges.clamp(min=0)])

    def _log_partition(self, scores: Tensor, **context: Tensor) -> Tensor:
        if self.num_nodes == 1:
            return scores.sum(-1)
        # Directing all edges away from node 0 turns a spanning tree into an arborescence, one to
        # one.
        return matrix_tree.log_arborescences(self.dense(scores), None, single_root=False)

    def sample(
        self, scores: Tensor, draws: torch.Generator | Noise, **context: Tensor
    ) -> Float[Tensor, "*batch edges"]:
        """One exact draw per row from the Gibbs law, in O(n^3) whatever the scores."""
        source = Draws(f"{self!r}.sample", draws)
        scores = source.repeat(scores)
        self._check("sample", scores, context)
        failed = self._log_z("sample", scores, {}).isnan()
        if self.num_nodes == 1:
            return torch.zeros_like(scores)
        dense = self.dense(self._normalise(scores.detach())[0])
        arcs = matrix_tree.sample_arborescences(dense, None, single_root=False, draws=source)
        low, high = torch.triu_indices(self.num_nodes, self.num_nodes, 1, device=scores.device)
        return torch.where(
            failed[..., None], torch.nan, arcs[..., low, high] + arcs[..., high, low]
        )
