"""Losses that compare structures: for data that come with the truth.

`FenchelYoungLoss` learns from true structures, `SPOPlusLoss` from true scores. Scores are
maximised, so give minus the costs. Both are convex in the scores, and both call the solver as a
black box: their gradient is a difference of structures. None of them decodes anything. Where the
structure has a Gibbs law, both have an exact form without noise: a soft maximum for the hard one.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.checks import check_choice, check_count, check_positive
from nestruct.errors import InputError
from nestruct.noise import Noise, own_generator
from nestruct.structures import Draws, Gibbs, Structure


def _never_compiled(function: Callable) -> Callable:
    """`torch.compiler.disable`, used when something is compiled: it imports the compiler.

    That is a second, and a third of what ``import nestruct`` would take.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call


class _StructureLoss(nn.Module):
    """What both losses do with what they are given."""

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        if not isinstance(structure, Structure):
            raise InputError(
                f"{type(self).__name__}: structure must be one of nestruct's, got {structure!r}; a "
                "solver of your own goes into BlackBox, or into a subclass of Structure."
            )
        self.structure = structure

    def _widen(self, scores: Tensor, context: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The scores with an axis of examples, in a dtype that solvers see; and what is given."""
        if not isinstance(scores, Tensor) or not scores.is_floating_point():
            got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
            raise InputError(
                f"{type(self).__name__}: scores must be a tensor of floats, got {got}; convert "
                "them first."
            )
        wide = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
        context = {name: value for name, value in context.items() if value is not None}
        if not self._is_alone(scores):
            return wide, context
        return wide[None], {n: v[None] if isinstance(v, Tensor) else v for n, v in context.items()}

    def _is_alone(self, scores: Tensor) -> bool:
        """Whether these are the scores of one instance, without an axis of examples."""
        return scores.dim() == self.structure.part_axes

    def _like(self, name: str, given: Tensor, wide: Tensor) -> Tensor:
        """The truth in shape and dtype of the scores, without a derivative."""
        if not isinstance(given, Tensor):
            raise InputError(
                f"{type(self).__name__}: {name} must be a tensor, got {type(given).__name__}."
            )
        try:
            return given.detach().to(wide).expand(wide.shape)
        except RuntimeError:
            raise InputError(
                f"{type(self).__name__}: {name} must be shaped as the scores, {tuple(wide.shape)}, "
                f"got {tuple(given.shape)}."
            ) from None

    def _counted(self, z: Tensor, wide: Tensor, context: dict[str, Any]) -> Tensor:
        """Structures with nothing where no member has a part, such as padding."""
        counting = self.structure.counting(wide, **context)
        return z if counting is None else torch.where(counting, z, 0.0)

    def _total(self, scores: Tensor, z: Tensor) -> Tensor:
        """``z . scores``; 0 times -inf, a part that is forbidden and not there, is 0."""
        return (torch.where(z != 0, scores, 0.0) * z).flatten(-self.structure.part_axes).sum(-1)

    def _soft_maximum(self, scores: Tensor, sigma: float, context: dict[str, Any]) -> Tensor:
        """``sigma A(scores / sigma)``, with A the log-partition; NaN where that has no answer."""
        structure: Any = self.structure
        with torch.no_grad():
            failed = structure.log_partition(scores / sigma, **context).isnan()
        safe = torch.where(self._spread(failed), 0.0, scores)
        value = sigma * structure.log_partition(safe / sigma, **context)
        return torch.where(failed, torch.nan, value)

    def _need_gibbs(self, remedy: str) -> None:
        if not isinstance(self.structure, Gibbs):
            raise InputError(
                f"{type(self).__name__}: {self.structure!r} has no tractable Gibbs law; {remedy}."
            )

    def _failed(self, z: Tensor) -> Tensor:
        """Which rows the solver had no answer for."""
        return z.isnan().flatten(-self.structure.part_axes).any(-1)

    def _spread(self, failed: Tensor) -> Tensor:
        """A mark of each row, for each of its parts."""
        return failed.view(*failed.shape, *[1] * self.structure.part_axes)


class FenchelYoungLoss(_StructureLoss):
    """How far scores are from giving the true structures: ``loss(scores, z_true) -> [batch]``.

    Q. Berthet et al., "Learning with Differentiable Perturbed Optimizers", 2020. With noise eps,
    z(.) the argmax and F(h) = E[max over z of (h + sigma eps) . z], the loss is F(h) - h . z_true
    up to a constant, and its gradient E[z(h + sigma eps)] - z_true. Both are estimated by the same
    draws. Each draw gives

        (h + sigma eps) . z(h + sigma eps) - (h + sigma eps) . z_true,

    which is never negative, and 0 where the perturbed scores give the truth. For Gaussian noise its
    mean is F(h) - h . z_true; Gumbel noise, whose mean is not 0, makes a constant difference.

    With ``law="gibbs"`` the loss is exact: sigma A(h / sigma) - h . z_true with A the
    log-partition. At sigma 1 that is the negative log-likelihood of a conditional random field.

    Draws come from torch's own generator (`torch.manual_seed`), as those of dropout do, in
    evaluation mode too. An example that the solver has no answer for raises; inside
    `nestruct.nan_rows` its loss is NaN and its gradient 0. A true structure with a forbidden part,
    whose score is -inf, has an infinite loss.

    Args:
        structure: What is solved; a function of your own goes into `nestruct.BlackBox`.
        sigma: The size of the noise. Scores are compared with it.
        num_samples: Perturbed solutions per example. More make the gradient steadier.
        noise: ``gaussian`` or ``gumbel``.
        law: ``perturbed``, for any structure; ``gibbs`` for one with a log-partition, without noise
            or samples.

    Example:
        >>> import torch, nestruct
        >>> _ = torch.manual_seed(0)
        >>> loss = nestruct.FenchelYoungLoss(nestruct.KSubset(4, 2), num_samples=100)
        >>> scores = torch.zeros(3, 4, requires_grad=True)
        >>> z_true = torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(3, 4)
        >>> losses = loss(scores, z_true)
        >>> losses.shape
        torch.Size([3])
        >>> losses.mean().backward()
        >>> scores.grad[0].sign()
        tensor([-1., -1.,  1.,  1.])
        >>> exact = nestruct.FenchelYoungLoss(nestruct.Categorical(2), law="gibbs")
        >>> exact(torch.zeros(2), torch.tensor([1.0, 0.0]))  # log 2
        tensor(0.6931)
    """

    def __init__(
        self,
        structure: Structure,
        sigma: float = 1.0,
        num_samples: int = 16,
        noise: Literal["gaussian", "gumbel"] = "gaussian",
        law: Literal["perturbed", "gibbs"] = "perturbed",
    ) -> None:
        super().__init__(structure)
        check_positive("FenchelYoungLoss", "sigma", sigma)
        self.num_samples = check_count("FenchelYoungLoss", "num_samples", num_samples, 1)
        check_choice("FenchelYoungLoss: noise", noise, ("gaussian", "gumbel"))
        check_choice("FenchelYoungLoss: law", law, ("perturbed", "gibbs"))
        if law == "gibbs":
            self._need_gibbs("say law='perturbed'")
        self.sigma, self.noise, self.law = sigma, noise, law

    def extra_repr(self) -> str:
        """What the loss is made of."""
        if self.law == "gibbs":
            return f"{self.structure!r}, sigma={self.sigma}, law='gibbs'"
        return (
            f"{self.structure!r}, sigma={self.sigma}, num_samples={self.num_samples}, "
            f"noise={self.noise!r}"
        )

    def forward(
        self,
        scores: Tensor,
        z_true: Tensor,
        *,
        draws: torch.Generator | Noise | None = None,
        **context: Any,
    ) -> Float[Tensor, "..."]:
        """The loss of each instance.

        Args:
            scores: Any leading axes, then the parts of one instance.
            z_true: The true structures, shaped as the scores or as their last axes.
            draws: Where random numbers come from; torch's own generator when None.
            **context: What the solver sees besides scores, by name; see `nestruct.BlackBox`.

        Returns:
            One number for each instance, in float32 where scores have half precision.
        """
        alone, (wide, context) = self._is_alone(scores), self._widen(scores, context)
        truth = self._counted(self._like("z_true", z_true, wide), wide, context)
        with torch.autocast(scores.device.type, enabled=False):
            if self.law == "gibbs":
                value = self._soft_maximum(wide, self.sigma, context)
                losses = torch.where(value.isnan(), torch.nan, value - self._total(wide, truth))
            else:
                losses = self._sampled(wide, truth, draws, context)
        return losses[0] if alone else losses

    def _sampled(
        self,
        wide: Tensor,
        truth: Tensor,
        draws: torch.Generator | Noise | None,
        context: dict[str, Any],
    ) -> Tensor:
        z, noise = self._solve(wide.detach(), draws, context)
        failed = self._failed(z).any(0)
        z = torch.where(self._spread(failed), 0.0, z)
        # The solutions are constants of the draws, so the derivative is their mean less the truth.
        value = self._total(wide, z.mean(0) - truth)
        value = value + self.sigma * self._total(noise, z - truth).mean(0)
        return torch.where(failed, torch.nan, value)

    @_never_compiled
    @torch.no_grad()
    def _solve(
        self, scores: Tensor, draws: torch.Generator | Noise | None, context: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Solutions ``[samples, ..., *parts]`` of perturbed scores, and the noise."""
        if isinstance(draws, Noise):
            numbers = torch.arange(self.num_samples, device=scores.device)
            draws = draws.replace(stream=numbers[:, None])
        source = Draws(type(self).__name__, draws or own_generator(scores.device))
        many = scores.expand(self.num_samples, *scores.shape)
        noise = source.normal(many) if self.noise == "gaussian" else source.gumbel(many)
        return self.structure.argmax(many + self.sigma * noise, **context), noise


class SPOPlusLoss(_StructureLoss):
    """A bound on what wrong scores cost: ``loss(scores, true_scores) -> [batch]``.

    A. Elmachtoub and P. Grigas, "Smart 'Predict, then Optimize'", 2022. With h the predicted
    scores, t the true ones and z(.) the argmax, the regret t . z(t) - t . z(h) has no useful
    derivative. The loss is convex in h and never below the regret:

        (2h - t) . z(2h - t) - (2h - t) . z(t),    its gradient 2 [z(2h - t) - z(t)].

    It is 0 where the predicted scores are the true ones. A part that either scores forbid, by -inf,
    is forbidden in both.

    With ``sigma`` the maximum is the soft one of the Gibbs law, without noise or samples:

        sigma A((2h - t) / sigma) - (2h - t) . z(t),    its gradient 2 [E z - z(t)],

    with A the log-partition and the mean at (2h - t) / sigma. It is convex too, never below the
    hard one, which is its limit for a small sigma, and its gradient is smooth. The likelihood,
    `FenchelYoungLoss` by the Gibbs law, is the same without the true scores: this one knows what a
    wrong structure costs. K. Gimpel and N. Smith, "Softmax-Margin CRFs", 2010, have it for tags.

    An example that the solver has no answer for raises; inside `nestruct.nan_rows` its loss is NaN
    and its gradient 0. The argmax must be that of the scores as they are, also of positive ones:
    `GridPath` with four or eight moves counts those as 0, and what it gives is no bound then.

    Args:
        structure: What is solved; a function of your own goes into `nestruct.BlackBox`.
        sigma: The temperature of the soft maximum, beside which scores are compared; 0 for the hard
            one, of any structure.

    Example:
        >>> import torch, nestruct
        >>> loss = nestruct.SPOPlusLoss(nestruct.GridPath(2, 2, scores="edges"))
        >>> true_costs = torch.tensor([[1.0, 2.0, 1.0, 2.0]])  # 2 by the east, 4 by the south
        >>> loss(-true_costs, -true_costs)
        tensor([0.])
        >>> costs = torch.tensor([[2.0, 1.0, 1.0, 1.0]], requires_grad=True)  # it goes south
        >>> losses = loss(-costs, -true_costs)
        >>> losses.tolist()
        [4.0]
        >>> losses.sum().backward()
        >>> costs.grad
        tensor([[ 2., -2.,  2., -2.]])
        >>> nestruct.SPOPlusLoss(nestruct.GridPath(2, 2, scores="edges"), sigma=1.0)(
        ...     -costs, -true_costs
        ... ).item()  # log(1 + e^4)
        4.01814...
    """

    def __init__(self, structure: Structure, sigma: float = 0.0) -> None:
        super().__init__(structure)
        if sigma != 0:
            check_positive("SPOPlusLoss", "sigma", sigma)
            self._need_gibbs("leave sigma out")
        self.sigma = sigma

    def extra_repr(self) -> str:
        """What the loss is made of."""
        return f"{self.structure!r}, sigma={self.sigma}" if self.sigma else repr(self.structure)

    def forward(
        self,
        scores: Tensor,
        true_scores: Tensor,
        *,
        z_true: Tensor | None = None,
        **context: Any,
    ) -> Float[Tensor, "..."]:
        """The loss of each instance.

        Args:
            scores: Any leading axes, then the parts of one instance.
            true_scores: Shaped as the scores or as their last axes.
            z_true: The best structures of the true scores, where they are known already: they are
                solved for when None.
            **context: What the solver sees besides scores, by name; see `nestruct.BlackBox`.

        Returns:
            One number for each instance, in float32 where scores have half precision.
        """
        alone, (wide, context) = self._is_alone(scores), self._widen(scores, context)
        true = self._like("true_scores", true_scores, wide)
        forbidden = (wide == -torch.inf) | (true == -torch.inf)
        moved = torch.where(forbidden, -torch.inf, 2 * wide - true)
        asked = [moved] if self.sigma == 0 else []
        if z_true is None:
            asked.append(torch.where(forbidden, -torch.inf, true))
        found = list(self._solve(torch.stack(asked), context)) if asked else []  # by one call
        if z_true is not None:
            found.append(self._counted(self._like("z_true", z_true, wide), wide, context))
        best = found[-1]
        gap = -best if self.sigma else found[0] - best
        failed = self._failed(gap)
        gap = torch.where(self._spread(failed), 0.0, gap)
        losses = self._total(moved, gap)
        if self.sigma:
            with torch.autocast(scores.device.type, enabled=False):
                value = self._soft_maximum(moved, self.sigma, context)
            failed, losses = failed | value.isnan(), losses + value
        losses = torch.where(failed, torch.nan, losses)
        return losses[0] if alone else losses

    @_never_compiled
    @torch.no_grad()
    def _solve(self, scores: Tensor, context: dict[str, Any]) -> Tensor:
        return self.structure.argmax(scores, **context)
