"""Natural evolution strategies in parameter space: Algorithm 1 and Eq. 8 of the paper.

    gradient of E[loss(mu + sigma w)],  w ~ N(0, I)   =   E[w loss(mu + sigma w)] / sigma,

estimated by a population of N members in mirrored pairs mu +- sigma w, losses turned into standard
scores. Gradient-free: forward passes only, the solver and the networks are black boxes.
"""

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nestruct.data import batch_size
from nestruct.errors import InputError, check_choice, is_out_of_memory
from nestruct.estimators.base import StepReport, check_examples
from nestruct.estimators.nes_plan import Plan, decide
from nestruct.estimators.shaping import pair_weights
from nestruct.noise import Noise
from nestruct.population import Layout, Population, evaluate
from nestruct.population.directions import fill_directions
from nestruct.population.evaluate import fixed_dropout, is_training, may_capture
from nestruct.population.graph import GraphedStep, run_step
from nestruct.population.population import Filter, like
from nestruct.population.shard import add_over_ranks, my_pairs
from nestruct.population.watch import Watch
from nestruct.structures import nan_rows
from nestruct.structures.base import check_count, check_positive
from nestruct.structures.solvers import solver_seconds

log = logging.getLogger("nestruct")

_ALL_FAILED = (
    "NES: every pair has a member whose loss is not finite. Is the loss finite at the centre? If "
    "so, sigma may be too large; if not, look for NaN in the data, the scores and the decoder."
)
_ROWS_STREAM = -1  # the stream that minibatches of pairs are drawn from


@dataclass(kw_only=True, eq=False)
class NES:
    """Natural evolution strategies; the defaults are the paper's.

    Args:
        sigma: The standard deviation of the perturbation.
        population_size: N, the number of members; even when mirrored.
        mirrored: Whether members come in pairs ``mu +- sigma w``.
        shaping: ``standard_score`` (the paper), ``centered_rank``, or ``none`` for raw losses.
        minibatch: ``shared``: every member sees the whole batch; ``per_pair``: each mirrored pair
            draws its own examples from it, and shaping acts on pair differences.
        pair_batch_size: Examples per pair with ``per_pair``; an equal share, at least one, when
            None.
        gumbel: Who draws the structure's noise: ``shared`` (one draw a step for all members, as in
            the public code), ``per_pair``, or ``per_member`` (Algorithm 1 as written).
        num_samples: Draws of the structure per example and member (the inner expectation).
        directions: ``gaussian`` or ``rademacher``.
        parameters: Which parameters are perturbed: names, a module, or a predicate of (name,
            parameter); all that require a gradient when None.
        mode: ``vmap``, ``loop``, or ``auto``: time both on a few members, once.
        chunk_size: Members evaluated at once (whole pairs); chosen from ``memory_budget`` when
            None.
        memory_budget: Bytes; a quarter of what is free when None.
        graph: Whether a step on CUDA is captured in a graph and replayed: ``auto``, ``on``,
            ``off``.

    Example:
        >>> import torch, nestruct
        >>> class Bowl(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.mu = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        ...     def loss(self, batch, noise):
        ...         return (self.mu**2).sum() + 0 * batch
        >>> bowl = Bowl()
        >>> estimator = nestruct.NES(sigma=0.1, population_size=2000, shaping="none")
        >>> report = estimator.backward(bowl, torch.zeros(1), seed=0, step=0)
        >>> bowl.mu.grad.round()
        tensor([ 2., -4.])
    """

    sigma: float
    population_size: int
    mirrored: bool = True
    shaping: Literal["standard_score", "centered_rank", "none"] = "standard_score"
    minibatch: Literal["shared", "per_pair"] = "shared"
    pair_batch_size: int | None = None
    gumbel: Literal["shared", "per_pair", "per_member"] = "shared"
    num_samples: int = 1
    directions: Literal["gaussian", "rademacher"] = "gaussian"
    parameters: Filter = None
    mode: Literal["auto", "vmap", "loop"] = "auto"
    chunk_size: int | None = None
    memory_budget: int | None = None
    graph: Literal["auto", "on", "off"] = "auto"
    _plan: Plan | None = field(default=None, init=False, repr=False)
    _graphed: GraphedStep | None = field(default=None, init=False, repr=False)
    _memory: Tensor | None = field(default=None, init=False, repr=False)
    _watch: Watch = field(default_factory=lambda: Watch(_ALL_FAILED), init=False, repr=False)

    def __post_init__(self) -> None:
        chosen = self.parameters
        if not (chosen is None or isinstance(chosen, nn.Module) or callable(chosen)):
            self.parameters = [chosen] if isinstance(chosen, str) else list(chosen)
        _check_options(self)

    @property
    def num_pairs(self) -> int:
        """Directions drawn per step."""
        return self.population_size // 2 if self.mirrored else self.population_size

    def backward(self, model: nn.Module, batch: Any, *, seed: int, step: int = 0) -> StepReport:
        """Sets ``.grad`` of the perturbed parameters to the estimated gradient.

        Args:
            model: Any module with ``loss(batch, noise) -> [batch]``. Where it has a method
                ``touched(batch)``, that gives by parameter name 1 where the losses of a batch can
                depend on it and 0 where not (the words of other sentences). Where it has a method
                ``at_step(step)``, that is called first; see `StructuredModel.at_step`.
            batch: See `nestruct.select_rows`.
            seed: The run's seed.
            step: The training step; with the seed it determines every draw.

        Raises:
            NestructError: Every member's loss was not finite.
        """
        if not callable(getattr(model, "loss", None)):
            raise InputError(
                f"{type(self).__name__} needs a model with loss(batch, noise) -> [batch]; "
                f"{type(model).__name__} has none."
            )
        check_examples(type(self).__name__, batch)
        self._watch.raise_if_all_failed()
        at_step = getattr(model, "at_step", None)
        phase = at_step(step) if callable(at_step) else None
        modules = list(model.modules())
        layout = Layout(model, self.parameters)
        plan = self._decide(model, layout, batch, seed)
        before = solver_seconds()

        # torch's own layers change their statistics in place: a captured step can do it.
        in_place = all(isinstance(module, _NormBase) for module in modules if module._buffers)

        def one_step(moved: Any, number: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            found = self._step(model, layout, moved, seed, number, plan)
            if in_place:
                _update_buffers(model, moved, Noise(seed=seed, step=number))
            return found

        gradient, stats = run_step(
            self,
            one_step,
            batch,
            step,
            on_cuda=layout.device.type == "cuda",
            # All that a captured step takes for granted, and what it must keep alive.
            key=lambda: (id(model), phase, seed, *self._options(), *layout.addresses(modules)),
            keep=lambda: (model, self._memory),
            capturable=lambda: may_capture(model, self.graph),
            changed=lambda: list(model.buffers()),
        )
        for name, piece in gradient.items():
            layout.parameters[name].grad = like(layout.parameters[name], piece)
        self._watch.look(stats["usable"])
        self._adapt(stats)
        if not in_place:
            _update_buffers(model, batch, Noise(seed=seed, step=step))
        spent = solver_seconds() - before if layout.device.type == "cpu" else None
        return StepReport(
            loss=stats["mean"],
            loss_std=stats["std"],
            grad_norm=stats["norm"],
            num_evaluations=torch.tensor(self.population_size * self.num_samples),
            num_failed=stats["failed"],
            solver_seconds=None if spent is None else torch.tensor(spent),
        )

    def _options(self) -> tuple[Any, ...]:
        """What the arithmetic of a step depends on, besides the filter of parameters."""
        laws = (self.sigma, self.population_size, self.mirrored, self.directions, self.shaping)
        return (*laws, self.minibatch, self.pair_batch_size, self.gumbel, self.num_samples)

    def state_dict(self) -> dict[str, Any]:
        """How members are evaluated, so that a resumed run repeats the same arithmetic."""
        plan = self._plan
        return {} if plan is None else dataclasses.asdict(plan)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        self._plan = Plan(**state) if state else None

    def _step(
        self, model: nn.Module, layout: Layout, batch: Any, seed: int, step: Any, plan: Plan
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gradient by parameter name, and statistics of the members' losses."""
        noise = Noise(seed=seed, step=step)
        rows = self._pair_rows(batch, noise, layout.device)
        first, last = my_pairs(self.num_pairs)
        # Double, so that equal losses stay equal through their mean.
        losses = torch.zeros(self.population_size, dtype=torch.float64, device=layout.device)
        memory = self._room(layout, last - first if plan.keep else min(plan.chunk, last - first))
        start = first
        while start < last:
            stop = min(start + plan.chunk, last)
            flat = memory[start - first : stop - first] if plan.keep else memory[: stop - start]
            try:
                self._fill(flat, start, noise)
                self._evaluate(model, layout, flat, start, batch, noise, rows, plan, losses)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or plan.chunk == 1:
                    raise
                plan.chunk = max(1, plan.chunk // 2)
                log.info("NES: out of memory; chunks of %d pairs from now on.", plan.chunk)
                continue
            start = stop
        weights, stats = self._weigh(add_over_ranks(losses), layout.dtype)
        if plan.keep:
            sums = self._sums(weights[..., first:last], memory)
        else:
            sums = self._sums(weights[..., :0], memory[:0])  # zeros
            for start in range(first, last, plan.chunk):
                flat = memory[: min(plan.chunk, last - start)]
                self._fill(flat, start, noise)
                sums += self._sums(weights[..., start : start + len(flat)], flat)
        gradient = self._gradient(sums, weights, stats)
        if hasattr(model, "touched"):  # no noise where the gradient is known to be zero
            pieces = layout.split(gradient)
            for name, mask in model.touched(batch).items():  # type: ignore[operator]
                if name in pieces:
                    pieces[name].mul_(mask)
        stats["norm"] = torch.linalg.vector_norm(gradient)
        return layout.split(gradient), stats

    # What a search law with more to learn than its centre does otherwise: see `SNES`.

    def _decide(self, model: nn.Module, layout: Layout, batch: Any, seed: int) -> Plan:
        """How members are evaluated."""
        self._plan = decide(self, model, layout, batch, seed)
        return self._plan

    def _weigh(self, losses: Tensor, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        """Each pair's weight, and statistics of the losses."""
        return pair_weights(
            losses,
            mirrored=self.mirrored,
            shaping=self.shaping,
            own_examples=self.minibatch == "per_pair",
            dtype=dtype,
        )

    def _sums(self, weights: Tensor, flat: Float[Tensor, "pairs size"]) -> Tensor:
        """Weighted sum of some directions, which are not needed any more."""
        return weights @ flat

    def _gradient(self, sums: Tensor, weights: Tensor, stats: dict[str, Tensor]) -> Tensor:
        """The gradient, from this rank's sums."""
        # Directions carry one sigma; the estimator divides by it once more.
        return add_over_ranks(sums.div_(self.sigma**2))

    def _adapt(self, stats: dict[str, Tensor]) -> None:
        """Changes the search law after a step, outside of its captured graph."""

    def _room(self, layout: Layout, pairs: int) -> Float[Tensor, "pairs size"]:
        """Memory for directions, kept between steps: touching fresh pages takes time."""
        memory = self._memory
        if (
            memory is None
            or memory.shape != (pairs, layout.size)
            or memory.dtype != layout.dtype
            or memory.device != layout.device
        ):
            self._memory = None  # frees the old before the new is taken
            memory = torch.empty(pairs, layout.size, dtype=layout.dtype, device=layout.device)
            self._memory = memory
        return memory

    def _fill(self, flat: Tensor, first_pair: int, noise: Noise) -> None:
        fill_directions(
            flat,
            first_pair,
            seed=noise.seed,
            step=noise.step,
            sigma=self.sigma,
            kind=self.directions,
        )

    def _evaluate(
        self,
        model: nn.Module,
        layout: Layout,
        flat: Tensor,
        start: int,
        batch: Any,
        noise: Noise,
        rows: Tensor | None,
        plan: Plan,
        losses: Tensor,
    ) -> None:
        """Writes the losses of the pairs from ``start`` on into ``losses``."""
        population = Population(layout.centre(), layout.split(flat), self.mirrored)
        count, halves = len(flat), 2 if self.mirrored else 1
        member_noise = member_rows = None
        if self.gumbel != "shared" or rows is not None:
            pairs = torch.arange(start, start + count, device=layout.device).repeat(halves)
            if self.gumbel != "shared":
                own = torch.arange(count * halves, device=layout.device) // count * self.num_pairs
                member_noise = pairs + own if self.gumbel == "per_member" else pairs
            member_rows = None if rows is None else rows[pairs]
        values = evaluate(
            model,
            population,
            batch,
            noise,
            mode=plan.mode,
            num_samples=self.num_samples,
            member_noise=member_noise,
            rows=member_rows,
        )
        blocks = losses.view(halves, self.num_pairs)[:, start : start + count]
        blocks.copy_(values.double().mean(1).view(halves, count))

    def _pair_rows(
        self, batch: Any, noise: Noise, device: torch.device
    ) -> Int[Tensor, "pairs examples"] | None:
        """Each pair's own examples, without repetition, drawn from integers."""
        if self.minibatch == "shared":
            return None
        examples = batch_size(batch)
        count = self.pair_batch_size or max(1, examples // self.num_pairs)
        if count > examples:
            raise InputError(
                f"NES: pair_batch_size is {count} but the batch has {examples} examples."
            )
        keys = noise.replace(stream=_ROWS_STREAM).gumbel(
            torch.empty(self.num_pairs, examples, device=device)
        )
        return keys.topk(count, dim=1).indices


def _update_buffers(model: nn.Module, batch: Any, noise: Noise) -> None:
    """One forward at the centre, so that running statistics follow it."""
    if list(model.buffers()) and is_training(model):
        with torch.no_grad(), nan_rows(), fixed_dropout(model, noise):
            model.loss(batch, noise)  # type: ignore[operator]


def _check_options(nes: NES) -> None:
    owner = type(nes).__name__
    choices = {
        "shaping": ("standard_score", "centered_rank", "none"),
        "minibatch": ("shared", "per_pair"),
        "gumbel": ("shared", "per_pair", "per_member"),
        "directions": ("gaussian", "rademacher"),
        "mode": ("auto", "vmap", "loop"),
        "graph": ("auto", "on", "off"),
    }
    for name, allowed in choices.items():
        check_choice(f"{owner}: {name}", getattr(nes, name), allowed)
    check_positive(owner, "sigma", nes.sigma)
    counts = ("population_size", "num_samples", "pair_batch_size", "chunk_size", "memory_budget")
    for name in counts:
        value = getattr(nes, name)
        if value is not None:
            setattr(nes, name, check_count(owner, name, value, 1))
    if nes.mirrored and nes.population_size % 2:
        raise InputError(
            f"{owner}: a mirrored population comes in pairs; population_size {nes.population_size} "
            f"is odd, make it {nes.population_size + 1} or say mirrored=False."
        )
    if nes.mirrored and nes.chunk_size is not None and nes.chunk_size % 2:
        raise InputError(f"{owner}: chunk_size must be even (whole pairs), got {nes.chunk_size}.")
    if not nes.mirrored and "per_pair" in (nes.minibatch, nes.gumbel):
        raise InputError(f"{owner}: 'per_pair' needs pairs; say mirrored=True.")
    if nes.pair_batch_size is not None and nes.minibatch != "per_pair":
        raise InputError(f"{owner}: pair_batch_size needs minibatch='per_pair'.")
