"""Straight-through: decode a hard structure, differentiate as if it were its relaxation.

E. Jang, S. Gu and B. Poole, "Categorical Reparameterization with Gumbel-Softmax", 2017, and M.
Paulus et al., "Gradient Estimation with Stochastic Softmax Tricks", 2020, for other structures.
With noise eps, the argmax z(h + eps), a relaxation r(., t) at temperature t and g = dL/dz

    dL/dh  ~  r'(h + eps, t)^T g.

ReinMax, of L. Liu et al., "Bridging Discrete and Backpropagation: Straight-Through and Beyond",
2023, for categories. The exact derivative of E L(D), D ~ p = softmax(h), is the sum over i of p_i
p_k (L(k) - L(i)). Each difference of losses is taken as the mean of the tangents at both ends
(Heun's method), so it is exact for quadratic losses, where straight-through takes the tangent at
one end. By samples of D, with S(q) g = q * (g - q . g) the softmax's derivative,

    dL/dh  ~  2 S((D + softmax(h / t)) / 2) g - S(p) g / 2,

of which only t = 1 is of second order. Both need a relaxation, call the solver once per sample, and
differentiate the decoder with respect to z.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from nestruct.checks import check_temperature
from nestruct.errors import InputError
from nestruct.estimators.solver_gradient import Back, Slope, SolverGradient
from nestruct.noise import Noise
from nestruct.structures import Categorical, Draws, Relaxable, Structure


@dataclass(kw_only=True, eq=False)
class StraightThrough(SolverGradient):
    """A hard structure forward, the derivative of its relaxation backward.

    It asks for the argmax and a relaxation: a Gibbs law, or a `Permutation`. The decoder must be
    differentiable in z, and sees hard structures only, other than that of `SST`. A step calls the
    solver once per sample.

    Args:
        temperature: Of the relaxation. A high one has less variance and more bias.
        estimator: ``gumbel``: the relaxation of the perturbed scores, for all structures that have
            one; ``reinmax``: exact for quadratic losses, for `Categorical` only, and best at 1.
        num_samples: Structures per example that are decoded.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> _ = torch.manual_seed(0)
        >>> gradient = nestruct.StraightThrough(estimator="reinmax")
        >>> layer = nestruct.SolverLayer(nestruct.Categorical(3), gradient)
        >>> scores = torch.zeros(2, 3, requires_grad=True)
        >>> (layer(scores) - torch.tensor([1.0, 0.0, 0.0])).square().sum().backward()
        >>> bool((scores.grad[:, 0] <= 0).all())  # towards the first
        True
    """

    kind: ClassVar[str] = "needs a relaxation"

    temperature: float = 1.0
    estimator: Literal["gumbel", "reinmax"] = "gumbel"
    num_samples: int = 1
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature("StraightThrough", self.temperature)

    def check_structure(self, structure: Structure) -> None:
        """Refuses a structure without a relaxation; for ReinMax all but categories."""
        if self.estimator == "reinmax" and not isinstance(structure, Categorical):
            raise InputError(
                f"StraightThrough: {structure!r} is not Categorical, and estimator='reinmax' is "
                "for categories only; say estimator='gumbel'."
            )
        if not isinstance(structure, Relaxable):
            raise InputError(
                f"StraightThrough: {structure!r} has no relaxation; take IMLE or "
                "PerturbedOptimizer, which need its argmax alone."
            )

    def there_and_back(
        self, structure: Any, scores: Tensor, draws: torch.Generator | Noise, **context: Any
    ) -> tuple[Tensor, Back]:
        """``z(h + eps)``, and the transpose of the relaxation's Jacobian, or ReinMax."""
        centre, source = self._repeat(scores, draws)
        perturbed = centre + source.gumbel(centre)
        z = structure.argmax(perturbed, **context)

        def relax(scores: Tensor) -> Tensor:
            return structure.relax(scores, self.temperature, **context)

        def back(g: Tensor) -> Tensor:
            if self.estimator == "reinmax":
                half = (z + (centre / self.temperature).softmax(-1)) / 2
                return 2 * _through_softmax(half, g) - _through_softmax(centre.softmax(-1), g) / 2
            # By torch.func: inside a compiled op, autograd itself is switched off.
            pull_back: Any = torch.func.vjp(relax, perturbed)[1]
            return pull_back(g)[0]

        return z, back

    def formula(
        self,
        structure: Any,
        scores: Tensor,
        slope: Slope,
        draws: torch.Generator,
        **context: Any,
    ) -> Tensor:
        """The same for one sample, by differentiating what is published."""
        perturbed = scores + Draws("StraightThrough.formula", draws).gumbel(scores)
        z = structure.argmax(perturbed, **context)
        with torch.enable_grad():
            leaf = (scores if self.estimator == "reinmax" else perturbed).clone().requires_grad_()
            if self.estimator == "reinmax":  # Algorithm 2
                half = (z + (leaf / self.temperature).softmax(-1)) / 2
                soft = 2 * (leaf + (half.log() - leaf).detach()).softmax(-1) - leaf.softmax(-1) / 2
            else:
                soft = structure.relax(leaf, self.temperature, **context)
            (found,) = torch.autograd.grad(soft, leaf, slope(z))
        return found


def _through_softmax(chances: Tensor, g: Tensor) -> Tensor:
    """The derivative of the softmax with these values, times g; it is symmetric."""
    return chances * (g - (chances * g).sum(-1, keepdim=True))
