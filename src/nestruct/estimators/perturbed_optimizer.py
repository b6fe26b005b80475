"""A perturbed optimizer: decode the mean of perturbed solutions, which is smooth in the scores.

Q. Berthet et al., "Learning with Differentiable Perturbed Optimizers", 2020. The mean m(h) = E z(h
+ sigma eps) of the argmax over noise eps has a derivative that needs no derivative of the solver.
With the noise's density exp(-nu), and g = dL/dz at m,

    dL/dh  =  (1 / sigma) E[nu'(eps) (z . g)],

where nu'(eps) is eps for Gaussian noise, and 1 - exp(-eps) for Gumbel noise. Here both means are
over the same few samples, and each z . g has the mean of the others taken off. That changes
nothing on average, and the variance much. The estimate is unbiased where L is linear. Elsewhere it
is biased by how g moves with the sampled mean, which falls with their number; and its limit is the
derivative of L(E z), which is not that of E L(z). Black-box solver, called once per sample; the
decoder sees one mean, and is differentiated with respect to it.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nestruct.checks import check_positive
from nestruct.estimators.solver_gradient import Back, Slope, SolverGradient
from nestruct.noise import Noise
from nestruct.structures import Draws, Structure


@dataclass(kw_only=True, eq=False)
class PerturbedOptimizer(SolverGradient):
    """The mean of solutions of perturbed scores, and its derivative.

    It asks for the argmax alone, but for a decoder that takes means: parts between 0 and 1. A layer
    gives the mean, without an axis of samples. A step calls the solver ``num_samples`` times, and
    decodes one mean per example. Where the decoder needs hard structures take `ScoreNES`.

    Args:
        num_samples: Solutions per example that are averaged. A single one is its own mean, and has
            no others to compare with: that gradient is unbiased too, and much noisier.
        sigma: What the noise is multiplied by. Gumbel noise with 1 is that of perturb-and-MAP.
        noise: ``gaussian``, as in the paper, or ``gumbel``.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> _ = torch.manual_seed(0)
        >>> gradient = nestruct.PerturbedOptimizer(num_samples=100)
        >>> layer = nestruct.SolverLayer(nestruct.KSubset(3, 1), gradient)
        >>> scores = torch.tensor([0.0, 0.5, 0.0], requires_grad=True)
        >>> z = layer(scores)
        >>> z
        tensor([0.2200, 0.4800, 0.3000], grad_fn=<_WithGradientBackward>)
        >>> z[1].backward()
        >>> bool(scores.grad[1] > 0)
        True
    """

    num_samples: int = 8
    sigma: float = 1.0
    noise: Literal["gaussian", "gumbel"] = "gaussian"
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("PerturbedOptimizer", "sigma", self.sigma)

    @property
    def num_decoded(self) -> int:
        """One mean, of however many samples."""
        return 1

    def there_and_back(
        self, structure: Structure, scores: Tensor, draws: torch.Generator | Noise, **context: Any
    ) -> tuple[Tensor, Back]:
        """The mean of the solutions, and the noises' weights times what is above others' mean."""
        centre, source = self._repeat(scores, draws)
        noise, weight = self._draw(source, centre)
        z = structure.argmax(centre + self.sigma * noise, **context)
        if self.num_samples == 1:
            z, weight = z[None], weight[None]
        weight = torch.where(self._counting(structure, scores, context), weight, 0.0)

        def back(g: Tensor) -> Tensor:
            values = (z * g).flatten(-structure.part_axes).sum(-1)  # [samples, ..., batch]
            if self.num_samples > 1:  # n / (n - 1): of the others' mean, not of all
                values = (values - values.mean(0)) * (len(values) / (len(values) - 1))
            values = values.view(*values.shape, *[1] * structure.part_axes)
            return (weight * values).mean(0) / self.sigma

        return z.mean(0), back

    def formula(
        self,
        structure: Structure,
        scores: Tensor,
        slope: Slope,
        draws: torch.Generator,
        **context: Any,
    ) -> Tensor:
        """The same, without autograd; sample after sample against the mean of the others."""
        source = Draws("PerturbedOptimizer.formula", draws)
        noise, weight = self._draw(source, scores.expand(self.num_samples, *scores.shape))
        weight = torch.where(self._counting(structure, scores, context), weight, 0.0)
        z = structure.argmax(scores + self.sigma * noise, **context)
        axes = tuple(range(-structure.part_axes, 0))
        values = (z * slope(z.mean(0))).sum(axes, keepdim=True)
        found = torch.zeros_like(scores)
        for sample in range(self.num_samples):
            others = torch.cat([values[:sample], values[sample + 1 :]])
            above = values[sample] - (others.mean(0) if len(others) else 0.0)
            found = found + weight[sample] * above / (self.sigma * self.num_samples)
        return found

    def _draw(self, source: Draws, like: Tensor) -> tuple[Tensor, Tensor]:
        """The noise, and the derivative of minus the logarithm of its density."""
        if self.noise == "gumbel":
            noise = source.gumbel(like)
            return noise, 1 - torch.exp(-noise)
        noise = source.normal(like)
        return noise, noise
