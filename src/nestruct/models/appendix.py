"""The objective of the paper's appendix D, for the record: its divergence bounds nothing.

    KL(q || p)  is replaced by  E[z . scores] + log |Z|,

which lacks the log-partition: adding a constant to all scores changes it without changing the law,
so training can drive it to minus infinity. No released code uses it.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.errors import InputError
from nestruct.models.categorical import CategoricalVAE
from nestruct.objective import log_count
from nestruct.structures import Countable, Structure


class AppendixVAE(CategoricalVAE):
    """A `CategoricalVAE` that is trained by the appendix's objective; options and metrics as there.

    What an evaluation reports is the true ELBO, as always.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import AppendixVAE
        >>> AppendixVAE(784, hidden_size=16).loss(torch.ones(3, 784), nestruct.Noise(seed=0)).shape
        torch.Size([3])
    """

    def loss_at(self, batch: Any, scores: Tensor, z: Tensor) -> Tensor:
        """The appendix's objective per example, at given structures."""
        return appendix_divergence(self.structure, scores, z) - self.decode(batch, z)


def appendix_divergence(
    structure: Structure, scores: Tensor, z: Tensor, **context: Tensor
) -> Float[Tensor, "*lead batch"]:
    """``z . scores + log |Z|`` of each example, for ``z [..., batch, *parts]``."""
    if not isinstance(structure, Countable):
        raise InputError(f"The appendix's divergence needs a count, which {structure!r} lacks.")
    score = torch.where(z > 0, z * scores, 0.0).flatten(1 - scores.dim()).sum(-1)
    per_example = scores.shape[1 : scores.dim() - structure.part_axes].numel()
    return score + per_example * log_count(structure, scores, **context)
