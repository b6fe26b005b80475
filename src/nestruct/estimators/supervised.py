"""Plain backpropagation, for a loss that has no structure inside to estimate a gradient through.

The supervised phases of a model: its encoder taught by true structures, its decoder given them; and
the losses that compare scores with the truth, `nestruct.losses`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from nestruct.checks import check_count, check_positive
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.losses import FenchelYoungLoss, SPOPlusLoss
from nestruct.models import StructuredModel
from nestruct.models.hooks import HasTrueScores
from nestruct.models.structured import true_structures
from nestruct.noise import Noise
from nestruct.structures import Gibbs

_WITH_SCORES = ("spo_plus", "soft_spo_plus", "squared_error")


@dataclass(kw_only=True, eq=False)
class Supervised(Backpropagation):
    """The gradient of a loss by plain backpropagation; it must be differentiable.

    Args:
        loss: ``model``: that of ``model.loss``. The others compare the scores with the truth, and
            decode nothing. With true structures, the batch's entry ``z``: ``fenchel_young``, the
            sampled `FenchelYoungLoss`, and ``likelihood``, the exact one by the Gibbs law. With the
            model's hook ``true_scores``: ``spo_plus``, the `SPOPlusLoss`, ``soft_spo_plus``, the
            same with the soft maximum of the Gibbs law, and ``squared_error``, the mean square over
            parts, which knows nothing of structures.
        sigma: The size of the noise of ``fenchel_young``; the temperature of ``likelihood`` and of
            ``soft_spo_plus``.
        num_draws: Perturbed solutions per example of ``fenchel_young``.
        noise: Of ``fenchel_young``: ``gaussian`` or ``gumbel``.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> class Taught(nestruct.StructuredModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scores = torch.nn.Parameter(torch.zeros(3))
        ...     def loss(self, batch, noise):
        ...         return -(batch * self.scores.log_softmax(-1)).sum(-1)
        >>> report = nestruct.Supervised().backward(Taught(), torch.eye(3)[:2], seed=0)
        >>> bool(report.grad_norm > 0)
        True
    """

    kind: ClassVar[str] = "supervised"

    loss: Literal[
        "model", "fenchel_young", "likelihood", "spo_plus", "soft_spo_plus", "squared_error"
    ] = "model"
    sigma: float = 1.0
    num_draws: int = 16
    noise: Literal["gaussian", "gumbel"] = "gaussian"
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Supervised", "sigma", self.sigma)
        check_count("Supervised", "num_draws", self.num_draws, 1)

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained."""
        super().prepare(model, batch, seed=seed)
        name = type(model).__name__
        if self.loss in _WITH_SCORES and not isinstance(model, HasTrueScores):
            raise InputError(
                f"Supervised: loss={self.loss!r} compares with true scores, and {name} has no "
                "true_scores(batch)."
            )
        if self.loss in ("likelihood", "soft_spo_plus") and not isinstance(model.structure, Gibbs):
            raise InputError(
                f"Supervised: {model.structure!r} has no tractable Gibbs law; say "
                "loss='fenchel_young' or 'spo_plus'."
            )

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The losses, one per example."""
        if self.loss == "model":
            losses = model.loss(batch, noise)
        else:
            losses = self._compare(model, batch, model.encode(batch), noise)
        if not losses.requires_grad:
            raise InputError(
                f"Supervised: the loss of {type(model).__name__} cannot be differentiated as it "
                "is; take an estimator for structures, such as StructureNES or NES."
            )
        return Terms(losses)

    def _compare(self, model: Any, batch: Any, scores: Tensor, noise: Noise) -> Tensor:
        """The losses of scores beside the truth."""
        structure, context = model.structure, model.context(batch)
        if self.loss in ("spo_plus", "soft_spo_plus"):
            sigma = self.sigma if self.loss == "soft_spo_plus" else 0.0
            return SPOPlusLoss(structure, sigma)(scores, model.true_scores(batch), **context)
        if self.loss == "squared_error":
            error = (scores - model.true_scores(batch)).square()
            return error.flatten(1).mean(1)
        z_true = _true_structures(model, batch, scores, context)
        if self.loss == "likelihood":
            return FenchelYoungLoss(structure, self.sigma, law="gibbs")(scores, z_true, **context)
        loss = FenchelYoungLoss(structure, self.sigma, self.num_draws, self.noise)
        return loss(scores, z_true, draws=noise, **context)


def _true_structures(model: Any, batch: Any, scores: Tensor, context: dict[str, Any]) -> Tensor:
    """Those of the batch, or the best ones by true scores."""
    found = true_structures(model, batch, scores)
    if found is not None:
        return found
    structure = model.structure
    if not isinstance(model, HasTrueScores):
        raise InputError(
            f"Supervised: {type(model).__name__} has no true structures to learn from; its batch "
            "needs an entry z, or the model a method true_scores(batch)."
        )
    with torch.no_grad():
        best: Tensor = structure.argmax(model.true_scores(batch), **context)
    return best
