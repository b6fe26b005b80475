"""Separable natural evolution strategies: NES that adapts its sigma, per tensor or per parameter.

T. Schaul, T. Glasmachers, J. Schmidhuber, "High Dimensions and Heavy Tails for Natural Evolution
Strategies", 2011; D. Wierstra et al., "Natural Evolution Strategies", 2014; the future work of our
paper. Members are ``mu + sigma_i s_i``, s ~ N(0, I). The centre's gradient is NES's,

    E[s_i u] / sigma_i,     and after it     log sigma_i -= (sigma_lr / 2) E[(s_i^2 - 1) u],

the natural gradient step of E[u] in log sigma_i (its Fisher information is 2), for the shaped loss
u. Gradient-free.
"""

import logging
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.checks import renamed
from nestruct.errors import InputError
from nestruct.estimators.base import Stats
from nestruct.estimators.nes import NES, Directions
from nestruct.estimators.shaping import pair_sums
from nestruct.population import Layout
from nestruct.population.laws import FullDirections, RankOneDirections

log = logging.getLogger("nestruct")


@renamed(parameters="perturb")
@dataclass(kw_only=True, eq=False)
class SNES(NES):
    """NES with an adaptive sigma; everything else, and every other option, as in `NES`.

    Both members of a mirrored pair have the same squares, so the pair's difference moves the
    centre and its sum moves sigma. Where the loss is linear at the scale of sigma, sums vanish and
    sigma stays; where it curves upwards sigma shrinks, and where downwards it grows. With
    ``shaping="none"`` the change of log sigma is in units of the loss: choose ``sigma_lr`` then.

    Nothing bounds sigma from below: at the bottom of a bowl it shrinks for ever. An estimator
    adapts to one model; given one of another size, it starts anew. `check_gradient` knows the first
    sigma only: check with ``sigma_lr=0``.

    Args:
        sigma: The standard deviation of the perturbation at the start.
        adapt: ``tensor``: one sigma for each parameter tensor; ``parameter``: one for each entry.
        sigma_lr: The step size of log sigma; 0 is NES. (3 + ln d) / (5 sqrt(d)) when None, with d
            the number of sigmas: the authors' for ``parameter``. A mean over a tensor's entries is
            far less noisy than one of them, so for ``tensor`` d counts the tensors.

    Example:
        >>> import torch, nestruct
        >>> class Valley(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.mu = torch.nn.Parameter(torch.zeros(2))
        ...     def loss(self, batch, noise):
        ...         return self.mu[0] ** 2 + 100 * self.mu[1] ** 2 + 0 * batch
        >>> valley = Valley()
        >>> estimator = nestruct.SNES(sigma=0.1, population_size=100, adapt="parameter")
        >>> for step in range(20):
        ...     report = estimator.backward(valley, torch.zeros(1), seed=0, step=step)
        >>> flat, steep = estimator.sigmas(valley)["mu"]
        >>> bool(steep < flat / 4)
        True
    """

    sigma: float = 0.1
    adapt: Literal["tensor", "parameter"] = "tensor"
    sigma_lr: float | None = None
    # Logarithms of sigma_i / sigma, changed in place: a captured step reads them where they are.
    _log_scale: Tensor | None = field(default=None, init=False, repr=False)
    _sizes: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma_lr is not None and not 0 <= self.sigma_lr < float("inf"):
            raise InputError(f"SNES: sigma_lr must not be negative, got {self.sigma_lr!r}.")
        if self.minibatch == "per_pair":
            raise InputError(
                "SNES compares pairs with each other, and with minibatch='per_pair' they differ by "
                "their examples first: use NES, or minibatch='shared'."
            )
        if self.directions == "rademacher" or (
            self.directions == "rank1" and self.factors == "rademacher"
        ):
            raise InputError(
                "SNES: rademacher directions all have the same squares, which say nothing about "
                "sigma; use gaussian ones (directions='gaussian', or factors='gaussian' of rank1)."
            )
        if self.directions == "rank1" and self.adapt == "parameter":
            raise InputError(
                "SNES: directions of rank one have one sigma for each tensor; say adapt='tensor'."
            )

    def sigmas(self, model: nn.Module) -> dict[str, Tensor]:
        """Each perturbed parameter's present sigma: one number, or one for each entry."""
        layout = Layout(model, self.perturb)
        scale = self._state_for(layout).exp() * self.sigma
        ratios = self.sigma_ratios(layout)
        if self.adapt == "parameter":
            return layout.split(scale * layout.spread(ratios))
        return dict(zip(layout.parameters, scale * scale.new_tensor(ratios), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """What NES keeps, and the logarithms of every sigma over the first one."""
        state = super().state_dict()
        return state if self._log_scale is None else state | {"log_scale": self._log_scale.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        log_scale = state.get("log_scale")
        super().load_state_dict({k: v for k, v in state.items() if k != "log_scale"})
        self._log_scale = None if log_scale is None else log_scale.clone()

    def _state_for(self, layout: Layout) -> Float[Tensor, " sigmas"]:
        """The state for a model: as it was, as it was loaded, or zeros."""
        count = layout.size if self.adapt == "parameter" else len(layout.parameters)
        state = self._log_scale
        if state is None or len(state) != count:
            # Half precision would lose small steps.
            state = torch.zeros(count, dtype=torch.promote_types(layout.dtype, torch.float32))
        return state.to(layout.device)

    def _plan_step(self, model: nn.Module, layout: Layout, batch: Any, seed: int) -> None:
        state = self._state_for(layout)
        if self._log_scale is not None and len(state) != len(self._log_scale):
            log.info("SNES: another model, or another adapt: sigma starts anew.")
        self._log_scale = state
        self._sizes = [parameter.numel() for parameter in layout.parameters.values()]
        super()._plan_step(model, layout, batch, seed)

    def _captured(self) -> list[Any]:
        assert self._log_scale is not None
        return [*super()._captured(), self.adapt, self._log_scale.data_ptr()]

    def law(self, layout: Layout) -> Directions:
        """What a row of random numbers stands for, with the present sigmas."""
        state = self._state_for(layout) if self._log_scale is None else self._log_scale
        scale, ratios = state.exp().to(layout.dtype), self.sigma_ratios(layout)
        if self.directions == "rank1":
            sigmas = [self.sigma * r * one for r, one in zip(ratios, scale, strict=True)]
            return RankOneDirections(layout, self.factors, sigmas)
        if self.adapt == "tensor":
            sizes = [parameter.numel() for parameter in layout.parameters.values()]
            scale = torch.cat([one.expand(n) for one, n in zip(scale, sizes, strict=True)])
        if self.sigma_rule != "constant":
            scale = scale * layout.spread(ratios)
        return FullDirections(layout, self.directions, self.sigma, scale)

    def _weigh(self, losses: Tensor, dtype: torch.dtype) -> tuple[Tensor, Stats]:
        weights, stats = super()._weigh(losses, dtype)
        sums = pair_sums(losses, mirrored=self.mirrored, shaping=self.shaping, dtype=dtype)
        return torch.stack([weights, sums]), stats

    def _sums(self, law: Directions, weights: Tensor, flat: Tensor) -> Tensor:
        return torch.cat([law.sums(weights[0], flat), law.squares(weights[1], flat)])

    def _gradient(self, law: Directions, sums: Tensor, weights: Tensor, stats: Stats) -> Tensor:
        gradient, squares = sums.split([sum(self._sizes), len(sums) - sum(self._sizes)])
        slope = law.finish_squares(squares) - weights[1].sum()
        if isinstance(law, RankOneDirections):
            slope = slope / law.square_gain()
        elif self.adapt == "tensor":
            slope = torch.stack([piece.mean() for piece in slope.split(self._sizes)])
        stats["slope"] = slope
        return law.finish(gradient)

    def _adapt(self, stats: Stats) -> None:
        assert self._log_scale is not None
        count = len(self._log_scale)
        rate = self.sigma_lr
        if rate is None:
            rate = (3 + math.log(count)) / (5 * math.sqrt(count))
        self._log_scale.sub_(stats["slope"], alpha=rate / 2)
