"""Stochastic softmax tricks: differentiate through a relaxation of the structure.

M. Paulus et al., "Gradient Estimation with Stochastic Softmax Tricks", 2020 (the paper's Section
4.1): decode ``relax(scores + Gumbel, temperature)`` instead of the argmax. With `Categorical` it is
the Gumbel-softmax (E. Jang et al., 2017). Needs a relaxation; biased, less so at low temperatures.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from nestruct.checks import check_count, check_positive
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import Relaxable


@dataclass(kw_only=True, eq=False)
class SST(Backpropagation):
    """Gradient of the loss at relaxed structures.

    Args:
        temperature: Of the relaxation, at the start.
        anneal_rate: r of Jang et al.: the temperature is ``max(min_temperature, temperature *
            exp(-r step))``; 0 keeps it.
        min_temperature: Where annealing ends.
        anneal_interval: Steps between changes of the temperature.
        num_samples: Draws of the structure per example.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), nestruct.Categorical(4))
        >>> report = nestruct.SST(temperature=0.5).backward(vae, torch.ones(3, 6), seed=0)
        >>> bool(report.grad_norm > 0)
        True
    """

    kind: ClassVar[str] = "needs a relaxation"
    biased_by_design: ClassVar[bool] = True
    relaxes: ClassVar[bool] = True

    temperature: float = 1.0
    anneal_rate: float = 0.0
    min_temperature: float = 0.5
    anneal_interval: int = 1000
    num_samples: int = 1
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperature", "min_temperature"):
            check_positive("SST", name, getattr(self, name))
        if not 0 <= self.anneal_rate < float("inf"):
            raise InputError(f"SST: anneal_rate must not be negative, got {self.anneal_rate!r}.")
        check_count("SST", "anneal_interval", self.anneal_interval, 1)
        check_count("SST", "num_samples", self.num_samples, 1)

    def temperature_at(self, step: int | Tensor) -> float | Tensor:
        """The temperature of a step; a tensor where the step is one."""
        if self.anneal_rate == 0:
            return self.temperature
        last_change = torch.as_tensor(step) // self.anneal_interval * self.anneal_interval
        annealed = self.temperature * torch.exp(-self.anneal_rate * last_change)
        annealed = annealed.clamp(min=self.min_temperature)
        return annealed if isinstance(step, Tensor) else float(annealed)

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained."""
        super().prepare(model, batch, seed=seed)
        if not isinstance(model.structure, Relaxable):
            raise InputError(f"SST: {model.structure!r} has no relaxation; use NES.")

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The losses at relaxed structures."""
        structure: Any = model.structure
        temperature = self.temperature_at(noise.step)
        relax = partial(structure.relax, temperature=temperature)
        return self.relaxed_terms(model, batch, noise, relax)
