"""Evolution strategies on the scores: Gaussian directions in score space, then backpropagation.

The paper's Eq. 8 moves all parameters. Here only the scores h of each example are moved, which are
few: with w ~ N(0, I) and a Gumbel draw that the two halves of a mirrored pair share,

    E[w (f(argmax(h + sigma w + Gumbel)) - f(argmax(h - sigma w + Gumbel))) / (2 sigma)]

is the derivative with respect to h of the expected loss, smoothed by sigma. The encoder takes it
from there by the chain rule. Black-box solver: the solver is opaque, encoder and decoder are
differentiated.

Instead of in pairs, directions may be stratified: of n of them each score has one in every n-th of
the normal law (a Latin hypercube: M. McKay et al., 1979). Each for itself is still normal, so the
mean is the same, and as their sum is nearly 0 the mean loss is a baseline that costs nothing.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from nestruct.checks import check_choice, check_count, check_positive
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.models import StructuredModel
from nestruct.noise import Noise, Purpose, derive_seed


@dataclass(kw_only=True, eq=False)
class ScoreNES(Backpropagation):
    """The gradient of the loss smoothed in the scores; the solver is a black box.

    The decoder's gradient, and that of the divergence, are those of the mean loss over all
    structures that were drawn; `StepReport.loss` is that mean, so it is the smoothed loss.

    Args:
        num_pairs: Mirrored pairs per example; all their structures are decoded in one call. Of
            stratified directions there are twice as many.
        sigma: The standard deviation of the scores' perturbation. Scores are compared with Gumbel
            noise, so 1 or 2 is right for most; a small one changes the structure too seldom.
        gumbel: ``per_pair``: pairs have their own Gumbel noise, so what is smoothed is the
            model's own perturb-and-MAP loss; ``none``: the loss at the argmax itself is smoothed.
        directions: ``mirrored``, or ``latin``: stratified, each with its own Gumbel noise, with the
            losses' mean for a baseline. On subsets and trees its variance was 5 to 25 % lower.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> solver = nestruct.BlackBox(lambda scores: scores > 0, shape=(4,))
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), solver)
        >>> report = nestruct.ScoreNES(num_pairs=4).backward(vae, torch.ones(3, 6), seed=0)
        >>> int(report.num_evaluations)
        8
    """

    kind: ClassVar[str] = "black-box solver"
    biased_by_design: ClassVar[bool] = True

    num_pairs: int = 8
    sigma: float = 1.0
    gumbel: Literal["per_pair", "none"] = "per_pair"
    directions: Literal["mirrored", "latin"] = "mirrored"
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("ScoreNES", "num_pairs", self.num_pairs, 1)
        check_positive("ScoreNES", "sigma", self.sigma)
        check_choice("ScoreNES: directions", self.directions, ("mirrored", "latin"))

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Structures that are decoded per example."""
        return 2 * self.num_pairs

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The losses of all pairs; and the scores times the estimate of their derivative."""
        structure, context = model.structure, model.context(batch)
        scores = model.encode(batch)
        mirrored = self.directions == "mirrored"
        count = self.num_pairs if mirrored else self.num_samples
        draws = noise.replace(stream=torch.arange(count, device=scores.device)[:, None])
        direction = draws.normal(scores) if mirrored else _stratified(draws, scores)
        centre = scores.detach()
        counting = structure.counting(centre, **context)
        if counting is not None:  # other parts change nothing, and would only add noise
            direction = torch.where(counting, direction, 0.0)
        if self.gumbel == "per_pair":
            centre = centre + draws.gumbel(scores)
        move = self.sigma * direction
        moved = torch.cat([centre + move, centre - move]) if mirrored else centre + move
        z = structure.argmax(moved, **context)
        losses, counts = self.hard_losses(model, batch, scores, z)  # [2 pairs, batch]
        values = torch.where(counts, losses.detach(), 0.0)
        if mirrored:
            plus, minus = values.chunk(2)
            values = plus - minus
        else:
            values = values - values.mean(0)
        weight = values / (2 * self.sigma * self.num_pairs)
        slope = torch.einsum("pb,pb...->b...", weight, direction)
        return Terms(losses, counts, each=(slope * scores).flatten(1).sum(1))


def _stratified(draws: Noise, scores: Tensor) -> Tensor:
    """Normal draws, one for each stream, of which every score has one in each stratum."""
    order = draws.normal(scores).argsort(0).argsort(0)
    other = draws.replace(seed=derive_seed(draws.seed, Purpose.STRATA))
    share = (order + other.uniform(scores)) / len(order)
    most = 1 - torch.finfo(scores.dtype).eps  # else it could round to 1, whose quantile is infinite
    return math.sqrt(2) * torch.erfinv((2 * share - 1).clamp(-most, most)).to(scores.dtype)
