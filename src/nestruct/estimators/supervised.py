"""Plain backpropagation, for a loss that has no structure inside to estimate a gradient through.

The supervised phases of a model: a parser on trees, a decoder on given structures.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation
from nestruct.models import StructuredModel
from nestruct.noise import Noise


@dataclass(kw_only=True, eq=False)
class Supervised(Backpropagation):
    """The gradient of ``model.loss``, which must be differentiable as it is.

    Args:
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import nestruct
        >>> from nestruct.data import Grammar
        >>> from nestruct.models import ParserVAE
        >>> data = Grammar(num_train=4)
        >>> parser = ParserVAE(data.vocabulary, data.vectors, lstm_size=8)
        >>> report = nestruct.Supervised().backward(parser, data.splits()["train"], seed=0)
        >>> bool(report.grad_norm > 0)
        True
    """

    graph: Literal["auto", "on", "off"] = "auto"
    num_samples = 1

    def surrogate(self, model: StructuredModel, batch: Any, noise: Noise) -> tuple[Tensor, Tensor]:
        """The mean loss: it is its own surrogate."""
        losses = model.loss(batch, noise)
        if not losses.requires_grad:
            raise InputError(
                f"Supervised: the loss of {type(model).__name__} cannot be differentiated as it "
                "is; take an estimator for structures, such as StructureNES or NES."
            )
        return losses.mean(), losses
