"""Neural variational inference and learning: REINFORCE with a learned baseline.

A. Mnih and K. Gregor, "Neural Variational Inference and Learning in Belief Networks", 2014; the
paper's Section 4.1. With a moving average c of the losses and their moving standard deviation, s =
max(1, deviation), the learning signal of a sample is

    (loss - c) / s - C(x),

where C is a network that sees the input and takes steps towards making this small. The solver is a
black box.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Terms
from nestruct.estimators.base import Stats, masked_mean
from nestruct.estimators.reinforce import Reinforce
from nestruct.models import StructuredModel, mlp
from nestruct.models.structured import observed
from nestruct.noise import Noise, Purpose, derive_seed, forked_generators


@dataclass(kw_only=True, eq=False)
class NVIL(Reinforce):
    """REINFORCE with a learned baseline; samples and their laws as in `Reinforce`.

    Unlike the authors we use averages of the steps before, without the present one, so that the
    estimate is unbiased whatever the network says. They are averages of the losses themselves, and
    the network's answer is in units of s: the authors' are averages of what the network leaves,
    with which such units run away, and without which the network has to grow to the size of the
    losses first. ``averages="residuals"`` is the authors' way: the signal is (loss - C(x) - c) / s,
    c and s follow what the network leaves, and the present step is among what they have seen. In
    both ways the whole gradient of the encoder is divided by s, its divergence included, which else
    would count s times as much as it should.

    Args:
        num_samples: Draws of the structure per example, decoded together.
        hidden_size: The width of the network's hidden layer.
        averages: Of what c and s are moving averages: ``losses``, or ``residuals``, as published.
        ema_decay: How much of the moving averages stays at each step.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), nestruct.KSubset(4, 2))
        >>> nvil, batch = nestruct.NVIL(hidden_size=8), torch.ones(3, 6)
        >>> nvil.prepare(vae, batch)  # `fit` does this, and adds the network to the optimizer
        >>> adam = torch.optim.Adam([*vae.parameters(), *nvil.parameters()])
        >>> report = nvil.backward(vae, batch, seed=0)
        >>> adam.step()
    """

    num_samples: int = 1
    hidden_size: int = 100
    averages: Literal["losses", "residuals"] = "losses"
    baseline: Literal["multi_sample", "batch", "ema"] = field(default="ema", init=False)
    _variance: Tensor = field(
        default_factory=lambda: torch.tensor(math.nan, dtype=torch.float64), init=False, repr=False
    )
    _network: nn.Sequential | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("NVIL", "hidden_size", self.hidden_size, 1)

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Makes the network, whose first parameters depend on the seed alone; once.

        Args:
            model: Where it is, the network will be.
            batch: The network's input is as large as what a model reconstructs of an example.
            seed: The run's seed.
        """
        super().prepare(model, batch, seed=seed)
        like, inputs = next(model.parameters()), observed(batch)[0].numel()
        if self._network is None:
            with forked_generators(like.device):
                torch.manual_seed(derive_seed(seed, Purpose.BASELINE))
                self._network = mlp(inputs, self.hidden_size, 1)
            nn.init.zeros_(self._network[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(self._network[-1].bias)  # type: ignore[arg-type]
        elif self._network[0].in_features != inputs:
            raise InputError(
                f"NVIL: the network was made for examples of {self._network[0].in_features} "
                f"numbers, and these have {inputs}; make another NVIL for them."
            )
        self._network.to(like)
        self._variance = self._variance.to(like.device)

    def parameters(self) -> list[nn.Parameter]:
        """The network's, once it is made."""
        return [] if self._network is None else list(self._network.parameters())

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """Losses, plus advantage times log-probability, plus the network's squared error."""
        scores = model.encode(batch)
        z, log_chance = self._draw(model, batch, scores, noise)
        losses, counts = self.hard_losses(model, batch, scores, z)
        cost = torch.where(counts, losses.detach(), 0.0)
        if self.averages == "losses":
            everyone, noted = self._of_everyone(cost, counts), {}
            deviation = self._deviation(*everyone)
            advantage = cost - self._baseline(cost, *everyone) - deviation * self._predict(batch)
            error = (advantage / deviation).square() / 2
        else:
            residual = torch.where(counts, cost - self._predict(batch), 0.0)
            noted = self._moments(*self._of_everyone(residual.detach(), counts))
            deviation = noted["variance"].sqrt().clamp(min=1).to(cost.dtype)
            advantage = residual - noted["mean"].to(cost.dtype)
            error = advantage.square() / (2 * deviation)
        if scores.requires_grad:
            scores.register_hook(lambda gradient: gradient / deviation)
        sampled = losses + advantage.detach() * log_chance + error
        return Terms(losses, counts, sampled=sampled, noted=noted)

    def state_dict(self) -> dict[str, Any]:
        """Both moving averages, and the network where there is one."""
        state = super().state_dict() | {"variance": self._variance.clone()}
        if self._network is not None:
            state["network"] = {k: v.clone() for k, v in self._network.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        super().load_state_dict(state)
        self._variance.copy_(state["variance"])
        if "network" in state:
            if self._network is None:
                first = state["network"]["0.weight"]
                if len(first) != self.hidden_size:  # an empty one may say any width
                    raise RuntimeError(
                        f"size mismatch: hidden_size is {len(first)} there, {self.hidden_size} here"
                    )
                with forked_generators():
                    self._network = mlp(first.shape[1], self.hidden_size, 1)
            self._network.load_state_dict(state["network"])

    def _predict(self, batch: Any) -> Float[Tensor, " batch"]:
        """C(x) of each example."""
        assert self._network is not None
        x = observed(batch)
        return self._network(x.reshape(len(x), -1).to(self.parameters()[0].dtype))[:, 0]

    def _deviation(self, cost: Tensor, counts: Tensor) -> Float[Tensor, ""]:
        """s: the moving standard deviation, at least 1; in the first step that of its costs."""
        own = masked_mean((cost - masked_mean(cost, counts)).square(), counts)
        variance = torch.where(self._variance.isnan(), own, self._variance)
        return variance.sqrt().clamp(min=1).to(cost.dtype)

    def _moments(self, residual: Tensor, counts: Tensor) -> Stats:
        """Moving mean and variance of what the network leaves, the present step included."""
        mean = masked_mean(residual, counts)
        variance = masked_mean((residual - mean).square(), counts)
        return {
            "mean": self._moved(self._mean, mean),
            "variance": self._moved(self._variance, variance),
        }

    def _captured(self) -> list[Any]:
        tensors = [self._variance, *self.parameters()]
        return [*super()._captured(), *(tensor.data_ptr() for tensor in tensors)]

    def _adapt(self, stats: Stats) -> None:
        if self.averages == "residuals":
            self._mean.copy_(stats["mean"])
            self._variance.copy_(stats["variance"])
        else:
            super()._adapt(stats)
            self._follow(self._variance, stats["std"].square())
