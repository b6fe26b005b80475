"""How good a model is on held-out examples: means of its metrics, with draws fixed once for all."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nestruct.data import batch_size, device_of, select_rows
from nestruct.errors import InputError
from nestruct.noise import Noise
from nestruct.structures import nan_rows

Metrics = Callable[[nn.Module, Any, Noise], dict[str, Tensor]]


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    seed: int = 0,
    batch_size: int = 1000,
    metrics: Metrics | None = None,
) -> dict[str, float]:
    """Means over examples of ``model.metrics(batch, noise)``, or of its loss where it has none.

    The same seed gives the same draws at every call and for every batch size, so two evaluations
    differ by what the model learnt in between and by nothing else.

    Args:
        model: Any module with ``loss(batch, noise)``.
        data: All examples, as one batch.
        seed: Decides the draws.
        batch_size: Examples at once.
        metrics: A function of (model, batch, noise) to use instead; one value per example each.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), nestruct.Categorical(4))
        >>> sorted(nestruct.evaluate(vae, torch.ones(5, 6)))
        ['loss']
    """
    measure = _default_metrics if metrics is None else metrics
    count = _count(data)
    totals: dict[str, float] = {}
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), nan_rows():
            for start in range(0, count, batch_size):
                stop = min(start + batch_size, count)
                rows = torch.arange(start, stop, device=device_of(data))
                batch = data if stop - start == count else select_rows(data, rows)
                values = measure(model, batch, Noise(seed=seed, example=rows))
                for name, value in values.items():
                    _check(name, value, stop - start)
                    totals[name] = totals.get(name, 0.0) + float(value.double().sum())
    finally:
        for module, training in was_training.items():
            module.training = training
    return {name: total / count for name, total in totals.items()}


def _default_metrics(model: nn.Module, batch: Any, noise: Noise) -> dict[str, Tensor]:
    if callable(getattr(model, "metrics", None)):
        return model.metrics(batch, noise)  # type: ignore[operator]
    return {"loss": model.loss(batch, noise)}  # type: ignore[operator]


def _count(data: Any) -> int:
    count = batch_size(data)
    if count == 0:
        raise InputError("There is nothing to evaluate on: the data have no examples.")
    return count


def _check(name: str, value: Any, examples: int) -> None:
    if not isinstance(value, Tensor) or value.shape != (examples,):
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"The metric {name!r} must be a tensor with one value per example, [{examples}]; "
            f"got {got}."
        )
