"""Natural evolution strategies in parameter space: Algorithm 1 and Eq. 8 of the paper.

    gradient of E[loss(mu + sigma w)],  w ~ N(0, I)   =   E[w loss(mu + sigma w)] / sigma,

estimated by a population of N members in mirrored pairs mu +- sigma w, losses turned into standard
scores. Gradient-free: forward passes only, the solver and the networks are black boxes.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.checks import check_count, check_options, check_positive, renamed
from nestruct.data import batch_size, select_rows
from nestruct.errors import InputError, is_out_of_memory
from nestruct.estimators.base import Estimator, Stats
from nestruct.estimators.shaping import pair_weights
from nestruct.models.hooks import HasLoss, HasPopulationLosses, HasTouched
from nestruct.noise import Noise
from nestruct.population import Layout, evaluate_members
from nestruct.population.evaluate import changes_buffers_in_place, update_buffers
from nestruct.population.laws import FullDirections, RankOneDirections
from nestruct.population.layout import Filter
from nestruct.population.plan import EvaluationPlan, choose_mode, fit_memory
from nestruct.population.rows import pair_rows
from nestruct.processes import add_over_ranks, first_rank_decides, my_part, world_size
from nestruct.structures.solvers import solver_counts

log = logging.getLogger("nestruct")

Gumbel = Literal["shared", "per_pair", "per_member"]
Directions = FullDirections | RankOneDirections


@renamed(parameters="perturb")
@dataclass(kw_only=True, eq=False)
class NES(Estimator):
    """Natural evolution strategies; the defaults are the paper's.

    Args:
        sigma: The standard deviation of the perturbation.
        population_size: N, the number of members; even when mirrored.
        mirrored: Whether members come in pairs ``mu +- sigma w``.
        shaping: ``standard_score`` (the paper), ``centered_rank``, ``clipped`` (pair differences,
            cut off at three deviations: for losses with wild values), or ``none`` for raw losses.
        minibatch: ``shared``: every member sees the whole batch; ``per_pair``: each mirrored pair
            draws its own examples from it, and shaping acts on pair differences.
        pair_batch_size: Examples per pair with ``per_pair``; an equal share, at least one, when
            None.
        gumbel: Who draws the structure's noise: ``shared`` (one draw a step for all members, as in
            the public code), ``per_pair``, or ``per_member`` (Algorithm 1 as written).
        num_samples: Draws of the structure per example and member (the inner expectation).
        directions: ``gaussian`` or ``rademacher``, a number for each parameter; or ``rank1``: a
            matrix's direction is an outer product of two vectors, so that populations of a million
            members share one product per layer. See the page "NES with a million members".
        factors: How the numbers of ``rank1`` are drawn: ``rademacher``, or ``gaussian``, which
            smooths losses with steps.
        sigma_rule: ``constant``, or ``fan_in``: each weight's sigma is divided by the root of how
            many inputs an output adds up, so every layer's outputs move by about sigma.
        perturb: Which parameters are perturbed: names, a module, or a predicate of (name,
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

    kind: ClassVar[str] = "gradient-free"
    all_failed: ClassVar[str] = (
        "every pair has a member whose loss is not finite. Is the loss finite at the centre? If "
        "so, sigma may be too large; if not, look for NaN in the data, the scores and the decoder."
    )

    sigma: float
    population_size: int
    mirrored: bool = True
    shaping: Literal["standard_score", "centered_rank", "clipped", "none"] = "standard_score"
    minibatch: Literal["shared", "per_pair"] = "shared"
    pair_batch_size: int | None = None
    gumbel: Gumbel = "shared"
    num_samples: int = 1
    directions: Literal["gaussian", "rademacher", "rank1"] = "gaussian"
    factors: Literal["rademacher", "gaussian"] = "rademacher"
    sigma_rule: Literal["constant", "fan_in"] = "constant"
    perturb: Filter = None
    mode: Literal["auto", "vmap", "loop"] = "auto"
    chunk_size: int | None = None
    memory_budget: int | None = None
    graph: Literal["auto", "on", "off"] = "auto"
    _plan: EvaluationPlan | None = field(default=None, init=False, repr=False)
    _memory: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        chosen = self.perturb
        if not isinstance(chosen, nn.Module | Iterable | Callable | None):
            raise InputError(
                f"{type(self).__name__}: perturb must be names of parameters, a module, or a "
                f"function of (name, parameter); got {chosen!r}."
            )
        if not (chosen is None or isinstance(chosen, nn.Module) or callable(chosen)):
            self.perturb = [chosen] if isinstance(chosen, str) else list(chosen)
        check_options(self)
        _check_numbers(self)

    @property
    def num_pairs(self) -> int:
        """Directions drawn per step."""
        return self.population_size // 2 if self.mirrored else self.population_size

    @property
    def is_scaled(self) -> bool:  # type: ignore[override]
        """True if losses are raw (``shaping="none"``)."""
        return self.shaping == "none"

    @property
    def smoothing(self) -> float:
        """Sigma."""
        return self.sigma

    def sigma_ratios(self, layout: Layout) -> list[float]:
        """Each parameter tensor's sigma over `smoothing`."""
        if self.sigma_rule == "constant":
            return [1.0] * len(layout.parameters)
        return [fan_in**-0.5 for fan_in in layout.fan_ins]

    def other_laws(self) -> dict[str, Estimator]:
        """NES with each law of the Gumbel noise, its own included."""
        laws = get_args(Gumbel) if self.mirrored else ()
        return {law: dataclasses.replace(self, gumbel=law) for law in laws}

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses a model without ``loss``, the only method that NES needs."""
        if not isinstance(model, HasLoss):
            raise InputError(
                f"{type(self).__name__} needs a model with loss(batch, noise) -> [batch]; "
                f"{type(model).__name__} has none."
            )

    def state_dict(self) -> dict[str, Any]:
        """How members are evaluated, so that a resumed run repeats the same arithmetic."""
        return {} if self._plan is None else dataclasses.asdict(self._plan)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        self._plan = EvaluationPlan(**state) if state else None

    def estimate(
        self, model: nn.Module, layout: Layout, batch: Any, noise: Noise
    ) -> tuple[list[Tensor], Stats]:
        """The weighted sum of all directions, and statistics of the members' losses."""
        plan, law = self._plan, self.law(layout)
        assert plan is not None
        before = solver_counts()
        first, last = my_part(self.num_pairs)
        # Double, so that equal losses stay equal through their mean. The last two are no losses but
        # how many instances this rank solved and looked up: one sum over ranks serves all.
        losses = torch.zeros(self.population_size + 2, dtype=torch.float64, device=layout.device)
        blocks = losses[:-2].view(-1, self.num_pairs)
        # Of rank one the directions of all ranks are drawn again by each: losses alone are sent.
        shares_sums = isinstance(law, FullDirections) or world_size() == 1
        keep = plan.keep and shares_sums
        memory = self._room(layout, last - first if keep else min(plan.chunk, self.num_pairs))
        start = first
        while start < last:
            stop = min(start + plan.chunk, last)
            flat = memory[start - first : stop - first] if keep else memory[: stop - start]
            try:
                law.fill(flat, start, noise)
                values = self._evaluate(model, layout, flat, start, batch, noise, plan.mode)
                blocks[:, start:stop] = values
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or plan.chunk == 1:
                    raise
                plan.chunk = max(1, plan.chunk // 2)
                log.info("NES: out of memory; chunks of %d pairs from now on.", plan.chunk)
                continue
            start = stop
        for place, count in zip((-2, -1), solver_counts(before), strict=True):
            losses[place].fill_(count)
        add_over_ranks(losses)
        weights, stats = self._weigh(losses[:-2], layout.dtype)
        if keep:
            sums = self._sums(law, weights[..., first:last], memory)
        else:
            first, last = (first, last) if shares_sums else (0, self.num_pairs)
            sums = self._sums(law, weights[..., :0], memory[:0])  # zeros
            for start in range(first, last, plan.chunk):
                flat = memory[: min(plan.chunk, last - start)]
                law.fill(flat, start, noise)
                sums += self._sums(law, weights[..., start : start + len(flat)], flat)
        if shares_sums:
            sums = add_over_ranks(sums)
        gradient = self._gradient(law, sums, weights, stats)
        pieces = layout.split(gradient)
        if isinstance(model, HasTouched):  # no noise where the gradient is known to be zero
            for name, mask in model.touched(batch).items():
                if name in pieces:
                    pieces[name].mul_(mask)
        solved, looked_up = losses[-2:].long()
        stats["norm"] = torch.linalg.vector_norm(gradient)
        stats |= {"solved": solved, "looked_up": looked_up}
        if changes_buffers_in_place(model):
            update_buffers(model, batch, noise)
        return list(pieces.values()), stats

    # What a search law with more to learn than its centre does otherwise: see `SNES`.

    def _weigh(self, losses: Tensor, dtype: torch.dtype) -> tuple[Tensor, Stats]:
        """Each pair's weight, and statistics of the losses."""
        return pair_weights(
            losses,
            mirrored=self.mirrored,
            shaping=self.shaping,
            own_examples=self.minibatch == "per_pair",
            dtype=dtype,
        )

    def law(self, layout: Layout) -> Directions:
        """What a row of random numbers stands for."""
        ratios = self.sigma_ratios(layout)
        if self.directions == "rank1":
            return RankOneDirections(layout, self.factors, [self.sigma * each for each in ratios])
        scale = None if self.sigma_rule == "constant" else layout.spread(ratios)
        return FullDirections(layout, self.directions, self.sigma, scale)

    def _sums(self, law: Directions, weights: Tensor, flat: Tensor) -> Tensor:
        """The weighted sum of some directions; it may overwrite them."""
        return law.sums(weights, flat)

    def _gradient(self, law: Directions, sums: Tensor, weights: Tensor, stats: Stats) -> Tensor:
        """The gradient, from all sums."""
        return law.finish(sums)

    # What the template asks for.

    @property
    def num_members(self) -> int:  # type: ignore[override]
        """N."""
        return self.population_size

    def _num_decoded(self, examples: int) -> int:
        each = examples if self.minibatch == "shared" else self._num_rows(examples)
        return self.population_size * self.num_samples * each

    def _plan_step(self, model: nn.Module, layout: Layout, batch: Any, seed: int) -> None:
        """Chooses chunk and mode, once; says in one line what it chose."""
        if self._plan is not None and self._plan.size == layout.size:  # for a model like this one
            return
        noise, law = Noise(seed=seed), self.law(layout)
        rows = self._rows(batch, noise, 0, 1, layout.device)
        factored = isinstance(law, RankOneDirections)
        plan = fit_memory(
            model,
            layout,
            batch if rows is None else select_rows(batch, rows[0]),
            noise,
            width=law.width,
            factored=factored and not (rows is None and isinstance(model, HasPopulationLosses)),
            is_shared=rows is None,
            num_pairs=self.num_pairs,
            mirrored=self.mirrored,
            chunk_size=self.chunk_size,
            memory_budget=self.memory_budget,
        )
        plan.mode = self.mode
        if self.mode == "auto":
            pairs = min(4, plan.chunk)
            flat = torch.empty(pairs, law.width, dtype=layout.dtype, device=layout.device)
            law.fill(flat, 0, noise)

            def trial(mode: str) -> None:
                self._evaluate(model, layout, flat, 0, batch, noise, mode)

            plan.mode, reason = choose_mode(model, layout.device, pairs, trial, factored)
            log.info("NES: %s (%s), %d pairs at a time.", plan.mode, reason, plan.chunk)
        # Only rank 0's plan is saved, and a resumed run has it everywhere.
        loop = first_rank_decides(float(plan.mode == "loop"), layout.device)
        plan.mode = "loop" if loop else "vmap"
        plan.chunk = int(first_rank_decides(float(plan.chunk), layout.device))
        plan.keep = bool(first_rank_decides(float(plan.keep), layout.device))
        self._plan = plan

    def _finish(self, model: nn.Module, batch: Any, noise: Noise) -> None:
        if not changes_buffers_in_place(model):
            update_buffers(model, batch, noise)

    def _captured(self) -> list[Any]:
        """The options that the arithmetic depends on; which parameters, the layout's addresses."""
        laws = (self.sigma, self.population_size, self.mirrored, self.directions, self.shaping)
        return [
            *laws,
            self.factors,
            self.sigma_rule,
            self.minibatch,
            self.pair_batch_size,
            self.gumbel,
            self.num_samples,
        ]

    def _kept(self) -> Any:
        return self._memory

    def _room(self, layout: Layout, pairs: int) -> Float[Tensor, "pairs width"]:
        """Memory for directions, kept between steps: touching fresh pages takes time."""
        memory, shape = self._memory, (pairs, self.law(layout).width)
        same = memory is not None and memory.shape == shape and memory.dtype == layout.dtype
        if memory is None or not same or memory.device != layout.device:
            self._memory = None  # frees the old before the new is taken
            memory = torch.empty(shape, dtype=layout.dtype, device=layout.device)
            self._memory = memory
        return memory

    def _evaluate(
        self,
        model: nn.Module,
        layout: Layout,
        flat: Tensor,
        start: int,
        batch: Any,
        noise: Noise,
        mode: str,
    ) -> Float[Tensor, "halves pairs"]:
        """The losses of the pairs from ``start`` on, whose directions are ``flat``."""
        population = self.law(layout).population(flat, self.mirrored)
        count, halves = len(flat), 2 if self.mirrored else 1
        rows = self._rows(batch, noise, start, start + count, layout.device)
        member_noise = None
        if self.gumbel != "shared":
            member_noise = torch.arange(start, start + count, device=layout.device).repeat(halves)
            if self.gumbel == "per_member":
                half = torch.arange(count * halves, device=layout.device) // count
                member_noise = member_noise + half * self.num_pairs
        values = evaluate_members(
            model,
            population,
            batch,
            noise,
            mode=mode,
            num_samples=self.num_samples,
            member_noise=member_noise,
            rows=None if rows is None else rows.repeat(halves, 1),
        )
        return values.double().mean(1).view(halves, count)

    def _num_rows(self, examples: int) -> int:
        """How many examples a pair has of its own."""
        return self.pair_batch_size or max(1, examples // self.num_pairs)

    def _rows(
        self, batch: Any, noise: Noise, start: int, stop: int, device: torch.device
    ) -> Tensor | None:
        """The own examples of some pairs; None where all members see the whole batch."""
        if self.minibatch == "shared":
            return None
        examples = batch_size(batch)
        count = self._num_rows(examples)
        return pair_rows(noise, start, stop, count=count, examples=examples, device=device)


def _check_numbers(nes: NES) -> None:
    owner = type(nes).__name__
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
