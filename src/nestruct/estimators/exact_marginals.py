"""Exact marginals: decode an exact sample, differentiate as if it were the marginals.

K. Ahmed, Z. Zeng, M. Niepert and G. Van den Broeck, "SIMPLE: A Gradient Estimator for k-Subset
Sampling", 2023, here for every structure with a Gibbs law p(z) = exp(z . h - A(h)) and exact
samples. With g = dL/dz at the sample, and the marginals mu = E z = dA/dh,

    dL/dh  ~  J g,    J = dmu/dh = d2A/dh2 = Cov(z),

which is symmetric, so it does not matter from which side g comes. For a loss that is linear in z
this is the exact derivative of its expectation, and has no noise; other losses it replaces by their
tangent at z, which is a bias. No call of a solver: the sample is drawn from the law, and J g is the
derivative of the marginals. The decoder is differentiated with respect to z.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from nestruct.errors import InputError
from nestruct.estimators.solver_gradient import Back, Slope, SolverGradient
from nestruct.noise import Noise
from nestruct.structures import Gibbs, Samplable, Structure

_STEP = 1e-4  # of central differences in float64: an error of about 1e-8


@dataclass(kw_only=True, eq=False)
class ExactMarginals(SolverGradient):
    """An exact sample of the Gibbs law; the loss's derivative goes back through its marginals.

    It asks for `marginals` and `sample`: all structures have them but `Permutation`, grid paths of
    four or eight moves, and solvers of your own. The decoder must be differentiable in z. A step
    calls no solver. Samples follow the Gibbs law, so the divergence that fits is
    ``divergence="gibbs"``.

    Args:
        num_samples: Structures per example that are decoded.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> layer = nestruct.SolverLayer(nestruct.KSubset(3, 1), nestruct.ExactMarginals())
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> layer(scores)[0].backward()  # how the first marginal, 1/3, depends on the scores
        >>> scores.grad
        tensor([ 0.2222, -0.1111, -0.1111])
    """

    kind: ClassVar[str] = "needs a relaxation"

    num_samples: int = 1
    graph: Literal["auto", "on", "off"] = "auto"

    def check_structure(self, structure: Structure) -> None:
        """Refuses a structure without a Gibbs law that can be sampled."""
        if not (isinstance(structure, Gibbs) and isinstance(structure, Samplable)):
            raise InputError(
                f"ExactMarginals: {structure!r} has no exact samples of its Gibbs law; take IMLE "
                "or PerturbedOptimizer, which need its argmax alone."
            )

    def there_and_back(
        self, structure: Any, scores: Tensor, draws: torch.Generator | Noise, **context: Any
    ) -> tuple[Tensor, Back]:
        """Exact samples, and the product with the covariance of the parts."""
        lead = (self.num_samples,) if self.num_samples > 1 else ()
        # A noise with a stream for each sample adds their axis itself.
        rows = scores if isinstance(draws, Noise) else scores.expand(*lead, *scores.shape)
        z = structure.sample(rows, self._streams(scores, draws), **context)

        def back(g: Tensor) -> Tensor:
            # All samples have the same J: one product serves them, each with an equal share of it.
            total = g.sum(0) if lead else g
            # By torch.func: inside a compiled op, autograd itself is switched off.
            pull_back: Any = torch.func.vjp(lambda h: structure.marginals(h, **context), scores)[1]
            return (pull_back(total)[0] / self.num_samples).expand(g.shape)

        return z, back

    def formula(
        self,
        structure: Any,
        scores: Tensor,
        slope: Slope,
        draws: torch.Generator,
        **context: Any,
    ) -> Tensor:
        """The same for one sample, by how the marginals change along the slope."""
        g = slope(structure.sample(scores, draws, **context)).double()
        step = _STEP / g.norm().clamp(min=1e-300)
        plus, minus = (
            structure.marginals(scores.double() + sign * step * g, **context) for sign in (1, -1)
        )
        return ((plus - minus) / (2 * step)).to(scores.dtype)
