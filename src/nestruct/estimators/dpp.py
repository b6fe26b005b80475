"""Differentiable perturb-and-parse: differentiate through a soft version of Eisner's algorithm.

C. Corro and I. Titov, "Differentiable Perturb-and-Parse: Semi-Supervised Parsing with a Structured
Variational Autoencoder", 2019 (the paper's Section 4.2): add Gumbel noise to the arc scores,
replace every argmax of Eisner's algorithm by a softmax, and decode the soft arcs that come out.
Needs a relaxation, for projective trees only; biased, less so at low temperatures. `SST` on the
same trees decodes the marginals of the Gibbs law instead.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from torch import nn

from nestruct.checks import check_count, check_temperature
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import ProjectiveTree


@dataclass(kw_only=True, eq=False)
class DPP(Backpropagation):
    """Gradient of the loss at soft parses of perturbed scores.

    Args:
        temperature: Of the softmax; 1 in the public code.
        num_samples: Draws of the noise per example.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> class Trees(nestruct.StructuredModel):
        ...     structure = nestruct.ProjectiveTree()
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.arcs = torch.nn.Parameter(torch.zeros(4, 4))
        ...     def encode(self, batch):
        ...         return self.arcs.expand(len(batch), 4, 4)
        ...     def decode(self, batch, z):
        ...         return (z * batch).sum((-1, -2))
        >>> report = nestruct.DPP().backward(Trees(), torch.rand(2, 4, 4), seed=0)
        >>> bool(report.grad_norm > 0)
        True
    """

    kind: ClassVar[str] = "needs a relaxation"
    biased_by_design: ClassVar[bool] = True
    relaxes: ClassVar[bool] = True

    temperature: float = 1.0
    num_samples: int = 1
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature("DPP", self.temperature)
        check_count("DPP", "num_samples", self.num_samples, 1)

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained."""
        super().prepare(model, batch, seed=seed)
        if not isinstance(model.structure, ProjectiveTree):
            raise InputError(
                f"DPP parses projective trees only, not {model.structure!r}; use SST, SparseMAP or "
                "NES."
            )

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The losses at soft parses."""
        tree: Any = model.structure
        relax = partial(tree.soft_argmax, temperature=self.temperature)
        return self.relaxed_terms(model, batch, noise, relax)
