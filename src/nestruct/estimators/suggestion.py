"""A first sigma, number of samples and learning rate, from what one batch shows.

- **sigma** is where structures begin to change: the two members of a mirrored pair differ in a
  third as many parts as two structures of pure noise do. A smaller one sees the same structure
  everywhere, a larger one sees noise.
- **num_samples** is where drawing structures adds a tenth to the squared length of the encoder's
  gradient.
- **the learning rate**, for Adam, is the size of a weight times the cosine between one estimate and
  the gradient. Where estimates are mostly noise, Adam moves every weight at random, by the rate
  times the root of the number of steps, and 1 / cosine^2 steps must pass until their sum points
  along the gradient: by then a weight has moved by its own size. Adam itself averages ten steps,
  so a better cosine than a tenth allows no larger rate.

The cosine comes from independent estimates on the batch: the mean product of two over the mean
square of one. For P pairs that is 1 / (1 + d V / (P |G|^2)), V the mean square of a pair's slope.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nestruct.data import batch_size, select_rows
from nestruct.errors import InputError, NestructError
from nestruct.estimators.base import Estimator, options_of
from nestruct.estimators.nes import NES
from nestruct.estimators.pair_examples import are_wild, pair_examples, pair_slopes
from nestruct.estimators.score_nes import ScoreNES
from nestruct.estimators.snes import SNES
from nestruct.models import StructuredModel
from nestruct.models.compiled import unwrap
from nestruct.noise import Noise, derive_seed, forked_generators
from nestruct.population import Layout, Population, evaluate_members
from nestruct.population.evaluate import sample_members
from nestruct.structures import nan_rows

# What the rules hold on to. docs/suggest.md says which of them was chosen on which tasks.
_CHANGED = 1 / 3  # of the difference between two structures of pure noise
_NOISE = 0.1  # of the squared length of the encoder's gradient
_MEMORY = 0.1  # 1 - beta1 of Adam: it averages over the inverse of that many steps
_WILD = 100.0  # times the mean square of slopes at sigma / 4: no structure does that
_FACTOR = 3.0  # from the middle of the range of learning rates to its ends

_PAIRS, _EXAMPLES = 16, 64  # that structures are compared in
_LOWEST, _HIGHEST, _HALVINGS = 1e-6, 1e2, 9  # the search for sigma, in its logarithm
_FEW, _MANY = 8, 64  # estimates: doubled until their agreement is four times its standard error
_MAX_KEPT = 200_000_000  # numbers, of all estimates together
_MAX_SAMPLES = 64


@dataclass(frozen=True)
class Suggestion:
    """What `suggest` proposes, and what it has measured.

    Args:
        sigma: For NES and SNES in units of parameters, for ScoreNES of scores; None for estimators
            that have none.
        num_samples: Structures per example; None where that is no option of the estimator.
        lr: The middle of the learning rates to try, for Adam.
        text: All of it in words.
        differ: The share of parts in which two members, or two samples, differ with the suggested
            sigma; None where the model has no structure that can be seen.
        spread: The standard deviation of the losses: of members, or of samples and examples.
        cosine: Between one estimate and the gradient of the batch, with the suggested sigma.
        pair_batch_size: For NES: how many examples a mirrored pair should see where pairs have
            examples of their own; None for other estimators.
        is_wild: For NES: a few pairs outweigh all others, so ``shaping="clipped"`` serves better.
    """

    sigma: float | None
    num_samples: int | None
    lr: float
    text: str
    differ: float | None
    spread: float
    cosine: float
    pair_batch_size: int | None = None
    is_wild: bool = False

    @property
    def lr_range(self) -> tuple[float, float]:
        """The learning rates to try: a factor of three to both sides of ``lr``."""
        return _round(self.lr / _FACTOR), _round(self.lr * _FACTOR)


def suggest(model: nn.Module, estimator: Estimator, batch: Any, *, seed: int = 0) -> Suggestion:
    """Proposes a sigma, a number of samples and a learning rate for Adam: a place to begin.

    It takes about as long as 8 to 64 steps, and with a sigma the solver is called some 300 times
    more for each of 64 examples. Model, estimator and torch's generators stay as they were.

    Args:
        model: As it is before training.
        estimator: With the options you would begin with; its sigma may be any.
        batch: One minibatch, of the size that training will have.
        seed: For all draws.

    Raises:
        NestructError: Every estimate is zero, so there is nothing to measure.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> _ = torch.manual_seed(0)
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), nestruct.KSubset(4, 2))
        >>> x = torch.eye(6)
        >>> found = nestruct.suggest(vae, nestruct.NES(sigma=1.0, population_size=20), x)
        >>> 0.05 < found.sigma < 0.5, 0.003 < found.lr < 0.1
        (True, True)
    """
    model, examples = unwrap(model), batch_size(batch)
    if examples == 0:
        raise InputError("suggest: the batch has no examples; give it at least one.")
    layout = Layout(model, estimator.perturb)
    with _untouched(model, layout.device, seed):
        fresh = _afresh(estimator)
        fresh.prepare(model, batch, seed=seed)
        rows = torch.arange(min(_EXAMPLES, examples), device=layout.device)
        seen = _Structures(model, layout, select_rows(batch, rows), Noise(seed=seed), fresh)
        weight = float(torch.cat([p.abs().flatten() for p in layout.centre().values()]).mean())
        sigma, differ, own, wild = None, seen.of_samples, None, False
        if isinstance(estimator, NES):
            sigma = _tame(seen, seen.crossing(seen.of_members) or weight or 1.0)
            differ, weight = seen.of_members, max(weight, sigma)  # within sigma it is all one
        elif isinstance(estimator, ScoreNES):
            differ = seen.of_scores if estimator.gumbel == "per_pair" else seen.of_bare_scores
            sigma = seen.crossing(differ) or estimator.sigma
        if sigma is not None:
            sigma = _round(sigma)
            fresh = _afresh(estimator, sigma=sigma)
        if isinstance(fresh, NES) and fresh.mirrored and not isinstance(fresh, SNES):
            slopes = pair_slopes(fresh, model, layout, batch, seed)
            own, wild = pair_examples(slopes, examples), are_wild(slopes)
        # Where all weights are zero, their scale is that at which structures change.
        weight = weight or seen.crossing(seen.of_members) or 1.0
        signal = _Signal(fresh, model, layout, batch, seed)
        share = differ(sigma or 0.0) if seen.unrelated else None
    found = Suggestion(
        sigma=sigma,
        num_samples=_num_samples(fresh, signal),
        lr=_round(weight * min(signal.cosine, _MEMORY)),
        text="",
        differ=share,
        spread=signal.spread,
        cosine=signal.cosine,
        pair_batch_size=own,
        is_wild=wild,
    )
    return dataclasses.replace(found, text=_text(found, estimator, seen, signal, weight))


class _Structures:
    """How much structures differ, on some examples and with some directions, at any sigma."""

    def __init__(
        self, model: Any, layout: Layout, batch: Any, noise: Noise, estimator: Estimator
    ) -> None:
        # NES's own directions: layers may have sigmas of their own.
        self.nes = estimator if isinstance(estimator, NES) else NES(sigma=1.0, population_size=2)
        self.model, self.layout, self.batch, self.noise = model, layout, batch, noise
        self.streams = noise.replace(stream=torch.arange(_PAIRS, device=layout.device)[:, None])
        # In which share of their parts two structures of pure noise differ; 0 without structures.
        self.unrelated, self.changed = 0.0, False
        if isinstance(model, StructuredModel) and getattr(model, "structure", None) is not None:
            with torch.no_grad():
                self.scores, self.context = model.encode(batch), model.context(batch)
            flat = torch.where(self.scores.isfinite(), 0.0, self.scores)
            self.unrelated = _difference(self._solve(flat + self.streams.gumbel(flat)))

    def of_members(self, sigma: float) -> float:
        """Between the two members of a mirrored pair."""
        return _difference(
            sample_members(self.model, self.population(sigma), self.batch, self.noise)
        )

    def of_scores(self, sigma: float) -> float:
        """Between scores moved to both sides, with the same Gumbel noise."""
        return self._of_scores(self.scores + self.streams.gumbel(self.scores), sigma)

    def of_bare_scores(self, sigma: float) -> float:
        """The same without Gumbel noise."""
        return self._of_scores(self.scores, sigma)

    def of_samples(self, sigma: float) -> float:
        """Between two samples; there is no sigma in it."""
        return _difference(self._solve(self.scores + self.streams.gumbel(self.scores)))

    def crossing(self, differ: Callable[[float], float]) -> float | None:
        """The sigma at which structures differ as they should; None if there is none."""
        if not self.unrelated:
            return None
        low, high = math.log(_LOWEST), math.log(_HIGHEST)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            # Not a number where no member has an answer: sigma is far too large.
            if differ(math.exp(middle)) < _CHANGED * self.unrelated:
                low = middle
            else:
                high = middle
        self.changed = math.exp(high) < 0.9 * _HIGHEST
        return math.exp((low + high) / 2) if self.changed else None

    def population(self, sigma: float) -> Population:
        """A few mirrored pairs: the same directions, whatever sigma."""
        layout = self.layout
        law = dataclasses.replace(self.nes, sigma=sigma).law(layout)
        flat = torch.empty(_PAIRS, law.width, dtype=layout.dtype, device=layout.device)
        law.fill(flat, 0, self.noise.replace(step=0))
        return law.population(flat, True)

    def _of_scores(self, centre: Tensor, sigma: float) -> float:
        move = sigma * self.streams.normal(self.scores)
        return _difference(self._solve(torch.cat([centre + move, centre - move])))

    def _solve(self, scores: Tensor) -> Tensor:
        with torch.no_grad(), nan_rows():
            return self.model.structure.argmax(scores, **self.context)


class _Signal:
    """Independent estimates on the batch, and how well they agree: the cosine to their mean."""

    def __init__(
        self, estimator: Estimator, model: Any, layout: Layout, batch: Any, seed: int
    ) -> None:
        encoder = _encoder(model, layout, batch)
        most = max(2, min(_MANY, _MAX_KEPT // layout.size))
        estimates: list[list[Tensor]] = []
        spreads = []
        while len(estimates) < most:
            for step in range(len(estimates), min(most, max(_FEW, 2 * len(estimates)))):
                report = estimator.backward(model, batch, seed=seed, step=step)
                spreads.append(report.loss_std)
                estimates.append([p.grad for p in layout.parameters.values()])  # type: ignore
                for p in layout.parameters.values():
                    p.grad = None
            products = _products(estimates, [True] * len(encoder))
            square, error = _agreement(products)
            if square > 4 * error:
                break
        self.spread, self.loss = float(torch.stack(spreads).mean()), float(report.loss)
        self.is_seen = square > 2 * error
        self.cosine = math.sqrt(min(1.0, max(square, error)))
        square, error = _agreement(_products(estimates, encoder))
        self.encoder_square = min(1.0, max(square, error))


def _products(estimates: list[list[Tensor]], which: list[bool]) -> Tensor:
    """All estimates' products with each other, over some of the parameters."""
    total: Any = 0.0
    for place in [place for place, wanted in enumerate(which) if wanted]:
        rows = torch.stack([estimate[place].flatten() for estimate in estimates])
        total = total + (rows @ rows.T).double()
    return total


def _agreement(products: Tensor) -> tuple[float, float]:
    """The squared cosine of one estimate to the mean of all there are, and its standard error."""
    size = products.diagonal().mean()
    if not size > 0:
        raise NestructError(
            "suggest: every estimate is zero on this batch, so there is nothing to measure. Is the "
            "loss the same whatever the parameters are?"
        )
    pairs = products[torch.triu(torch.ones_like(products), 1) == 1] / size
    return float(pairs.mean()), float(pairs.std() / math.sqrt(len(pairs)))


def _encoder(model: Any, layout: Layout, batch: Any) -> list[bool]:
    """Which parameters the scores depend on; all where that is none, or cannot be seen."""
    parameters = list(layout.parameters.values())
    if isinstance(model, StructuredModel) and getattr(model, "structure", None) is not None:
        with torch.enable_grad():
            scores = model.encode(batch)
            if scores.requires_grad:
                slopes = torch.autograd.grad(scores.sum(), parameters, allow_unused=True)
                if any(slope is not None for slope in slopes):
                    return [slope is not None for slope in slopes]
    return [True] * len(parameters)


def _difference(z: Tensor) -> float:
    """The share of parts in which the first half of structures differs from the second."""
    one, other = z.flatten(2).chunk(2)
    known = ~(one + other).isnan().any(-1, keepdim=True)
    apart = torch.where(known, one - other, 0.0).abs().sum()
    return float(apart / torch.where(known, one.abs() + other.abs(), 0.0).sum())


def _tame(seen: _Structures, sigma: float) -> float:
    """Halves sigma while the loss is far steeper at it than near the centre: it explodes there."""

    def slope(sigma: float) -> float:
        population = seen.population(sigma)
        losses = evaluate_members(seen.model, population, seen.batch, seen.noise, mode="loop")
        one, other = losses.double().mean(1).chunk(2)
        return float(((one - other) / sigma).square().mean())

    while sigma > _LOWEST:
        steepness = slope(sigma)
        if math.isfinite(steepness) and steepness <= _WILD * slope(sigma / 4):
            break
        sigma /= 2
    return sigma


def _num_samples(estimator: Estimator, signal: _Signal) -> int | None:
    """Structures per example, a power of two."""
    names = [option.name for option in options_of(estimator)]
    if isinstance(estimator, NES):
        return 1  # more members serve better than more samples of each
    if "num_samples" not in names and not isinstance(estimator, ScoreNES):
        return None
    noise = estimator.num_samples * (1 / signal.encoder_square - 1)  # of one sample
    power = math.ceil(math.log2(max(2.0, min(noise / _NOISE, _MAX_SAMPLES))))
    return 2**power


def _text(
    found: Suggestion, estimator: Any, seen: _Structures, signal: _Signal, weight: float
) -> str:
    """One line for each option, then what else was measured."""
    name, low, high = type(estimator).__name__, *found.lr_range
    lines, steps = [], math.ceil(1 / found.cosine**2)
    apart = ""
    if found.differ is not None:
        who = "two members of a pair" if found.sigma is not None else "two samples of an example"
        apart = (
            f"The {who} differ in {found.differ:.0%} of the parts of their structures; structures "
            f"of pure noise differ in {seen.unrelated:.0%}."
        )
    if found.sigma is not None:
        of = "scores" if isinstance(estimator, ScoreNES) else "parameters"
        lines.append(f"sigma {found.sigma:g}, in units of {of} (now {estimator.sigma:g}). {apart}")
        if not seen.changed:
            lines.append("No sigma changes structures as it should: this is the size of a weight.")
    if found.num_samples is not None:
        option = f"num_samples {found.num_samples}"
        if isinstance(estimator, ScoreNES):
            option = f"num_pairs {found.num_samples // 2}, which is {found.num_samples} samples"
        lines.append(f"{option} (now {estimator.num_samples}).")
    lines.append(
        f"Learning rate {found.lr:g} for Adam; try {low:g} to {high:g}. One estimate of {name} has "
        f"a cosine of {'' if signal.is_seen else 'at most '}{found.cosine:.2g} to the gradient of "
        f"this batch, and a weight has a size of {weight:.2g}. "
        + ("" if steps <= 1 / _MEMORY else f"In {_round(steps):,.0f} steps signal outweighs noise.")
    )
    if found.sigma is None and apart:
        lines.append(apart)
    if found.pair_batch_size is not None:
        own = f"For minibatch='per_pair': pair_batch_size {found.pair_batch_size}; with so many "
        lines.append(own + "examples a pair's slope owes as much to them as to its direction.")
    if found.is_wild and getattr(estimator, "shaping", "none") != "clipped":
        lines.append("A few pairs' differences outweigh all others: take shaping='clipped'.")
    lines.append(f"Losses: {signal.loss:.4g} on average, with a spread of {found.spread:.3g}.")
    return "\n".join(map(str.rstrip, lines))


def _round(value: float) -> float:
    """Two digits: more would pretend to know."""
    return float(f"{value:.1e}")


def _afresh(estimator: Any, **changes: Any) -> Any:
    """The same options without what an estimator has learnt; no captured steps."""
    names = [option.name for option in options_of(estimator)]
    if not names:
        raise InputError(
            f"suggest: {type(estimator).__name__} is no dataclass of its options, so it cannot be "
            "tried without changing it; make it one."
        )
    return dataclasses.replace(estimator, **changes | {n: "off" for n in names if n == "graph"})


@contextmanager
def _untouched(model: nn.Module, device: torch.device, seed: int) -> Iterator[None]:
    """A context after which a model and torch's generators are as they were."""
    modules = [(module, dict(vars(module))) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    gradients = [(p, p.grad) for p in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with forked_generators(device):
            torch.manual_seed(derive_seed(seed))
            yield
    finally:
        for module, attributes in modules:  # what at_step has changed
            vars(module).clear()
            vars(module).update(attributes)
        for buffer, value in buffers:
            buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
