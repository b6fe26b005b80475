"""Graph layout: trees seen only through how their nodes move when they are drawn.

The paper's task (Section 4.1), generated as in M. Paulus et al., "Gradient Estimation with
Stochastic Softmax Tricks", 2020: a random tree, random positions, and then one step of a spring
layout (T. Fruchterman and E. Reingold, 1991) after the other. The positions are recorded; the tree
is what a model should find.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.data.cache import cached
from nestruct.errors import InputError
from nestruct.kernels import jit, thread_pool
from nestruct.noise import derive_seed
from nestruct.structures import KSubset, SpanningTree
from nestruct.untrusted import memory

_CHUNK = 1024  # examples that a thread simulates at a time
_WORTH_KEEPING = 10_000  # examples: fewer take less than a second to generate
_FORMAT = 1  # of the cached files: another number when the same options give other data
_LEAST = {"num_nodes": 2, "num_times": 2, "seed": 0}  # at least 1 for the others


@dataclass(frozen=True, kw_only=True)
class GraphLayout:
    """The graph-layout data: the paper's sizes by default.

    Large sets are kept on disk and read back the next time; see `nestruct.data.cache`.

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
        if self.num_train + self.num_validation + self.num_test < _WORTH_KEEPING:
            flat = self._generate()
        else:
            options = dataclasses.asdict(self)
            flat = cached("graph-layout", _FORMAT, options, self._generate, self._shapes())
        return {
            name: {"x": flat[f"{name}.x"], "z": flat[f"{name}.z"].float()}
            for name in ("train", "validation", "test")
        }

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        n = self.num_nodes
        shapes: dict[str, tuple[int, ...]] = {}
        for name in ("train", "validation", "test"):
            size = getattr(self, f"num_{name}")
            shapes[f"{name}.x"] = (size, n, self.num_times, 2)
            shapes[f"{name}.z"] = (size, n * (n - 1) // 2)
        return shapes

    def _generate(self) -> dict[str, Tensor]:
        n, count = self.num_nodes, self.num_train + self.num_validation + self.num_test
        size = 8 * count * (n * (n - 1) // 2 + 2 * n * self.num_times)
        if size > memory():
            raise InputError(
                f"GraphLayout: {count:,} examples of {n:,} nodes take {size / 1e9:,.0f} GB, more "
                "than this machine has; say fewer."
            )
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
        flat = {}
        for name, (x, z) in raw.items():
            flat[f"{name}.x"] = ((x - low) / (high - low) * 2 - 1).float()
            flat[f"{name}.z"] = z.to(torch.uint8)
        return flat

    def drawing(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        """What a report needs to draw examples, as plain JSON: ``paths`` of all nodes in time."""
        return {"paths": (batch["x"].double() * 1000).round().div(1000).tolist()}

    def baselines(self, batch: dict[str, Tensor]) -> dict[str, Float[Tensor, "examples edges"]]:
        """Edges found without learning, by name: what a learned model should be compared with.

        From the mean distance of each pair over the last three records: the tree that is shortest,
        and the nearest pairs, as many as a tree has edges.
        """
        late, n = batch["x"][:, :, -3:], self.num_nodes
        rows, columns = torch.triu_indices(n, n, 1)
        distance = torch.linalg.vector_norm(late[:, rows] - late[:, columns], dim=-1).mean(-1)
        return {
            "shortest tree without learning": SpanningTree(n).argmax(-distance),
            "nearest pairs without learning": KSubset(len(rows), n - 1).argmax(-distance),
        }

    def _simulate(
        self, size: int, seed: int
    ) -> tuple[Float[Tensor, "examples nodes times 2"], Float[Tensor, "examples edges"]]:
        n, generator = self.num_nodes, torch.Generator().manual_seed(seed)
        # Gumbel weights in the paper; a maximum tree asks for their order only, as uniform ones do.
        weights = torch.rand(size, n * (n - 1) // 2, dtype=torch.float64, generator=generator)
        starts = torch.randn(size, n, 2, dtype=torch.float64, generator=generator)
        z = SpanningTree(n).argmax(weights)
        return layout(starts, z, self.num_times), z


def layout(starts: Tensor, z: Tensor, num_times: int) -> Float[Tensor, "examples nodes times 2"]:
    """Positions after each of the first steps of the spring layout, for many graphs at once.

    A step is what ``networkx.spring_layout(graph, pos=positions, iterations=1, threshold=1e-10)``
    of networkx 3.6 does below 500 nodes: all pairs repel, neighbours attract, every node moves a
    tenth of the extent in the direction of its force, and the result is centred and scaled to
    [-1, 1].

    Args:
        starts: Positions before the first step, ``[examples, nodes, 2]``, double precision.
        z: Edges, ``[examples, edges]``, 0/1 in triu order.
        num_times: Steps.
    """
    nodes = starts.shape[1] if starts.dim() == 3 else 0
    if starts.dim() != 3 or starts.shape[2] != 2:
        raise InputError(f"starts must be [examples, nodes, 2], got {tuple(starts.shape)}.")
    if tuple(z.shape) != (len(starts), nodes * (nodes - 1) // 2):
        raise InputError(
            f"z must be [examples, edges] = [{len(starts)}, {nodes * (nodes - 1) // 2}], got "
            f"{tuple(z.shape)}."
        )
    check_count("layout", "num_times", num_times, 1)
    x = starts.new_empty(*starts.shape[:2], num_times, 2)
    arrays = [tensor.detach().numpy() for tensor in (starts, z, x)]

    def work(first: int) -> None:
        _layout_kernel(*(array[first : first + _CHUNK] for array in arrays))

    list(thread_pool(torch.get_num_threads()).map(work, range(0, len(starts), _CHUNK)))
    return x


@jit
def _layout_kernel(starts, z, x):
    n = starts.shape[1]
    k = n**-0.5
    here = np.empty((n, 2))
    force = np.empty((n, 2))
    for example in range(starts.shape[0]):
        here[:] = starts[example]
        for time in range(x.shape[2]):
            extent = 0.0
            for axis in range(2):
                extent = max(extent, here[:, axis].max() - here[:, axis].min())
            force[:] = 0
            edge = 0
            for i in range(n):
                for j in range(i + 1, n):
                    dx, dy = here[i, 0] - here[j, 0], here[i, 1] - here[j, 1]
                    distance = max((dx * dx + dy * dy) ** 0.5, 0.01)
                    strength = k * k / (distance * distance) - z[example, edge] * distance / k
                    force[i, 0] += strength * dx
                    force[i, 1] += strength * dy
                    force[j, 0] -= strength * dx
                    force[j, 1] -= strength * dy
                    edge += 1
            for i in range(n):
                length = max((force[i, 0] ** 2 + force[i, 1] ** 2) ** 0.5, 0.01)
                for axis in range(2):
                    here[i, axis] += force[i, axis] * 0.1 * extent / length
            size = 0.0
            for axis in range(2):
                here[:, axis] -= here[:, axis].mean()
                size = max(size, np.abs(here[:, axis]).max())
            if size > 0:  # all nodes in one place stay there
                here /= size
            x[example, :, time] = here
