"""How far the smoothed loss is from the loss as a model learns: ``training.smoothing_gap``."""

from typing import Any

import torch
from torch import nn

from nestruct.data import select_rows
from nestruct.errors import InputError
from nestruct.estimators import Estimator, smoothing_gap
from nestruct.noise import Noise
from nestruct.training.evaluate import default_metrics

_EXAMPLES = 1000  # the first ones of a set, on which it is measured


class WithSmoothingGap:
    """Metrics of a model, and ``smoothing_gap``: the distance with the estimator's sigma.

    Args:
        estimator: What smooths the loss.
        num_perturbations: Members that the smoothed loss is estimated from.

    Raises:
        InputError: The estimator does not smooth the loss over parameters.
    """

    def __init__(self, estimator: Estimator, num_perturbations: int) -> None:
        if estimator.smoothing is None:
            raise InputError(
                "training.smoothing_gap needs an estimator that smooths the loss by a sigma of the "
                f"parameters, such as NES; {type(estimator).__name__} has none."
            )
        self.sigma, self.num_perturbations = estimator.smoothing, num_perturbations

    def __call__(self, model: nn.Module, batch: Any, noise: Noise) -> dict[str, Any]:
        """What `nestruct.evaluate` takes for its metrics."""
        values = default_metrics(model, batch, noise)
        counted = torch.as_tensor(noise.example) < _EXAMPLES
        gaps = torch.zeros_like(counted, dtype=torch.float64)
        if counted.any():
            gaps[counted] = smoothing_gap(
                model,
                batch if counted.all() else select_rows(batch, counted.nonzero()[:, 0]),
                sigma=self.sigma,
                num_perturbations=self.num_perturbations,
                seed=noise.seed,
            ).gap
        return values | {"smoothing_gap": (gaps, counted)}
