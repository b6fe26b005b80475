"""Shortest paths on a grid whose costs follow from features: the generated task of PyEPO.

A. Elmachtoub and P. Grigas, "Smart 'Predict, then Optimize'", 2022; B. Tang and E. Khalil,
"PyEPO", 2024. With p features x ~ N(0, I), a matrix B of coin flips, and one draw u from
U[1 - w, 1 + w] for each cost, an edge costs

    c = (((B x) / sqrt(p) + 3)^degree + 1) / 3.5^degree * u.

A degree above 1 makes costs that no linear model gives; the noise w is what no model can give.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.structures import GridPath

_MAX_DEGREE = 50  # beyond it costs may not fit into float32


@dataclass(frozen=True, kw_only=True)
class ShortestPaths:
    """Features, the costs of a grid's edges, and the cheapest path to the east and south.

    The random numbers are those of PyEPO's ``genData`` for the same seed and as many examples as
    all splits have together: training examples come first, then validation, then test.

    Args:
        height: Rows of cells.
        width: Columns of cells.
        num_features: p.
        degree: Of the polynomial.
        noise_width: w; 0 for none.
        num_train: Examples to train on.
        num_validation: Examples to select by.
        num_test: Examples to report on.
        seed: With the sizes, the identity of the data, the matrix B included.

    Example:
        >>> from nestruct.data import ShortestPaths
        >>> train = ShortestPaths(degree=2, num_train=6).splits()["train"]
        >>> {name: tuple(values.shape) for name, values in train.items()}
        {'x': (6, 5), 'costs': (6, 40), 'z': (6, 40)}
    """

    height: int = 5
    width: int = 5
    num_features: int = 5
    degree: int = 1
    noise_width: float = 0.0
    num_train: int = 100
    num_validation: int = 1000
    num_test: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = ("num_features", "num_train", "num_validation", "num_test")
        for name in ("height", "width", *sizes):
            check_count("ShortestPaths", name, getattr(self, name), 1)
        check_count("ShortestPaths", "degree", self.degree, 1, _MAX_DEGREE)
        if self.height * self.width < 2:
            raise InputError("ShortestPaths: a grid of one cell has no edges; use a larger one.")
        if not 0 <= self.noise_width < 1:
            raise InputError(
                f"ShortestPaths: noise_width must be in [0, 1), got {self.noise_width!r}."
            )
        check_count("ShortestPaths", "seed", self.seed, 0, (1 << 32) - 1)

    @property
    def structure(self) -> GridPath:
        """The paths, by edges."""
        return GridPath(self.height, self.width, scores="edges")

    def splits(self) -> dict[str, dict[str, Tensor]]:
        """``train``, ``validation`` and ``test``: features ``x``, ``costs``, best paths ``z``."""
        sizes = {
            "train": self.num_train,
            "validation": self.num_validation,
            "test": self.num_test,
        }
        num_edges = self.structure.grid.num_edges
        draws = np.random.RandomState(self.seed)  # numpy keeps its numbers as they are, for ever
        matrix = draws.binomial(1, 0.5, (num_edges, self.num_features))
        x = draws.normal(0, 1, (sum(sizes.values()), self.num_features))
        low, high = 1 - self.noise_width, 1 + self.noise_width
        costs = edge_costs(matrix, x, self.degree) * draws.uniform(low, high, (len(x), num_edges))
        rows = {"x": torch.from_numpy(x).float(), "costs": torch.from_numpy(costs).float()}
        rows["z"] = self.structure.argmax(-rows["costs"])
        cuts = {name: values.split(list(sizes.values())) for name, values in rows.items()}
        return {
            split: {name: parts[place] for name, parts in cuts.items()}
            for place, split in enumerate(sizes)
        }

    def baselines(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """The best path by the mean costs of these examples: the same one for all."""
        costs = batch["costs"]
        best = self.structure.argmax(-costs.mean(0, keepdim=True))
        return {"the best single path": best.expand(costs.shape)}


def edge_costs(matrix: np.ndarray, x: np.ndarray, degree: int) -> np.ndarray:
    """Costs ``[examples, edges]`` before the noise.

    Args:
        matrix: B, ``[edges, features]``.
        x: ``[examples, features]``.
        degree: Of the polynomial.
    """
    linear = x @ matrix.T / np.sqrt(x.shape[1]) + 3
    return (linear**degree + 1) / 3.5**degree
