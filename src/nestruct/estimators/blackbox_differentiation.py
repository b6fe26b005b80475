"""Differentiation of black-box solvers: solve once more, with the scores moved along the slope.

M. Vlastelica, A. Paulus, V. Musil, G. Martius and M. Rolinek, "Differentiation of Blackbox
Combinatorial Solvers", 2020. With z(.) the argmax and g = dL/dz at z(h)

    dL/dh  ~  (z(h) - z(h - lambda g)) / lambda,

the derivative of an interpolation of L(z(h)), which is constant between jumps. It is I-MLE without
noise: what is trained is the loss at the argmax itself, not an expectation. Black-box solver,
called twice; the decoder is differentiated with respect to z.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nestruct.checks import check_positive
from nestruct.estimators.imle import move_along
from nestruct.estimators.solver_gradient import Back, Slope, SolverGradient
from nestruct.noise import Noise
from nestruct.structures import Structure


@dataclass(kw_only=True, eq=False)
class BlackboxDifferentiation(SolverGradient):
    """The difference of two solutions: that of the scores, and one that has a lower loss.

    It asks for the argmax alone, and for a decoder that is differentiable in z. A step calls the
    solver twice per example, and draws nothing.

    Args:
        strength: The paper's lambda, by which g is multiplied before it moves the scores. A large
            one looks far and blurs the loss; with a small one most instances do not change, and
            have no gradient. Where it is None each instance has its own: the largest entry of g
            moves its score by 2, whatever the scale of the loss. A number fits one scale of the
            loss only.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> gradient = nestruct.BlackboxDifferentiation(strength=2.0)
        >>> layer = nestruct.SolverLayer(nestruct.KSubset(3, 1), gradient)
        >>> scores = torch.tensor([1.0, 0.5, 0.0], requires_grad=True)
        >>> layer(scores)[0].backward()  # with a score less by 2, the first item is not chosen
        >>> scores.grad
        tensor([ 0.5000, -0.5000,  0.0000])
    """

    calls_on_the_way_back = 1

    strength: float | None = None
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength is not None:
            check_positive("BlackboxDifferentiation", "strength", self.strength)

    def there_and_back(
        self, structure: Structure, scores: Tensor, draws: torch.Generator | Noise, **context: Any
    ) -> tuple[Tensor, Back]:
        """``z(h)``, and the difference to the solution of the moved scores."""
        z = structure.argmax(scores, **context)

        def back(g: Tensor) -> Tensor:
            g, step = move_along(g, self.strength, structure, scores, context)
            # NaN where z has no answer, which is not asked for twice.
            return (z - structure.argmax(scores - step * g + 0 * z, **context)) / step

        return z, back

    def formula(
        self,
        structure: Structure,
        scores: Tensor,
        slope: Slope,
        draws: torch.Generator,
        **context: Any,
    ) -> Tensor:
        """The same, without autograd."""
        z = structure.argmax(scores, **context)
        g, step = move_along(slope(z), self.strength, structure, scores, context)
        return (z - structure.argmax(scores - step * g, **context)) / step
