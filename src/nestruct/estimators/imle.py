"""Implicit MLE: solve once more, with the scores moved along the loss's derivative.

M. Niepert, P. Minervini and L. Franceschi, "Implicit MLE: Backpropagating Through Discrete
Exponential Family Distributions", 2021. With z(.) the argmax, noise eps and g = dL/dz at z(h + eps)

    dL/dh  ~  (1 / lambda) mean over samples of  z(h + eps) - z(h - lambda g + eps).

The paper's Algorithm 1 leaves 1 / lambda to the learning rate. It is here because it gives the
estimate the scale of the loss, which counts beside an exact divergence. For a loss that is linear
in z it is a finite difference of the smoothed loss, with the exact derivative as its limit for a
small lambda. Other losses it replaces by their tangent at z, which is a bias of its own. Black-box
solver, called twice per sample; the decoder is differentiated with respect to z.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nestruct.checks import check_count, check_positive
from nestruct.errors import InputError
from nestruct.estimators.solver_gradient import Back, Slope, SolverGradient
from nestruct.estimators.sum_of_gamma import sum_of_gamma
from nestruct.noise import Noise
from nestruct.structures import Draws, Structure

# Measured on subsets, trees and categories at scores of unit scale: half of it has less bias, and
# one estimate then points less well; more gains nothing but bias.
MOVE = 2.0


@dataclass(kw_only=True, eq=False)
class IMLE(SolverGradient):
    """The difference of two solutions: that of the scores, and one that has a lower loss.

    Args:
        strength: The paper's lambda, by which g is multiplied before it moves the scores. A large
            one gives a steady gradient with a bias, a small one little bias and much variance.
            Where it is None each instance has its own: the largest entry of g moves its score by
            2, whatever the scale of the loss. A number fits one scale of the loss only: in a layer
            that of the loss as you reduce it, in an estimator that of one example's loss.
        num_samples: Solutions per example that are decoded.
        noise: ``gumbel``, or ``sum_of_gamma``, whose sum over k parts has the scale of one Gumbel
            draw.
        k: How many parts every member has; for ``sum_of_gamma``.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> _ = torch.manual_seed(0)
        >>> layer = nestruct.SolverLayer(nestruct.KSubset(5, 2), nestruct.IMLE())
        >>> scores = torch.zeros(3, 5, requires_grad=True)
        >>> layer(scores)[:, 0].sum().backward()  # a loss that grows with the first item
        >>> bool((scores.grad[:, 0] >= 0).all())
        True
    """

    calls_on_the_way_back = 1

    strength: float | None = None
    num_samples: int = 1
    noise: Literal["gumbel", "sum_of_gamma"] = "gumbel"
    k: int | None = None
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.strength is not None:
            check_positive(name, "strength", self.strength)
        if self.k is not None:
            check_count(name, "k", self.k, 1)
        elif self.noise == "sum_of_gamma":
            raise InputError(f"{name}: noise='sum_of_gamma' needs k, the parts of every member.")

    def there_and_back(
        self, structure: Structure, scores: Tensor, draws: torch.Generator | Noise, **context: Any
    ) -> tuple[Tensor, Back]:
        """``z(h + eps)``, and the difference to the solution of the moved scores."""
        centre, source = self._repeat(scores, draws)
        perturbed = centre + self._draw(source, centre)
        z = structure.argmax(perturbed, **context)

        def back(g: Tensor) -> Tensor:
            # The mean over samples has given each of them a share of g.
            g, step = move_along(g * self.num_samples, self.strength, structure, perturbed, context)
            lower = perturbed - step * g
            # NaN where z has no answer, which is not asked for twice.
            moved = structure.argmax(lower.add_(z, alpha=0), **context)
            return (z - moved).div_(step * self.num_samples)

        return z, back

    def formula(
        self,
        structure: Structure,
        scores: Tensor,
        slope: Slope,
        draws: torch.Generator,
        **context: Any,
    ) -> Tensor:
        """The same for one sample, without autograd."""
        perturbed = scores + self._draw(Draws("IMLE.formula", draws), scores)
        z = structure.argmax(perturbed, **context)
        g, step = move_along(slope(z), self.strength, structure, perturbed, context)
        return (z - structure.argmax(perturbed - step * g, **context)) / step

    def _draw(self, source: Draws, like: Tensor) -> Tensor:
        if self.noise == "gumbel":
            return source.gumbel(like)
        assert self.k is not None
        return sum_of_gamma(source, like, self.k)


def move_along(
    g: Tensor,
    strength: float | None,
    structure: Structure,
    scores: Tensor,
    context: dict[str, Any],
) -> tuple[Tensor, float | Tensor]:
    """g where it counts, and lambda: the strength, or where it is None one for each instance."""
    if strength is not None:
        return g, strength
    counting = structure.counting(scores, **context)
    g = g if counting is None else torch.where(counting, g, 0.0)
    largest = g.abs().flatten(-structure.part_axes).amax(-1)
    step = MOVE / torch.where(largest > 0, largest, 1.0)
    return g, step.view(*step.shape, *[1] * structure.part_axes)
