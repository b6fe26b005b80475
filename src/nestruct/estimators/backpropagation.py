"""What the estimators that differentiate have in common: terms per example and their derivative.

A subclass says what to differentiate for each example; here are the mean over examples, those that
have no answer left out, its derivative, and the statistics. Several processes share the examples:
each differentiates the terms of its own, over the number of all, and the gradients are added.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from nestruct.checks import check_options
from nestruct.data import batch_size
from nestruct.errors import InputError
from nestruct.estimators.base import Estimator, Stats, masked_mean, summarise
from nestruct.models import StructuredModel, hard_structures
from nestruct.noise import Noise
from nestruct.population import Layout
from nestruct.population.evaluate import may_capture
from nestruct.processes import world_size
from nestruct.sharing import Share, current_share, shared_batch, sum_over_ranks
from nestruct.structures import nan_rows
from nestruct.structures.solvers import solver_counts


@dataclass
class Terms:
    """What a batch gives: differentiable terms of each example. Their mean is differentiated.

    Args:
        losses: ``[*samples, batch]``, the losses to report.
        counts: Which examples count, or which samples of them; broadcasts. Finite losses when None.
        sampled: ``[*samples, batch]``, what is averaged over samples and examples; the losses when
            None.
        each: ``[batch]``, what is averaged over examples besides.
        noted: Statistics of the estimator's own, for its `_adapt`.
        solved_later: Instances that differentiating the terms gives to the solver.
        summed: Counts that differentiating the terms fills in, to be summed over processes.
            ``lost`` says how many of those instances had no answer, others are for `_adapt`.
    """

    losses: Tensor
    counts: Tensor | None = None
    sampled: Tensor | None = None
    each: Tensor | None = None
    noted: Stats = field(default_factory=dict)
    solved_later: int = 0
    summed: Stats = field(default_factory=dict)

    def mean(self) -> Float[Tensor, ""]:
        """The mean over what counts: its derivative is the estimate."""
        return self._mean(self._counts())

    def mean_over_ranks(
        self, share: Share, solved: Sequence[int]
    ) -> tuple[Float[Tensor, ""], Tensor, Float[Tensor, " counts"]]:
        """This rank's part of the mean over the whole batch; all losses; what all ranks solved."""
        counts = self._counts()
        mine = torch.stack([self.losses, counts.expand_as(self.losses)])
        own = [count * share.counts for count in solved]
        (losses, among), every_solved = share.whole_and_sums(mine, own)
        return self._mean(counts & share.counts, among > 0), losses, every_solved

    def _counts(self) -> Bool[Tensor, "..."]:
        return self.losses.isfinite() if self.counts is None else self.counts

    def _mean(self, counts: Tensor, among: Tensor | None = None) -> Float[Tensor, ""]:
        """The sum over what counts, divided by how many count among all."""
        values = self.losses if self.sampled is None else self.sampled
        value = masked_mean(values, counts, among)
        if self.each is None:
            return value
        every = None if among is None else _as_wholes(among)
        return value + masked_mean(self.each, _as_wholes(counts), every)


def _as_wholes(counts: Bool[Tensor, "*samples batch"]) -> Bool[Tensor, " batch"]:
    """Which examples count: one of which a sample has no answer has none as a whole."""
    return counts if counts.dim() == 1 else counts.flatten(0, -2).all(0)


class Backpropagation(Estimator):
    """Base of the estimators that differentiate encoder and decoder; a subclass gives `terms`."""

    relaxes: ClassVar[bool] = False  # decodes relaxed structures, for which there are no shortcuts

    def __post_init__(self) -> None:
        check_options(self)

    @abstractmethod
    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """What each example contributes; the base takes the mean and differentiates it.

        Args:
            model: The model.
            batch: The minibatch.
            noise: Seed and step (a tensor inside a captured graph).
        """

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained."""
        if not isinstance(model, StructuredModel):
            raise InputError(
                f"{type(self).__name__} differentiates encoder and decoder, so it needs a "
                f"StructuredModel; {type(model).__name__} is none."
            )

    def estimate(
        self, model: StructuredModel, layout: Layout, batch: Any, noise: Noise
    ) -> tuple[list[Tensor], Stats]:
        """The derivative of the mean of all terms."""
        estimated = list(layout.parameters.values())
        targets = [*estimated, *self.parameters()]
        share = Share.of(batch_size(batch))
        if share is not None:
            batch, noise = share.take(batch), noise.replace(example=share.rows(layout.device))
        with nan_rows(), torch.enable_grad(), shared_batch(share, noise, layout.device):
            before, counted = solver_counts(), {}
            terms = self.terms(model, batch, noise)
            if share is None:
                value, losses = terms.mean(), terms.losses
            else:
                solved, looked_up = solver_counts(before)
                value, losses, counts = terms.mean_over_ranks(
                    share, (solved + terms.solved_later, looked_up)
                )
                counted = dict(zip(("solved", "looked_up"), counts, strict=True))
            found = torch.autograd.grad(value, targets, materialize_grads=True)
        whole = sum_over_ranks([*found, *terms.summed.values()])
        gradients, sums = whole[: len(found)], whole[len(found) :]
        summed = dict(zip(terms.summed, sums, strict=True))
        stats = summarise(losses, gradients[: len(estimated)]) | counted | terms.noted | summed
        if "lost" in summed:
            stats["failed"] = stats["failed"] + stats.pop("lost").long()
        # A step without a gradient is one without a move: not the end of the model.
        finite = stats["norm"].isfinite()
        if layout.device.type == "cpu" and finite:  # where a look costs nothing
            return gradients, stats
        return [torch.where(finite, gradient, 0.0) for gradient in gradients], stats

    def of_whole_batch(self, values: Float[Tensor, "... mine"]) -> Float[Tensor, "... batch"]:
        """Values of the examples at hand, with those of the examples that other processes have.

        For what compares examples within `terms`, such as a baseline; not differentiable.
        """
        share = current_share()
        return values if share is None else share.whole(values)

    def hard_losses(
        self, model: StructuredModel, batch: Any, scores: Tensor, z: Tensor
    ) -> tuple[Float[Tensor, "samples batch"], Bool[Tensor, " batch"]]:
        """Losses at hard structures ``[samples, batch, *parts]``, and which examples count.

        A structure that the solver had no answer for is NaN, and so is its loss; its example then
        counts for nothing, and leaves the others alone.
        """
        failed = z.isnan()
        with hard_structures():
            losses = model.loss_at(batch, scores, torch.where(failed, 0.0, z))
        losses = torch.where(failed.flatten(2).any(-1), torch.nan, losses)
        return losses, losses.isfinite().all(0)

    def relaxed_terms(
        self,
        model: StructuredModel,
        batch: Any,
        noise: Noise,
        relax: Callable[..., Tensor],
    ) -> Terms:
        """The losses at relaxed structures, which are their own terms.

        ``relax(perturbed_scores, **context)`` is what is decoded. An example without a structure
        has the loss NaN and leaves the others alone.
        """
        context, scores = model.context(batch), model.encode(batch)
        losses = []
        for stream in range(self.num_samples):
            z = relax(scores + noise.replace(stream=stream).gumbel(scores), **context)
            failed = z.isnan()
            loss = model.loss_at(batch, scores, torch.where(failed, 0.0, z))
            losses.append(torch.where(failed.flatten(1).any(-1), torch.nan, loss))
        return Terms(torch.stack(losses))

    def _may_capture(self, model: StructuredModel) -> bool:
        # Collectives inside a captured graph are for another day.
        return world_size() == 1 and may_capture(model, "on" if self.relaxes else self.graph)
