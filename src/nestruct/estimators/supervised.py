"""Plain backpropagation, for a loss that has no structure inside to estimate a gradient through.

The supervised phases of a model: its encoder taught by true structures, its decoder given them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.models import StructuredModel
from nestruct.noise import Noise


@dataclass(kw_only=True, eq=False)
class Supervised(Backpropagation):
    """The gradient of ``model.loss`` by plain backpropagation; it must be differentiable.

    Args:
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

    graph: Literal["auto", "on", "off"] = "auto"

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The losses of ``model.loss``."""
        losses = model.loss(batch, noise)
        if not losses.requires_grad:
            raise InputError(
                f"Supervised: the loss of {type(model).__name__} cannot be differentiated as it "
                "is; take an estimator for structures, such as StructureNES or NES."
            )
        return Terms(losses)
