"""What the estimators that differentiate have in common: a surrogate loss and its derivative.

A subclass says what to differentiate; here are the draws, the CUDA graph (small steps are bound by
their launches), the gradients and the report.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from nestruct.errors import InputError, check_choice
from nestruct.estimators.base import Stateless, StepReport, check_examples
from nestruct.models import StructuredModel, hard_structures
from nestruct.noise import Noise
from nestruct.population import Layout
from nestruct.population.evaluate import may_capture
from nestruct.population.graph import GraphedStep, run_step
from nestruct.population.population import like
from nestruct.population.shard import world_size
from nestruct.population.watch import Watch
from nestruct.structures import nan_rows


class Backpropagation(Stateless):
    """Base of the estimators that differentiate encoder and decoder."""

    relaxes: ClassVar[bool] = False  # decodes relaxed structures, for which there are no shortcuts
    num_samples: int
    graph: Literal["auto", "on", "off"]
    _graphed: GraphedStep | None = None
    _watching: Watch | None = None

    def __post_init__(self) -> None:
        check_choice(f"{type(self).__name__}: graph", self.graph, ("auto", "on", "off"))

    def surrogate(self, model: StructuredModel, batch: Any, noise: Noise) -> tuple[Tensor, Tensor]:
        """A scalar whose derivative is the estimate, and the losses behind it.

        Args:
            model: The model.
            batch: The minibatch.
            noise: Seed and step (a tensor inside a captured graph).
        """
        raise NotImplementedError

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained; `fit` calls it before anything is written."""
        if not isinstance(model, StructuredModel):
            raise InputError(
                f"{type(self).__name__} differentiates encoder and decoder, so it needs a "
                f"StructuredModel; {type(model).__name__} is none."
            )
        if world_size() > 1:
            raise InputError(
                f"{type(self).__name__} works in one process, and this run has {world_size()}: use "
                "NES, whose population is shared among them."
            )

    def backward(
        self, model: StructuredModel, batch: Any, *, seed: int = 0, step: int = 0
    ) -> StepReport:
        """Sets ``.grad`` of every parameter that requires one, the estimator's own included."""
        check_examples(type(self).__name__, batch)
        self.prepare(model, batch, seed=seed)
        self._watch().raise_if_all_failed()
        phase, layout = model.at_step(step), Layout(model, None)
        parameters = [*layout.parameters.values(), *self.parameters()]

        def one_step(batch: Any, counter: int | Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
            with nan_rows(), torch.enable_grad():
                value, losses = self.surrogate(model, batch, Noise(seed=seed, step=counter))
            gradients = torch.autograd.grad(value, parameters, materialize_grads=True)
            losses = losses.detach()
            estimated = gradients[: len(layout.parameters)]
            norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in estimated]))
            good, finite = losses.isfinite(), norm.isfinite()
            mean = masked_mean(losses, good)
            stats = {"loss": mean, "std": masked_mean((losses - mean).square(), good).sqrt()}
            stats |= {"failed": (~good).sum(), "usable": good.sum() * finite}
            # A step without a gradient is one without a move: not the end of the model.
            moves = [
                like(parameter, torch.where(finite, gradient, 0.0))
                for parameter, gradient in zip(parameters, gradients, strict=True)
            ]
            return moves, stats | {"norm": norm}

        gradients, stats = run_step(
            self,
            one_step,
            batch,
            step,
            on_cuda=parameters[0].is_cuda,
            key=lambda: (
                *(id(model), phase, seed, *self._options()),
                *layout.addresses(list(model.modules())),
            ),
            keep=lambda: model,
            capturable=lambda: self._is_capturable(model),
            changed=lambda: list(model.buffers()),
        )
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self._watch().look(stats["usable"])
        self._adapt(stats)
        return StepReport(
            loss=stats["loss"],
            loss_std=stats["std"],
            grad_norm=stats["norm"],
            num_evaluations=torch.tensor(self.num_samples),
            num_failed=stats["failed"],
        )

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

    def relaxed_losses(
        self,
        model: StructuredModel,
        batch: Any,
        noise: Noise,
        relax: Callable[[Tensor, Tensor | None], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The mean loss at relaxed structures: it is its own surrogate; and the losses.

        ``relax(perturbed_scores, lengths)`` is what is decoded. An example without a structure has
        the loss NaN and leaves the others alone.
        """
        lengths, scores = model.lengths(batch), model.encode(batch)
        losses = []
        for stream in range(self.num_samples):
            gumbel = noise.replace(stream=stream).gumbel(scores, lengths)
            z = relax(scores + gumbel, lengths)
            failed = z.isnan()
            loss = model.loss_at(batch, scores, torch.where(failed, 0.0, z))
            losses.append(torch.where(failed.flatten(1).any(-1), torch.nan, loss))
        every = torch.stack(losses)
        return masked_mean(every, every.isfinite()), every

    def _watch(self) -> Watch:
        if self._watching is None:
            self._watching = Watch(
                f"{type(self).__name__}: no loss is finite, or their gradient is not. Look for "
                "NaN in the data, the scores and the decoder; a smaller learning rate may help."
            )
        return self._watching

    def _options(self) -> list[Any]:
        """What a captured step takes for granted; an option that is changed asks for another."""
        names = [option.name for option in dataclasses.fields(self) if option.init]  # type: ignore[arg-type]
        return [getattr(self, name) for name in names]

    def _is_capturable(self, model: StructuredModel) -> bool:
        """Whether a graph of one step can stand for all."""
        return may_capture(model, "on" if self.relaxes else self.graph)

    def _adapt(self, stats: dict[str, Tensor]) -> None:
        """Changes the estimator's state after a step: in place, where a captured step reads it."""


def masked_mean(values: Tensor, counts: Tensor) -> Float[Tensor, ""]:
    """The mean of those values that count; ``counts`` broadcasts. NaN where none does."""
    counts = counts.expand_as(values)
    return torch.where(counts, values, 0.0).sum() / counts.sum()
