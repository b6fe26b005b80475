"""The template of every estimator, and what a step reports.

`Estimator.backward` is the same for all: the model is told its step, the step is run (captured in a
CUDA graph where that pays), gradients are set, failures noticed, costs counted. A subclass says
what a step computes: `estimate`.
"""

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.data import batch_size, device_of
from nestruct.data.hooks import HasSelectRows
from nestruct.errors import InputError
from nestruct.models import StructuredModel
from nestruct.models.compiled import unwrap
from nestruct.models.hooks import HasAtStep
from nestruct.models.structured import returns_nothing
from nestruct.noise import Noise
from nestruct.population import Layout
from nestruct.population.evaluate import may_capture
from nestruct.population.graph import GraphedStep
from nestruct.population.layout import Filter, like
from nestruct.population.watch import Watch
from nestruct.structures.solution_cache import estimating, without_lookups
from nestruct.structures.solvers import solver_counts, solver_seconds

Stats = dict[str, Tensor]  # loss, std, norm, failed, usable, solved, looked_up


@dataclass(frozen=True)
class StepReport:
    """What happened in one step: 0-dim tensors, so that reading them is what synchronises.

    Args:
        loss: The mean loss (for a population: over members of surviving pairs).
        loss_std: Its standard deviation over members.
        grad_norm: The norm of the estimated gradient.
        num_evaluations: How often a member's loss was evaluated (members x samples).
        num_failed: Members whose loss was not finite.
        solver_seconds: Time spent in CPU solvers; None where unknown.
        num_decoded: Members x samples x examples, whatever savings spare.
        num_solved: Instances that were solved; None where unknown.
        num_looked_up: Instances whose solution was known instead (`BlackBox` keeps solutions), so
            with ``num_solved`` all that were given to an argmax; None where unknown.
    """

    loss: Tensor
    loss_std: Tensor
    grad_norm: Tensor
    num_evaluations: Tensor
    num_failed: Tensor
    solver_seconds: Tensor | None = None
    num_decoded: Tensor | None = None
    num_solved: Tensor | None = None
    num_looked_up: Tensor | None = None


class Estimator(ABC):
    """Where a gradient comes from. A subclass is a dataclass of its options and gives `estimate`.

    An estimator without state keeps the defaults of `parameters`, `state_dict` and
    `load_state_dict`.
    """

    kind: ClassVar[str]
    """What it asks for: gradient-free, black-box solver, needs a relaxation, exact, supervised."""
    num_members: int = 1
    """How many members of a population a step evaluates."""
    num_samples: int = 1
    """How many structures of each example a member's loss is the mean of."""
    perturb: Filter = None
    """Which parameters are estimated; all that require a gradient when None."""
    graph: Literal["auto", "on", "off"] = "off"
    is_scaled: bool = True
    """Whether gradients have the scale of the loss's; with shaped losses only their direction."""
    biased_by_design: ClassVar[bool] = False
    """Whether its mean is known to differ from the gradient of the smoothed loss."""
    all_failed: ClassVar[str] = (
        "no loss is finite, or their gradient is not. Look for NaN in the data, the scores and the "
        "decoder; a smaller learning rate may help."
    )
    """What is raised when nothing of a step was usable, after the estimator's name."""
    _graphed: GraphedStep | None = None
    _watching: Watch | None = None

    @abstractmethod
    def estimate(
        self, model: Any, layout: Layout, batch: Any, noise: Noise
    ) -> tuple[list[Tensor], Stats]:
        """Gradients, and statistics of the losses; may be captured, so nothing is read on the host.

        Args:
            model: The model.
            layout: The parameters that are estimated.
            batch: The minibatch.
            noise: Seed and step; the step is a tensor inside a captured graph.

        Returns:
            One gradient for each parameter of the layout, then for each of `parameters`; and the
            statistics ``loss``, ``std``, ``norm``, ``failed`` (members that failed) and ``usable``
            (those that did not); `summarise` makes them of losses and gradients.
        """

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained, and makes what a step needs.

        `backward` calls it at every step, and `nestruct.fit` before anything is written.
        """

    def plan(self, model: Any, batch: Any, *, seed: int = 0) -> None:
        """Decides how steps are computed, before the first one; `state_dict` keeps that.

        `nestruct.fit` calls it, so that the checkpoint of step 0 holds the plan; `backward` plans
        where no one has.
        """
        model = unwrap(model)
        self.prepare(model, batch, seed=seed)
        if isinstance(model, HasAtStep):
            model.at_step(0)
        layout = Layout(model, self.perturb)
        with _told_why(self, model, batch, layout.device), without_lookups():
            self._plan_step(model, layout, batch, seed)

    def parameters(self) -> list[nn.Parameter]:
        """The estimator's own parameters, which join the optimizer."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""

    def backward(self, model: Any, batch: Any, *, seed: int, step: int = 0) -> StepReport:
        """Sets ``.grad`` of the parameters it estimates; leaves the others untouched.

        Args:
            model: What the estimator needs of it, its own page says.
            batch: See `nestruct.select_rows`.
            seed: The run's seed.
            step: The training step; with the seed it determines every draw.

        Raises:
            NestructError: Nothing of a step was usable.
        """
        model, examples = unwrap(model), batch_size(batch)
        if examples == 0:
            raise InputError(
                f"{type(self).__name__}: the batch has no examples; give it at least one."
            )
        self.prepare(model, batch, seed=seed)
        watch = self._watch()
        watch.raise_if_all_failed()
        phase = model.at_step(step) if isinstance(model, HasAtStep) else None
        layout = Layout(model, self.perturb)
        on_cpu = layout.device.type == "cpu"

        def one_step(batch: Any, number: int | Tensor) -> tuple[list[Tensor], Stats]:
            start = solver_counts()
            with estimating():
                moves, stats = self.estimate(model, layout, batch, Noise(seed=seed, step=number))
            if "solved" not in stats:
                for name, count in zip(("solved", "looked_up"), solver_counts(start), strict=True):
                    stats[name] = torch.full((), count, device=layout.device)
            return moves, stats

        with _told_why(self, model, batch, layout.device):
            with without_lookups():
                self._plan_step(model, layout, batch, seed)
            before = solver_seconds()
            gradients, stats = self._run(one_step, model, layout, batch, seed, step, phase)
        targets = [*layout.parameters.values(), *self.parameters()]
        for parameter, gradient in zip(targets, gradients, strict=True):
            parameter.grad = like(parameter, gradient)
        watch.look(stats["usable"])
        self._adapt(stats)
        seconds = torch.tensor(solver_seconds() - before) if on_cpu else None
        self._finish(model, batch, Noise(seed=seed, step=step))
        # What modules of another kind do inside their loss, and solvers of another, is not known.
        structure = getattr(model, "structure", None)  # some are taught, and have none
        known = isinstance(model, StructuredModel) and (not structure or structure.counts_solved)
        return StepReport(
            loss=stats["loss"],
            loss_std=stats["std"],
            grad_norm=stats["norm"],
            num_evaluations=torch.tensor(self._num_evaluations()),
            num_failed=stats["failed"],
            solver_seconds=seconds,
            num_decoded=stats.get("decoded", torch.tensor(self._num_decoded(examples))),
            num_solved=stats["solved"] if known else None,
            num_looked_up=stats["looked_up"] if known else None,
        )

    @property
    def smoothing(self) -> float | None:
        """The sigma by which it smooths the loss in the parameters; None if it does not smooth."""
        return None

    def sigma_ratios(self, layout: Layout) -> list[float]:
        """Each parameter tensor's sigma over `smoothing`."""
        return [1.0] * len(layout.parameters)

    def other_laws(self) -> dict[str, "Estimator"]:
        """This estimator with each way to draw the structure's noise, by name, for comparisons."""
        return {}

    def limit(
        self, model: Any, batch: Any, *, num_draws: int, seed: int
    ) -> tuple[Tensor, Tensor] | None:
        """The gradient that a biased method aims at, with its standard error, by another way.

        Args:
            model: What is trained.
            batch: The minibatch.
            num_draws: How many draws to average.
            seed: For the draws.

        Returns:
            Flat and in float64; None where no other way is known.
        """
        return None

    # What a subclass may do otherwise.

    def _num_evaluations(self) -> int:
        """Members x samples: how many losses of each example a step has."""
        return self.num_members * self.num_samples

    def _num_decoded(self, examples: int) -> int:
        """Members x samples x examples of a step."""
        return self._num_evaluations() * examples

    def _plan_step(self, model: Any, layout: Layout, batch: Any, seed: int) -> None:
        """Makes the plan of a model's steps before the first one; nothing by default."""

    def _adapt(self, stats: Stats) -> None:
        """Changes the estimator's state after a step: in place, where a captured step reads it."""

    def _finish(self, model: Any, batch: Any, noise: Noise) -> None:
        """Does what is left to do outside of a captured step."""

    def _may_capture(self, model: Any) -> bool:
        """True if one captured step may be replayed for all."""
        return may_capture(model, self.graph)

    def _captured(self) -> list[Any]:
        """The values that a captured step has built in; if they change, it is captured again."""
        values = [getattr(self, option.name) for option in options_of(self)]
        return [value if isinstance(value, Hashable) else repr(value) for value in values]

    def _kept(self) -> Any:
        """What must stay in memory as long as a captured step."""
        return None

    def _run(
        self,
        one_step: Callable[[Any, Any], tuple[list[Tensor], Stats]],
        model: Any,
        layout: Layout,
        batch: Any,
        seed: int,
        step: int,
        phase: Any,
    ) -> tuple[list[Tensor], Stats]:
        """Gradients and statistics of a step; gradients are overwritten by the next one."""
        if layout.device.type != "cuda" or self.graph == "off":
            return one_step(batch, step)
        if self._graphed is None:
            self._graphed = GraphedStep(strict=self.graph == "on")
        modules = list(model.modules())
        gradients, stats = self._graphed(
            one_step,
            batch,
            step,
            key=lambda: (id(model), phase, seed, *self._captured(), *layout.addresses(modules)),
            keep=lambda: (model, self._kept()),
            capturable=lambda: self._may_capture(model),
            changed=lambda: list(model.buffers()),
        )
        return gradients, {name: value.clone() for name, value in stats.items()}

    def _watch(self) -> Watch:
        if self._watching is None:
            self._watching = Watch(f"{type(self).__name__}: {self.all_failed}")
        return self._watching


@contextlib.contextmanager
def _told_why(estimator: Estimator, model: Any, batch: Any, device: torch.device) -> Iterator[None]:
    """Turns torch's error of two devices, and Python's of a forgotten return, into a sentence."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        said = returns_nothing(model, batch)
        if said is None:
            raise
        raise InputError(said) from error
    except RuntimeError as error:
        found = device_of(batch)
        if found == device or isinstance(batch, HasSelectRows):  # whose device is not known
            raise
        raise InputError(
            f"{type(estimator).__name__}: the batch is on {found} and the model on {device}: move "
            "one of them. (fit moves data, but not what a function of the step gives.)"
        ) from error


def summarise(losses: Tensor, gradients: Sequence[Tensor]) -> Stats:
    """The statistics of a step. A loss that is not finite counts as failed."""
    losses, good = losses.detach(), losses.isfinite()
    norm = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients]))
    mean = masked_mean(losses, good)
    return {
        "loss": mean,
        "std": masked_mean((losses - mean).square(), good).sqrt(),
        "norm": norm,
        "failed": (~good).sum(),
        "usable": good.sum() * norm.isfinite(),
    }


def masked_mean(values: Tensor, counts: Tensor, among: Tensor | None = None) -> Float[Tensor, ""]:
    """The mean of the values that count, NaN if none does. ``counts`` broadcasts.

    Where the values are a part of more, ``among`` says which of all count: then it is this part's
    share of their mean.
    """
    counts = counts.expand_as(values)
    return torch.where(counts, values, 0.0).sum() / (counts if among is None else among).sum()


def options_of(estimator: Any) -> list[dataclasses.Field[Any]]:
    """The options of an estimator: its fields if it is a dataclass, else none."""
    if not dataclasses.is_dataclass(estimator):
        return []
    return [option for option in dataclasses.fields(estimator) if option.init]
