"""SparseMAP: differentiate through the nearest mixture of a few structures.

V. Niculae et al., "SparseMAP: Differentiable Sparse Structured Inference", 2018 (the paper's
Section 4.2): decode the mixture of structures that is nearest to the scores with Gumbel noise. A
few calls of the solver find it, and its derivative is known. Needs nothing of the structure but its
argmax, though a decoder that takes mixtures; biased, less so at low temperatures.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from nestruct.checks import check_count, check_temperature
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import sparse_map


@dataclass(kw_only=True, eq=False)
class SparseMAP(Backpropagation):
    """Gradient of the loss at sparse mixtures of structures.

    Args:
        temperature: What perturbed scores are divided by: mixtures of fewer structures below 1 (the
            public code has 1).
        max_iterations: How many structures may join the first one in a mixture.
        num_samples: Draws of the noise per example.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> tree = nestruct.SpanningTree(4)
        >>> vae = nestruct.StructuredVAE(mlp(3, 6), mlp(6, 3), tree)
        >>> report = nestruct.SparseMAP().backward(vae, torch.ones(2, 3), seed=0)
        >>> bool(report.grad_norm > 0)
        True
    """

    kind: ClassVar[str] = "needs a relaxation"

    temperature: float = 1.0
    max_iterations: int = 10
    num_samples: int = 1
    # No graph: how often the solver is called is decided on the host.

    def __post_init__(self) -> None:
        check_temperature("SparseMAP", self.temperature)
        check_count("SparseMAP", "max_iterations", self.max_iterations, 1)
        check_count("SparseMAP", "num_samples", self.num_samples, 1)

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained."""
        super().prepare(model, batch, seed=seed)
        if not model.structure.binary:  # type: ignore[union-attr]
            raise InputError(
                f"SparseMAP mixes structures of 0 and 1, and {model.structure!r} has other numbers "
                "(binary=False); use StructureNES, ScoreNES, REINFORCE or NES."
            )

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The losses at mixtures."""

        def relax(scores: Tensor, **context: Tensor) -> Tensor:
            scores, limit = scores / self.temperature, self.max_iterations
            return sparse_map(model.structure, scores, max_iterations=limit, **context)

        return self.relaxed_terms(model, batch, noise, relax)
