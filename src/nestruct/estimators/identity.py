"""Identity with projection: the solver's derivative is taken to be that of a projection.

S. Sahoo et al., "Backpropagation through Combinatorial Algorithms: Identity with Projection Works",
2023. The loss's derivative g with respect to z is passed on to the scores as if z were the scores.
Before that, what no solution depends on is taken out of it: z is the same for scores of any norm,
and, where every member has equally many parts, with any number added to all. So with h the scores
of an instance, and C taking the mean off

    dL/dh  ~  P'(h)^T g,    P(h) = C h / |C h|,    P'(h)^T g = C (g - u (u . g)) / |C h|,  u = P(h).

No further call of the solver; the direction is a guess, and its length says nothing. Black-box
solver, called once per sample; the decoder is differentiated with respect to z.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nestruct.estimators.solver_gradient import Back, Slope, SolverGradient
from nestruct.noise import Noise
from nestruct.structures import Structure


@dataclass(kw_only=True, eq=False)
class Identity(SolverGradient):
    """The loss's derivative with respect to z, as if z were the projected scores.

    Args:
        num_samples: Solutions per example that are decoded.
        noise: ``gumbel``: scores are perturbed before they are solved; ``none``: the argmax itself
            is decoded, as in the paper, and several samples are all the same.
        projection: ``auto``: the mean taken off and the norm 1 where every member is known to have
            equally many parts (categories, subsets, trees, permutations), else the norm alone;
            ``centred``, ``norm``: say which, for a solver of your own; ``none``: g as it is.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> layer = nestruct.SolverLayer(nestruct.KSubset(3, 1), nestruct.Identity())
        >>> scores = torch.tensor([0.0, 0.0, 3.0], requires_grad=True)
        >>> layer(scores)[0].backward()
        >>> scores.grad.round(decimals=4) + 0
        tensor([ 0.2041, -0.2041,  0.0000])
    """

    is_scaled = False

    num_samples: int = 1
    noise: Literal["gumbel", "none"] = "gumbel"
    projection: Literal["auto", "centred", "norm", "none"] = "auto"
    graph: Literal["auto", "on", "off"] = "auto"

    def there_and_back(
        self, structure: Structure, scores: Tensor, draws: torch.Generator | Noise, **context: Any
    ) -> tuple[Tensor, Back]:
        """The solutions, and the transpose of the projection's Jacobian."""
        centre, source = self._repeat(scores, draws)
        noise = source.gumbel(centre) if self.noise == "gumbel" else 0.0
        z = structure.argmax(centre + noise, **context)
        counting = self._counting(structure, scores, context)

        def back(g: Tensor) -> Tensor:
            g = self._centre(structure, g, counting)
            if self.projection == "none":
                return g
            unit, norm = self._project(structure, scores, counting)
            return (g - unit * (unit * g).sum(_axes(structure), keepdim=True)) / norm

        return z, back

    def formula(
        self,
        structure: Structure,
        scores: Tensor,
        slope: Slope,
        draws: torch.Generator,
        **context: Any,
    ) -> Tensor:
        """The same for one sample, by differentiating the projection."""
        noise = torch.empty_like(scores).exponential_(generator=draws).log()
        z = structure.argmax(scores - noise if self.noise == "gumbel" else scores, **context)
        counting = self._counting(structure, scores, context)
        if self.projection == "none":
            return self._centre(structure, slope(z), counting)
        with torch.enable_grad():
            leaf = scores.detach().requires_grad_()
            projected, _ = self._project(structure, leaf, counting)
            (found,) = torch.autograd.grad(projected, leaf, slope(z))
        return found

    def _project(
        self, structure: Structure, scores: Tensor, counting: Tensor
    ) -> tuple[Tensor, Tensor]:
        """P(h), and the norm of C h."""
        parts = self._centre(structure, scores, counting)
        square = parts.square().sum(_axes(structure), keepdim=True)
        # Scores that are all the same have no direction to lose.
        norm = torch.where(square > 0, square, 1.0).sqrt()
        return parts / norm, norm

    def _centre(self, structure: Structure, values: Tensor, counting: Tensor) -> Tensor:
        """C: the mean of what counts taken off, where that is legal; zeros elsewhere."""
        values = torch.where(counting, values, 0.0)
        centred = self.projection == "centred"
        if not (centred or (self.projection == "auto" and structure.equal_sizes)):
            return values
        axes = _axes(structure)
        mean = values.sum(axes, keepdim=True) / counting.sum(axes, keepdim=True).clamp(min=1)
        return torch.where(counting, values - mean, 0.0)


def _axes(structure: Structure) -> tuple[int, ...]:
    """Those of the parts."""
    return tuple(range(-structure.part_axes, 0))
