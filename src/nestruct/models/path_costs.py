"""Predict, then optimise: costs of edges from features, and the cheapest path by these costs.

The loss is the regret: how much more the path of the predicted costs costs than the best one. It
sees true costs, so every estimator can train on it, and those for labelled data on the truth
itself. The linear model is the one of PyEPO's benchmark.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.checks import check_count, check_positive
from nestruct.models.mlp import mlp
from nestruct.models.structured import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import GridPath


class PathCosts(StructuredModel):
    """Predicts the costs of a grid's edges; a batch has features ``x`` and true ``costs``.

    Args:
        num_features: Of each example.
        height: Rows of cells.
        width: Columns of cells.
        hidden_size: Units of a hidden layer; 0 for a linear model.
        score_scale: Scores are minus the predicted costs times this. Estimators that perturb
            scores compare them with noise of a size of their own; this says how large it is beside
            the costs.

    Example:
        >>> import torch
        >>> from nestruct.data import ShortestPaths
        >>> from nestruct.models import PathCosts
        >>> model = PathCosts(num_features=5, height=5, width=5)
        >>> batch = ShortestPaths(num_train=3).splits()["train"]
        >>> bool((model.decode(batch, batch["z"]) == 0).all())  # no regret
        True
    """

    structure: GridPath

    def __init__(
        self,
        num_features: int,
        height: int,
        width: int,
        *,
        hidden_size: int = 0,
        score_scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_count("PathCosts", "num_features", num_features, 1)
        check_count("PathCosts", "hidden_size", hidden_size, 0)
        check_positive("PathCosts", "score_scale", score_scale)
        self.structure = GridPath(height, width, scores="edges")
        self.score_scale = score_scale
        num_edges = self.structure.grid.num_edges
        if hidden_size:
            self.predictor: nn.Module = mlp(num_features, hidden_size, num_edges)
        else:
            self.predictor = nn.Linear(num_features, num_edges)

    def encode(self, batch: Any) -> Float[Tensor, "batch edges"]:
        """Minus the predicted costs, scaled."""
        return -self.score_scale * self.predictor(batch["x"])

    def decode(self, batch: Any, z: Tensor) -> Float[Tensor, "... batch"]:
        """Minus the regret of paths."""
        return ((batch["z"] - z) * batch["costs"]).sum(-1)

    def true_scores(self, batch: Any) -> Float[Tensor, "batch edges"]:
        """Minus the true costs, scaled."""
        return -self.score_scale * batch["costs"]

    @torch.no_grad()
    def metrics(self, batch: Any, noise: Noise) -> dict[str, Any]:
        """The decision's regret and how often it is none; and the loss.

        ``regret`` is normalised: the sum of regrets over the sum of the best paths' costs.
        """
        regret = -self.decode(batch, self.infer(batch))
        best = (batch["z"] * batch["costs"]).sum(-1)
        return {
            "loss": self.loss(batch, noise),
            "regret": (regret, best),
            # Ties that rounding makes of equal costs are no regret.
            "accuracy": (regret <= 1e-6 * best).to(regret.dtype),
        }
