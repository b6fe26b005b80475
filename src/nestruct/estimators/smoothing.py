"""How far the smoothed loss g is from the loss k itself: the paper's appendix, Figure "sigma".

    g(mu) = E[k(mu + sigma w)],  w ~ N(0, I),

estimated from perturbations, per example, with the Monte-Carlo error of the estimate beside it: a
mean of absolute differences cannot fall below that error, however close g and k are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nestruct.checks import check_count, check_positive
from nestruct.models.compiled import unwrap
from nestruct.noise import Noise
from nestruct.population import Layout, Population, evaluate_members, needs_loop
from nestruct.population.directions import fill_directions


@dataclass(frozen=True)
class SmoothingGap:
    """What `smoothing_gap` found.

    Args:
        gap: The mean over examples of ``|g - k|``.
        error: The mean over examples of the standard error of g.
    """

    gap: float
    error: float


def smoothing_gap(
    model: nn.Module,
    batch: Any,
    *,
    sigma: float,
    num_perturbations: int = 1000,
    chunk_size: int = 100,
    seed: int = 0,
) -> SmoothingGap:
    """Mean distance between the smoothed loss and the loss, with the same draws of the structure.

    Args:
        model: Any module with ``loss(batch, noise) -> [batch]``.
        batch: The examples.
        sigma: The smoothing.
        num_perturbations: Members, in mirrored pairs.
        chunk_size: Members at once.
        seed: For perturbations and structures.

    Example:
        >>> import torch, nestruct
        >>> class Bowl(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.mu = torch.nn.Parameter(torch.zeros(3))
        ...     def loss(self, batch, noise):
        ...         return (self.mu**2).sum() + 0 * batch
        >>> found = nestruct.smoothing_gap(Bowl(), torch.zeros(2), sigma=0.1)
        >>> abs(found.gap - 3 * 0.1**2) < 4 * found.error
        True
    """
    check_positive("smoothing_gap", "sigma", sigma)
    pairs = check_count("smoothing_gap", "num_perturbations", num_perturbations, 4) // 2
    step = max(1, check_count("smoothing_gap", "chunk_size", chunk_size, 2) // 2)
    model = unwrap(model)
    layout, noise = Layout(model, None), Noise(seed=seed)
    mode = "loop" if needs_loop(model) else "vmap"
    flat = torch.empty(min(step, pairs), layout.size, dtype=layout.dtype, device=layout.device)
    means = []
    for start in range(0, pairs, step):
        rows = flat[: min(step, pairs - start)]
        fill_directions(rows, start, seed=seed, step=0, sigma=sigma, kind="gaussian")
        population = Population(layout.centre(), layout.split(rows), True)
        losses = evaluate_members(model, population, batch, noise, mode=mode).double()
        means.append(losses.view(2, len(rows), -1).mean(0))
    with torch.no_grad():
        centre = model.loss(batch, noise).double()  # type: ignore[operator]
    pair_means = torch.cat(means)  # independent of each other
    error = pair_means.std(0) / len(pair_means) ** 0.5
    return SmoothingGap(float((pair_means.mean(0) - centre).abs().mean()), float(error.mean()))
