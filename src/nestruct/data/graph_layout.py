"""Graph layout: trees seen only through how their nodes move when they are drawn.

The paper's task (Section 4.1), generated as in M. Paulus et al., "Gradient Estimation with
Stochastic Softmax Tricks", 2020: a random tree, random positions, and then one step of a spring
layout (T. Fruchterman and E. Reingold, 1991) after the other. The positions are recorded; the tree
is what a model should find.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.noise import derive_seed
from nestruct.structures import SpanningTree
from nestruct.structures.base import check_count

_CHUNK = 1024  # examples simulated at once: what is in flight then stays in the cache
_LEAST = {"num_nodes": 2, "num_times": 2, "seed": 0}  # at least 1 for the others


@dataclass(frozen=True, kw_only=True)
class GraphLayout:
    """The graph-layout data: the paper's sizes by default.

    Args:
        num_nodes: Nodes of each tree.
        num_times: Positions recorded of each node. The random start is not among them.
        num_train: Examples to train on; their range is what all positions are scaled by.
        num_validation: Examples to select by.
        num_test: Examples to report on.
        seed: With the sizes, the identity of the data.

    Example:
        >>> from nestruct.data import GraphLayout
        >>> data = GraphLayout(num_nodes=4, num_train=20, num_validation=5, num_test=5).splits()
        >>> data["train"]["x"].shape, data["test"]["z"].shape
        (torch.Size([20, 4, 10, 2]), torch.Size([5, 6]))
    """

    num_nodes: int = 10
    num_times: int = 10
    num_train: int = 50_000
    num_validation: int = 10_000
    num_test: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            check_count("GraphLayout", name, getattr(self, name), _LEAST.get(name, 1))

    def splits(self) -> dict[str, dict[str, Tensor]]:
        """``train``, ``validation`` and ``test``, each a batch of two entries.

        Returns:
            ``x [examples, nodes, times, 2]``: positions, scaled to [-1, 1] by the smallest and the
            largest of the training set; ``z [examples, edges]``: the true tree, 0/1 in triu order,
            for evaluation only.
        """
        sizes = {
            "train": self.num_train,
            "validation": self.num_validation,
            "test": self.num_test,
        }
        raw = {
            name: self._simulate(size, derive_seed(self.seed, split))
            for split, (name, size) in enumerate(sizes.items())
        }
        low, high = raw["train"][0].aminmax()
        return {
            name: {"x": ((x - low) / (high - low) * 2 - 1).float(), "z": z}
            for name, (x, z) in raw.items()
        }

    def drawing(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        """What a report needs to draw examples, as plain JSON: ``paths`` of all nodes in time."""
        return {"paths": (batch["x"].double() * 1000).round().div(1000).tolist()}

    def baselines(self, batch: dict[str, Tensor]) -> dict[str, Float[Tensor, "examples edges"]]:
        """Trees found without learning, by name: what a learned model should be compared with."""
        late = batch["x"][:, :, -3:]
        rows, columns = torch.triu_indices(self.num_nodes, self.num_nodes, 1)
        distance = torch.linalg.vector_norm(late[:, rows] - late[:, columns], dim=-1).mean(-1)
        return {"shortest tree without learning": SpanningTree(self.num_nodes).argmax(-distance)}

    def _simulate(
        self, size: int, seed: int
    ) -> tuple[Float[Tensor, "examples nodes times 2"], Float[Tensor, "examples edges"]]:
        n, generator = self.num_nodes, torch.Generator().manual_seed(seed)
        rows, columns = torch.triu_indices(n, n, 1)
        # Gumbel weights in the paper; a maximum tree asks for their order only, as uniform ones do.
        weights = torch.rand(size, len(rows), dtype=torch.float64, generator=generator)
        starts = torch.randn(size, n, 2, dtype=torch.float64, generator=generator)
        x = torch.empty(size, n, self.num_times, 2, dtype=torch.float64)
        z = torch.empty(size, len(rows))
        for first in range(0, size, _CHUNK):
            part = slice(first, first + _CHUNK)
            tree = SpanningTree(n).argmax(weights[part])
            z[part] = tree.float()
            adjacency = tree.new_zeros(len(tree), n, n)
            adjacency[:, rows, columns] = adjacency[:, columns, rows] = tree
            positions = starts[part]
            for time in range(self.num_times):
                positions = layout_step(positions, adjacency)
                x[part, :, time] = positions
        return x, z


def layout_step(
    positions: Float[Tensor, "batch nodes 2"], adjacency: Float[Tensor, "batch nodes nodes"]
) -> Float[Tensor, "batch nodes 2"]:
    """One step of the spring layout, for many graphs at once.

    What ``networkx.spring_layout(graph, pos=positions, iterations=1, threshold=1e-10)`` of networkx
    3.6 does below 500 nodes: all pairs repel, neighbours attract, every node moves a tenth of the
    extent in the direction of its force, and the result is centred and scaled to [-1, 1].
    """
    k = positions.shape[-2] ** -0.5
    extent = (positions.amax(-2) - positions.amin(-2)).amax(-1)
    difference = positions[..., :, None, :] - positions[..., None, :, :]
    distance = torch.linalg.vector_norm(difference, dim=-1).clamp(min=0.01)
    strength = k**2 / distance**2 - adjacency * distance / k
    force = (difference * strength[..., None]).sum(-2)
    length = torch.linalg.vector_norm(force, dim=-1, keepdim=True).clamp(min=0.01)
    moved = positions + force * (0.1 * extent[..., None, None] / length)
    centred = moved - moved.mean(-2, keepdim=True)
    size = centred.abs().amax((-2, -1), keepdim=True)
    return centred / torch.where(size > 0, size, 1.0)  # all nodes in one place stay there
