"""REINFORCE: Eq. 1 and Eq. 3 of the paper, with the three baselines of its Section 4.1.

W. Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019, for the multi-sample one.
The solver is a black box: only log-probabilities of the encoder and the decoder at hard samples are
differentiated, and the divergence.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.estimators.base import Stats
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import Gibbs, Samplable, SpanningTree, swap_edges


@dataclass(kw_only=True, eq=False)
class Reinforce(Backpropagation):
    """The score-function estimator.

    A baseline is subtracted from each sample's loss; none depends on that sample, so the estimate
    is unbiased with all of them.

    Args:
        num_samples: Draws of the structure per example, decoded together.
        baseline: ``multi_sample``: the mean loss of the example's other samples, of which there
            must be some; ``batch``: the mean loss of the other examples of the minibatch; ``ema``:
            an exponential moving average of the mean loss of the steps before.
        ema_decay: How much of that average stays at each step.
        law: ``gumbel``: perturb-and-MAP samples and the score of the perturbed scores (Eq. 3), for
            any structure; ``gibbs``: samples of ``exp(z . scores - A)`` and their own score (Eq.
            1), where the structure has exact samples. Less variance: it sums over all noises that
            give the same structure. For Categorical both sample the same law.
        sampler: How the Gibbs law is sampled: ``exact``, or, for SpanningTree, ``mcmc``: a Markov
            chain that swaps edges, started at perturb-and-MAP samples; near enough to the law with
            steps enough.
        num_mcmc_steps: Steps of that chain: some n log n; for 10 nodes, after 30 its marginals
            cannot be told from the exact ones by 20,000 draws.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), nestruct.KSubset(4, 2))
        >>> estimator = nestruct.Reinforce(num_samples=1, baseline="ema", law="gibbs")
        >>> report = estimator.backward(vae, torch.ones(3, 6), seed=0)
        >>> bool(report.grad_norm > 0)
        True
    """

    kind: ClassVar[str] = "black-box solver"

    num_samples: int = 4
    baseline: Literal["multi_sample", "batch", "ema"] = "multi_sample"
    ema_decay: float = 0.99
    law: Literal["gumbel", "gibbs"] = "gumbel"
    sampler: Literal["exact", "mcmc"] = "exact"
    num_mcmc_steps: int = 100
    graph: Literal["auto", "on", "off"] = "auto"
    # The moving average; NaN before the first step. Changed in place: a captured step reads it.
    _mean: Tensor = field(
        default_factory=lambda: torch.tensor(math.nan, dtype=torch.float64), init=False, repr=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        needed = 2 if self.baseline == "multi_sample" else 1
        check_count(owner, "num_samples", self.num_samples, needed)
        check_count(owner, "num_mcmc_steps", self.num_mcmc_steps, 0)
        if not 0 <= self.ema_decay < 1:
            raise InputError(f"{owner}: ema_decay must be in [0, 1), got {self.ema_decay!r}.")
        if self.sampler == "mcmc" and self.law != "gibbs":
            raise InputError(f"{owner}: sampler 'mcmc' draws from a Gibbs law; say law='gibbs'.")

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """Losses at hard samples, plus their advantage times the samples' log-probability."""
        scores = model.encode(batch)
        z, log_chance = self._draw(model, batch, scores, noise)
        losses, counts = self.hard_losses(model, batch, scores, z)
        cost = torch.where(counts, losses.detach(), 0.0)
        advantage = cost - self._baseline(cost, *self._of_everyone(cost, counts))
        return Terms(losses, counts, sampled=losses + advantage * log_chance)

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained, and puts the average where the model is."""
        super().prepare(model, batch, seed=seed)
        owner, structure = type(self).__name__, model.structure
        is_gibbs = isinstance(structure, Gibbs) and isinstance(structure, Samplable)
        if self.law == "gibbs" and not is_gibbs:
            raise InputError(
                f"{owner}: {structure!r} has no exact samples of its Gibbs law; say law='gumbel'."
            )
        if self.sampler == "mcmc" and not isinstance(structure, SpanningTree):
            raise InputError(
                f"{owner}: sampler 'mcmc' swaps edges of SpanningTree; for {structure!r} say "
                "sampler='exact'."
            )
        self._mean = self._mean.to(next(model.parameters()).device)

    def state_dict(self) -> dict[str, Any]:
        """The moving average, where it is the baseline."""
        return {"mean": self._mean.clone()} if self.baseline == "ema" else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        if self.baseline == "ema":
            self._mean.copy_(state["mean"])

    def _draw(
        self, model: StructuredModel, batch: Any, scores: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Samples ``[samples, batch, *parts]``, and terms with the derivative of their log-law."""
        structure: Any = model.structure
        context = model.context(batch)
        streams = torch.arange(self.num_samples, device=scores.device)[:, None]
        noise = noise.replace(stream=streams)
        gumbel = noise.gumbel(scores)
        if self.law == "gibbs" and self.sampler == "exact":
            z = structure.sample(scores.detach(), noise, **context)
        else:
            z = structure.argmax(scores.detach() + gumbel, **context)
        if self.sampler == "mcmc":
            start = scores.detach().expand_as(z)
            z = swap_edges(structure, z, start, num_steps=self.num_mcmc_steps, draws=noise)
        if self.law == "gibbs":
            total = torch.where(z == 1, scores, 0.0).flatten(2).sum(-1)
            log_partition = structure.log_partition(scores, **context)
            return z, total - log_partition.reshape(len(scores), -1).sum(-1)
        # The derivative of the log-density of Gumbel(scores), at perturbed scores held fixed.
        score = 1 - torch.exp(-gumbel)
        counting = structure.counting(scores, **context)
        if counting is not None:  # what cannot be chosen would add noise and nothing else
            score = torch.where(counting, score, 0.0)
        return z, (score * scores).flatten(2).sum(-1)

    def _of_everyone(self, cost: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The costs that a baseline sees, those of the whole batch, and which examples count."""
        if self.baseline == "multi_sample":
            return cost, counts
        both = self.of_whole_batch(torch.cat([cost, counts[None]]))
        return both[:-1], both[-1] > 0

    def _baseline(self, cost: Tensor, costs: Tensor, counts: Tensor) -> Tensor:
        """What is subtracted from each cost ``[samples, batch]``; independent of its own draw.

        Args:
            cost: Of the examples at hand; 0 where an example does not count.
            costs: Of the whole batch.
            counts: Which examples of the whole batch count.
        """
        samples = len(cost)
        if self.baseline == "multi_sample":
            return (cost.sum(0) - cost) / (samples - 1)
        if self.baseline == "batch":
            if len(counts) == 1:
                raise InputError(
                    f"{type(self).__name__}: baseline 'batch' compares examples, and this batch "
                    "has one; use 'ema' or 'multi_sample'."
                )
            return (costs.mean(0).sum() - cost.mean(0)) / (counts.sum() - 1).clamp(min=1)
        # Before there is an average: all other draws of the step.
        others = (costs.sum() - cost) / (samples * counts.sum() - 1).clamp(min=1)
        return torch.where(self._mean.isnan(), others, self._mean.to(cost.dtype))

    def _captured(self) -> list[Any]:
        return [*super()._captured(), self._mean.data_ptr()]

    def _adapt(self, stats: Stats) -> None:
        if self.baseline == "ema":
            self._follow(self._mean, stats["loss"])

    def _follow(self, average: Tensor, value: Tensor) -> None:
        """Moves an exponential average on, in place."""
        average.copy_(self._moved(average, value))

    def _moved(self, average: Tensor, value: Tensor) -> Tensor:
        """An exponential average after one more value; the first seen is its first."""
        moved = self.ema_decay * average + (1 - self.ema_decay) * value
        moved = torch.where(average.isnan(), value, moved)
        return torch.where(value.isfinite(), moved, average)
