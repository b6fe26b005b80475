"""Paths over terrain: a convolutional network says what tiles cost, the solver finds the path.

M. Pogancic et al., "Differentiation of Blackbox Combinatorial Solvers", 2020: the loss is the
Hamming distance of the path to the true one, or here, where true costs are known, the regret.
A path has no bound below where costs may be negative, so the network's are positive.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.checks import check_choice, check_count, check_positive
from nestruct.data.terrain import COSTS
from nestruct.errors import InputError
from nestruct.models.structured import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import GridPath

_POSITIVE = ("absolute", "softplus")
_LOSSES = ("hamming", "squared", "regret")


class TerrainPaths(StructuredModel):
    """Predicts what the tiles of a picture cost; a batch has ``x``, ``costs`` and paths ``z``.

    Predicted costs are never negative. Noise on scores can make them so all the same; the solver
    then counts the tile as free, see `nestruct.GridPath`.

    Args:
        height: Rows of tiles.
        width: Columns of tiles.
        tile_size: Pixels of a tile's side.
        hidden_size: Channels of the network.
        context: Tiles of a side of the square around a tile that the network looks at: an odd
            number, 1 for the tile alone.
        loss: ``hamming``: tiles that are on one of both paths only, the true one or the model's, in
            the linear form whose derivative is the same whatever the model's path is; ``squared``:
            the same number for paths, as a square, whose derivative is 0 where they agree;
            ``regret``: what the model's path costs more than the true one.
        score_scale: Scores are minus the predicted costs times this. Estimators that perturb scores
            compare them with noise of a size of their own; this says how large it is beside costs.
        first_cost: What all tiles cost, about, before training.
        positive: What makes costs positive: the ``absolute`` value of what the network says, or
            ``softplus``, which has no slope left where costs have fallen to 0.

    Example:
        >>> from nestruct.data import Terrain
        >>> from nestruct.models import TerrainPaths
        >>> data = Terrain(num_train=3, num_validation=1, num_test=1)
        >>> model = TerrainPaths(data.height, data.width, data.tile_size)
        >>> batch = data.splits()["train"]
        >>> model.infer(batch).shape, bool((model.decode(batch, batch["z"]) == 0).all())
        (torch.Size([3, 12, 12]), True)
    """

    structure: GridPath

    def __init__(
        self,
        height: int,
        width: int,
        tile_size: int,
        *,
        hidden_size: int = 32,
        context: int = 3,
        loss: str = "hamming",
        score_scale: float = 1.0,
        first_cost: float = 3.0,
        positive: str = "absolute",
    ) -> None:
        super().__init__()
        owner = "TerrainPaths"
        check_count(owner, "tile_size", tile_size, 1)
        check_count(owner, "hidden_size", hidden_size, 1)
        if check_count(owner, "context", context, 1) % 2 == 0:
            raise InputError(f"{owner}: context must be odd, got {context}.")
        check_choice(f"{owner}: loss", loss, _LOSSES)
        check_choice(f"{owner}: positive", positive, _POSITIVE)
        check_positive(owner, "score_scale", score_scale)
        check_positive(owner, "first_cost", first_cost)
        self.structure = GridPath(height, width, moves="eight")
        self.measure, self.positive, self.score_scale = loss, positive, score_scale
        self.network = nn.Sequential(
            nn.Conv2d(1, hidden_size, tile_size, stride=tile_size),  # a tile becomes a cell
            nn.ReLU(),
            nn.Conv2d(hidden_size, hidden_size, 1),
            nn.ReLU(),
            nn.Conv2d(hidden_size, hidden_size, context, padding=context // 2),
            nn.ReLU(),
            nn.Conv2d(hidden_size, 1, 1),
        )
        inverse = math.log(-math.expm1(-first_cost))  # of softplus, less the first cost
        self.offset = first_cost + (inverse if positive == "softplus" else 0.0)

    def costs(self, batch: Any) -> Float[Tensor, "batch h w"]:
        """The predicted costs."""
        found = self.network(batch["x"])[:, 0] + self.offset
        return found.abs() if self.positive == "absolute" else nn.functional.softplus(found)

    def encode(self, batch: Any) -> Float[Tensor, "batch h w"]:
        """Minus the predicted costs, scaled."""
        return -self.score_scale * self.costs(batch)

    def decode(self, batch: Any, z: Tensor) -> Float[Tensor, "... batch"]:
        """Minus the loss of paths."""
        truth = batch["z"]
        if self.measure == "regret":
            each = (z - truth) * batch["costs"]
        elif self.measure == "squared":
            each = (z - truth).square()
        else:
            each = z + truth - 2 * z * truth
        return -each.sum((-2, -1))

    def true_scores(self, batch: Any) -> Float[Tensor, "batch h w"]:
        """Minus the true costs, scaled."""
        return -self.score_scale * batch["costs"]

    @torch.no_grad()
    def metrics(self, batch: Any, noise: Noise) -> dict[str, Any]:
        """How good paths are and how well tiles are read; the loss; and what noise turns round.

        ``accuracy``: the path costs as little as the best one. ``regret`` is normalised: the sum of
        regrets over the sum of the best paths' costs. ``accuracy_tiles``: of all classes' costs the
        nearest to the prediction is the right one, which tells something where a loss fixes the
        scale of costs. ``share_free``: tiles whose score Gumbel noise makes positive, which the
        solver counts as free.
        """
        scores = self.encode(batch)
        z = self.structure.argmax(scores)
        regret = ((z - batch["z"]) * batch["costs"]).sum((1, 2))
        best = (batch["z"] * batch["costs"]).sum((1, 2))
        known = torch.tensor(COSTS).to(scores)
        nearest = [
            (cost[..., None] - known).abs().argmin(-1)
            for cost in (-scores / self.score_scale, batch["costs"])
        ]
        right, free = nearest[0] == nearest[1], scores + noise.gumbel(scores) > 0
        return {
            "loss": self.loss(batch, noise),
            "regret": (regret, best),
            # Ties that rounding makes of equal costs are no regret.
            "accuracy": (regret <= 1e-5 * best).to(scores.dtype),
            "accuracy_tiles": right.to(scores.dtype).mean((1, 2)),
            "share_free": free.to(scores.dtype).mean((1, 2)),
        }
