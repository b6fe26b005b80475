"""Adaptive implicit MLE: I-MLE whose strength follows the scores, the loss and what comes back.

P. Minervini, L. Franceschi and M. Niepert, "Adaptive Perturbation-Based Gradient Estimation for
Discrete Latent Variable Models", 2023. With z(.) the argmax, noise eps, g = dL/dz at z(h + eps),
and norms over the whole batch,

    lambda = beta |h| / |g|,

    forward:  dL/dh  ~  (1 / lambda)   mean of  z(h + eps) - z(h - lambda g + eps)
    central:  dL/dh  ~  (1 / 2 lambda) mean of  z(h + lambda g + eps) - z(h - lambda g + eps).

After each step beta moves up by a constant if on average (a moving one) fewer components of these
differences are not zero than wanted, one in each instance, and down if there are more. For a loss
that is linear in z both are finite differences of the smoothed loss. Central ones have an error of
second order in lambda, and cost one call more. Black-box solver, called twice or three times per
sample; the decoder is differentiated with respect to z.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nestruct.checks import check_positive
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Terms
from nestruct.estimators.base import Stats
from nestruct.estimators.solver_gradient import Back, Slope, SolverGradient
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.processes import add_over_ranks
from nestruct.sharing import Share, current_share
from nestruct.structures import Draws, Structure

_DECAY = 0.9  # of the average of components, as published


@dataclass(kw_only=True, eq=False)
class AIMLE(SolverGradient):
    """Differences of solutions, with a strength that adapts.

    It asks for the argmax alone, and for a decoder that is differentiable in z. A step calls the
    solver twice per sample, with central differences three times.

    beta and the average are its state. They move when a loss is differentiated, and not in
    evaluation mode. An estimator's are in its checkpoints, those of a layer in the layer's
    ``state_dict``. Each sample is a batch of its own. On several processes an estimator's norms and
    averages are over the whole batch; a layer sees the batch of its own process. Scores that are
    all zero have no norm, and get no gradient.

    Args:
        differences: ``forward`` or ``central``.
        num_samples: Solutions per example that are decoded.
        beta: Where beta starts: 1 moves the scores, taken together, as far as they are from zero.
        beta_step: How far beta moves after a step; 0 keeps it. Its publications have 1e-4 and 1e-3.
        target: How many components of an instance's difference are wanted on average.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> _ = torch.manual_seed(0)
        >>> gradient = nestruct.AIMLE(differences="central")
        >>> layer = nestruct.SolverLayer(nestruct.KSubset(5, 2), gradient)
        >>> scores = torch.randn(3, 5, requires_grad=True)
        >>> layer(scores)[:, 0].sum().backward()  # a loss that grows with the first item
        >>> bool((scores.grad[:, 0] >= 0).all())
        True
        >>> {name: round(float(value), 3) for name, value in layer.state_dict().items()}
        {'gradient.beta': 0.999, 'gradient.average': 1.333}
    """

    differences: Literal["forward", "central"] = "forward"
    num_samples: int = 1
    beta: float = 1.0
    beta_step: float = 1e-3
    target: float = 1.0
    graph: Literal["auto", "on", "off"] = "auto"
    # Changed in place, and outside of captured steps, which read beta.
    _beta: Tensor = field(
        default_factory=lambda: torch.tensor(math.nan, dtype=torch.float64), init=False, repr=False
    )
    _average: Tensor = field(
        default_factory=lambda: torch.tensor(math.nan, dtype=torch.float64), init=False, repr=False
    )
    # Of an estimator's step: how many components are not zero, and of how many instances.
    _seen: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("AIMLE", "beta", self.beta)
        check_positive("AIMLE", "target", self.target)
        if not isinstance(self.beta_step, int | float) or not 0 <= self.beta_step < math.inf:
            raise InputError(
                f"AIMLE: beta_step is a number that must not be negative, got {self.beta_step!r}."
            )
        self._beta.fill_(self.beta)

    @property
    def calls_on_the_way_back(self) -> int:  # type: ignore[override]
        """One for each side on which scores are moved."""
        return 2 if self.differences == "central" else 1

    def there_and_back(
        self, structure: Structure, scores: Tensor, draws: torch.Generator | Noise, **context: Any
    ) -> tuple[Tensor, Back]:
        """``z(h + eps)``, and the difference of solutions."""
        self._move_to(scores.device)
        centre, source = self._repeat(scores, draws)
        perturbed = centre + source.gumbel(centre)
        z = structure.argmax(perturbed, **context)
        counting = self._counting(structure, scores, context) & ~z.isnan()
        several, seen = self.num_samples > 1, self._seen
        share = None if seen is None else current_share()

        def back(g: Tensor) -> Tensor:
            # The mean over samples has given each of them a share of g.
            g = torch.where(counting, g * self.num_samples, 0.0)
            h = torch.where(counting, centre, 0.0)
            squares = _over_ranks(_squares(h, g, several), share)
            step = self._strength(squares, g)
            # NaN where z has no answer, which is not asked for twice.
            start = perturbed + 0 * z
            difference, divisor = self._difference(structure, start, z, step, g, context)
            counts = _components(difference, structure.part_axes) * squares.isfinite().all()
            if seen is None:
                self._adapt_to(*counts)
            else:
                seen.copy_(counts * (share is None or share.counts))
            return difference / (divisor * self.num_samples)

        return z, back

    def formula(
        self,
        structure: Structure,
        scores: Tensor,
        slope: Slope,
        draws: torch.Generator,
        **context: Any,
    ) -> Tensor:
        """The same for one sample, without autograd, with beta as it stands. Rows are batches."""
        perturbed = scores + Draws("AIMLE.formula", draws).gumbel(scores)
        z = structure.argmax(perturbed, **context)
        counting = self._counting(structure, scores, context)
        g, h = (torch.where(counting, values, 0.0) for values in (slope(z), scores))
        step = self._strength(_squares(h, g, several=True), g)
        difference, divisor = self._difference(structure, perturbed, z, step, g, context)
        return difference / divisor

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained, and puts the state where the model is."""
        super().prepare(model, batch, seed=seed)
        self._move_to(next(model.parameters()).device)

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The losses at solutions; how many components differ is known on the way back."""
        seen = torch.zeros_like(self._beta.expand(2))
        self._seen = seen
        try:
            terms = super().terms(model, batch, noise)
        finally:
            self._seen = None
        terms.summed |= {"components": seen[0], "instances": seen[1]}
        return terms

    def state_dict(self) -> dict[str, Any]:
        """beta, and the average."""
        return {"beta": self._beta.clone(), "average": self._average.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        self._beta.copy_(state["beta"])
        self._average.copy_(state["average"])

    def _strength(self, squares: Tensor, like: Tensor) -> Tensor:
        """lambda, of the squares of both norms; 0 where there is no slope."""
        h, g = squares.sqrt()
        step = torch.where(g > 0, self._beta * h / torch.where(g > 0, g, 1.0), 0.0)
        return step.to(like.dtype).view(-1, *[1] * (like.dim() - 1))

    def _difference(
        self,
        structure: Structure,
        perturbed: Tensor,
        z: Tensor,
        step: Tensor,
        g: Tensor,
        context: dict[str, Any],
    ) -> tuple[Tensor, Tensor]:
        """Solutions less those of a lower loss, and what to divide by."""
        lower = structure.argmax(perturbed - step * g, **context)
        divisor = torch.where(step > 0, step, 1.0)
        if self.differences == "forward":
            return z - lower, divisor
        return structure.argmax(perturbed + step * g, **context) - lower, 2 * divisor

    @torch.no_grad()
    def _adapt_to(self, components: Tensor, instances: Tensor) -> None:
        """Moves the average, and then beta towards the target; nothing if nothing was seen."""
        mean = components / instances
        average = _DECAY * self._average + (1 - _DECAY) * mean
        average = torch.where(self._average.isnan(), mean, average)
        average = torch.where(instances > 0, average, self._average)
        move = self.beta_step * torch.sign(self.target - average).nan_to_num()
        self._average.copy_(average)
        self._beta.add_(torch.where(instances > 0, move, 0.0)).clamp_(min=0)

    def _adapt(self, stats: Stats) -> None:
        self._adapt_to(stats["components"], stats["instances"])

    def _captured(self) -> list[Any]:
        return [*super()._captured(), self._beta.data_ptr()]

    def _move_to(self, device: torch.device) -> None:
        self._beta, self._average = self._beta.to(device), self._average.to(device)


def _squares(h: Tensor, g: Tensor, several: bool) -> Tensor:
    """Of the norms of both ``[2, samples]``: every sample is a batch of its own."""
    both = torch.stack([h, g]).double()
    return both.square().flatten(2).sum(2) if several else both.square().flatten(1).sum(1)[:, None]


def _over_ranks(squares: Tensor, share: Share | None) -> Tensor:
    return squares if share is None else add_over_ranks(squares * share.counts)


def _components(difference: Tensor, part_axes: int) -> Tensor:
    """How many components are not zero, and of how many instances that have an answer."""
    rows = difference.flatten(-part_axes)
    answered = ~rows.isnan().any(-1)
    return torch.stack([((rows != 0) & answered[..., None]).sum(), answered.sum()]).double()
