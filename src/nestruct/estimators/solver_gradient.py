"""What the gradients that a solver can have as a layer share: `solve`, and a step made of it.

``solve(structure, scores, draws, **context) -> z`` is differentiable with respect to the scores. A
subclass says how, in `there_and_back`. `nestruct.SolverLayer` puts that into anyone's module; as an
estimator it trains a `StructuredModel`. Both need the derivative g of the loss with respect to z:
the decoder is differentiated at hard structures, as if their parts were numbers between 0 and 1.
"""

import weakref
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.population import Layout
from nestruct.structures import Draws, Structure, nan_rows
from nestruct.structures.solution_cache import estimating

_ESTIMATES = 50  # of a limit, for its standard error
Slope = Callable[[Tensor], Tensor]  # from z to dL/dz, of the same shape
Back = Callable[[Tensor], Tensor]  # from dL/dz to dL/dscores


class SolverGradient(Backpropagation):
    """Base of the gradients for `nestruct.SolverLayer`; a subclass gives `there_and_back`.

    Losses are minimised. Where there are several samples, the loss is their mean.
    """

    kind: ClassVar[str] = "black-box solver"
    relaxes: ClassVar[bool] = True  # a decoder's shortcuts for hard structures have no derivative
    biased_by_design: ClassVar[bool] = True
    calls_on_the_way_back: int = 0
    """How often the solver is called for each sample, when the loss is differentiated."""
    _checked: Any = None  # the model whose losses are known to have a derivative

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(type(self).__name__, "num_samples", self.num_samples, 1)

    @property
    def num_decoded(self) -> int:
        """How many structures of an instance `solve` gives, each with a loss."""
        return self.num_samples

    def _num_evaluations(self) -> int:
        return self.num_decoded

    def solve(
        self, structure: Structure, scores: Tensor, draws: torch.Generator | Noise, **context: Any
    ) -> Tensor:
        """The structures that are decoded, differentiable with respect to the scores.

        Args:
            structure: What is solved; only its argmax is needed.
            scores: ``[..., batch, *parts]``, in float32 or float64.
            draws: Where random numbers come from.
            **context: What the solver sees besides scores.

        Returns:
            Shaped as ``scores``; with ``num_decoded`` above 1 with an axis of samples first.
        """
        z, back = self.there_and_back(structure, scores.detach(), draws, **context)
        return with_gradient(z, scores, back)

    @abstractmethod
    def there_and_back(
        self, structure: Structure, scores: Tensor, draws: torch.Generator | Noise, **context: Any
    ) -> tuple[Tensor, Back]:
        """z, and the function from dL/dz to dL/dscores. Neither needs autograd.

        Args:
            structure: See `solve`.
            scores: Without a derivative.
            draws: See `solve`.
            **context: See `solve`.

        Returns:
            z; and a function whose argument and result are shaped as z. Over samples its results
            are added up, and a mean over samples has given each of them a share of dL/dz.
        """

    def formula(
        self,
        structure: Structure,
        scores: Tensor,
        slope: Slope,
        draws: torch.Generator,
        **context: Any,
    ) -> Tensor:
        """One estimate of dL/dscores, written out without autograd, for one sample.

        `nestruct.check_layer` averages it: the limit of a method that is biased by design.

        Args:
            structure: What is solved.
            scores: ``[rows, batch, *parts]``: each row is a draw of its own.
            slope: Gives dL/dz at structures shaped as the scores.
            draws: Where random numbers come from.
            **context: What the solver sees besides scores.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what its limit is.")

    def limit(
        self, model: StructuredModel, batch: Any, *, num_draws: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """By `formula`, the chain rule through the encoder, and decoding besides."""
        parameters = list(Layout(model, self.perturb).parameters.values())
        context, structure = model.context(batch), model.structure
        with torch.enable_grad():
            scores = model.encode(batch)
        centre, found = scores.detach(), []
        draws = torch.Generator(centre.device).manual_seed(seed)
        rows = centre.expand(-(-num_draws // _ESTIMATES), *centre.shape)

        def slope(z: Tensor) -> Tensor:
            with torch.enable_grad():
                leaf = z.detach().requires_grad_()
                losses = model.loss_at(batch, centre, leaf)
                return torch.autograd.grad(losses.sum(), leaf)[0]

        for _ in range(_ESTIMATES):
            each = self.formula(structure, rows, slope, draws, **context).mean(0)
            z, _ = self.there_and_back(structure, rows, draws, **context)
            with torch.enable_grad():
                losses = model.loss_at(batch, scores, z.reshape(-1, *centre.shape))
                total = losses.mean() + (each * scores).sum() / len(centre)
                pieces = torch.autograd.grad(
                    total, parameters, retain_graph=True, materialize_grads=True
                )
            found.append(torch.cat([piece.flatten() for piece in pieces]).double())
        estimates = torch.stack(found)
        return estimates.mean(0), estimates.std(0) / _ESTIMATES**0.5

    def check_structure(self, structure: Structure) -> None:
        """Refuses a structure that does not have what this gradient needs."""

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained."""
        super().prepare(model, batch, seed=seed)
        assert isinstance(model, StructuredModel)
        self.check_structure(model.structure)

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The losses at the structures of `solve`; backpropagation passes through them.

        What `solve` gets is the derivative of each example's own loss: options mean the same for
        every size of batch.
        """
        context, scores = model.context(batch), model.encode(batch)
        weight = _Weight()
        structure, lost = model.structure, scores.new_zeros(())
        z, inner = self.there_and_back(structure, scores.detach(), noise, **context)
        failed = z.isnan().flatten(z.dim() - structure.part_axes).any(-1)

        def back(g: Tensor) -> Tensor:
            found = inner(g)
            unknown = (found.isnan() & g.isfinite()).flatten(g.dim() - structure.part_axes).any(-1)
            lost.add_((unknown & ~failed).sum())
            return found

        z = with_gradient(z, weight.multiply(scores), back)
        z = z[None] if z.dim() == scores.dim() else z
        z = weight.divide(torch.where(z.isnan(), 0.0, z))
        losses = model.loss_at(batch, scores, z)
        self._check_derivative(model, losses, z)
        per_example = scores.shape[1 : scores.dim() - structure.part_axes].numel()
        none = failed.view(*losses.shape, per_example).any(-1)
        losses = torch.where(none, torch.nan, losses)
        instances = z.shape[: z.dim() - model.structure.part_axes].numel()
        later = self.calls_on_the_way_back * instances if z.requires_grad else 0
        return Terms(
            weight.note(losses),
            losses.isfinite().all(0),
            solved_later=later,
            summed={"lost": lost},
        )

    def _check_derivative(self, model: StructuredModel, losses: Tensor, z: Tensor) -> None:
        """Raises, in the first step with a model, if its losses are no function of z for torch."""
        if self._checked is not None and self._checked() is model:
            return
        if z.requires_grad and not _depends_on(losses, z):
            raise InputError(
                f"{type(self).__name__} needs the loss's derivative with respect to z, and "
                f"{type(model).__name__}.decode gives none; use StructureNES, which needs its "
                "values only."
            )
        self._checked = weakref.ref(model)

    def _repeat(
        self, scores: Tensor, draws: torch.Generator | Noise
    ) -> tuple[Float[Tensor, "..."], Draws]:
        """The scores, with an axis of samples first if there are several; and a source of draws."""
        source = Draws(f"{type(self).__name__}.solve", self._streams(scores, draws))
        several = (self.num_samples,) if self.num_samples > 1 else ()
        return scores.expand(*several, *scores.shape), source

    def _streams(self, scores: Tensor, draws: torch.Generator | Noise) -> torch.Generator | Noise:
        """The same draws; a noise with a stream for each sample if there are several."""
        if self.num_samples == 1 or not isinstance(draws, Noise):
            return draws
        numbers = torch.arange(self.num_samples, device=scores.device)
        return draws.replace(stream=numbers[:, None])

    @staticmethod
    def _counting(structure: Structure, scores: Tensor, context: dict[str, Any]) -> Tensor:
        """The parts that a member can have."""
        possible = structure.counting(scores, **context)
        allowed = scores > -torch.inf
        return allowed if possible is None else allowed & possible


def with_gradient(z: Tensor, scores: Tensor, back: Back) -> Tensor:
    """``z``, with a derivative with respect to the scores that a function says.

    Args:
        z: Shaped as ``scores``, or with axes of samples before those.
        scores: What is differentiated.
        back: See `SolverGradient.there_and_back`.
    """
    if not (torch.is_grad_enabled() and scores.requires_grad):
        return z
    return _WithGradient.apply(scores.expand(z.shape), z, back)


@torch.no_grad()
def go_back(back: Back, slope: Tensor) -> Tensor:
    """What ``back`` says, 0 where the solver has no answer on the way back.

    NaN where dL/dz is not finite, so that a scaler of losses sees it.
    """
    if not slope.numel():
        return slope
    with nan_rows(), estimating(), without_autocast(slope.device):
        found = back(slope)
    return torch.where(found.isnan(), 0.0, found) + 0 * slope  # 0 times infinity is NaN


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which solvers see the dtype that they are given."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


class _Weight:
    """What each example counts for in a mean, which is known on the way back only.

    Derivatives on their way from `note` back to `divide` have it as a factor. Between `divide` and
    `multiply` they have none.
    """

    def note(self, losses: Float[Tensor, "samples batch"]) -> Tensor:
        """The losses that are averaged."""
        if losses.requires_grad:
            losses.register_hook(self._keep)
        return losses

    def divide(self, z: Tensor) -> Tensor:
        """``z [samples, batch, *parts]``; its derivative loses the factor."""
        if z.requires_grad:
            z.register_hook(
                lambda g: (
                    g
                    / torch.where(self._each > 0, self._each, 1.0).view(1, -1, *[1] * (g.dim() - 2))
                )
            )
        return z

    def multiply(self, scores: Tensor) -> Tensor:
        """``scores [batch, *parts]``; their derivative gets the factor back."""
        scores = scores.view_as(scores)
        if scores.requires_grad:
            scores.register_hook(lambda g: g * self._each.view(-1, *[1] * (g.dim() - 1)))
        return scores

    def _keep(self, weights: Tensor) -> None:
        self._each = weights.sum(0)


def _depends_on(losses: Tensor, z: Tensor) -> bool:
    """Whether torch can differentiate the losses with respect to z."""
    seen, waiting = set(), [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is z.grad_fn:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False


class _WithGradient(torch.autograd.Function):
    # With a setup_context of its own, apply would take 0.1 ms more, for torch.func's sake.
    @staticmethod
    def forward(ctx, scores: Tensor, z: Tensor, back: Back) -> Tensor:
        ctx.back = back
        return z.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, slope):
        return go_back(ctx.back, slope), None, None
