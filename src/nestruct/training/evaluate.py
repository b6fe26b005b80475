"""How good a model is on held-out examples: means of its metrics, with draws fixed once for all."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nestruct.checks import check_count
from nestruct.data import batch_size as num_examples
from nestruct.data import device_of, read_whole, slices
from nestruct.errors import InputError
from nestruct.models.compiled import unwrap
from nestruct.models.hooks import HasLoss, HasMetrics
from nestruct.noise import Noise, derive_seed, forked_generators
from nestruct.processes import add_over_ranks, my_rank, world_size
from nestruct.structures import nan_rows
from nestruct.structures.solvers import num_unanswered

RESERVED = (
    *("step", "split", "best_step", "evaluations", "decoded", "solved", "looked_up", "timing"),
    "unanswered",
)
Metrics = Callable[[nn.Module, Any, Noise], dict[str, Any]]


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    seed: int = 0,
    batch_size: int = 1000,
    metrics: Metrics | None = None,
    share: bool = False,
) -> dict[str, float]:
    """Means over examples of ``model.metrics(batch, noise)``, or of its loss where it has none.

    A metric that is a pair of tensors is a share: the sum of the first over the sum of the second
    (words attached rightly, of all words), and NaN of nothing.

    An example for which a `BlackBox` has no answer is left out of the means; ``unanswered``, which
    is there only then, is the share of such examples.

    The same seed gives the same draws at every call and for every batch size, so two evaluations
    differ by what the model learnt in between and by nothing else.

    Args:
        model: Any module with ``loss(batch, noise)``.
        data: What `nestruct.fit` takes, but no function of the step; moved to the model's device.
        seed: Decides the draws; `nestruct.fit` evaluates with one of its own, made of the run's.
        batch_size: Examples at once.
        metrics: A function of (model, batch, noise) to use instead; one value per example each.
        share: Whether the processes of this run share the examples; then each of them must call it.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), nestruct.Categorical(4))
        >>> sorted(nestruct.evaluate(vae, torch.ones(5, 6)))
        ['loss']
    """
    model, measure = unwrap(model), default_metrics if metrics is None else metrics
    device = device_of_model(model)
    data = read_whole(data, dtype=dtype_of_model(model), device=device, share=share)
    count, device = num_examples(data), device or device_of(data)
    batch_size = check_count("evaluate", "batch_size", batch_size, 1)
    if count == 0:
        raise InputError("There is nothing to evaluate on: the data have no examples.")
    rank, world = (my_rank(), world_size()) if share else (0, 1)
    sums: list[dict[str, tuple[float, float]]] = []  # of each slice: values, and their weights
    names: list[str] = []
    with as_in_use(model), forked_generators(device):
        for place, (rows, batch) in enumerate(slices(data, batch_size)):
            if place and place % world != rank:  # everyone sees the first, and its metrics' names
                sums.append({})
                continue
            torch.manual_seed(derive_seed(seed, place))  # for models that draw from torch's own
            before = num_unanswered()
            values = measure(model, batch, Noise(seed=seed, example=rows))
            _check(values, len(rows), names or values)
            names = names or list(values)
            there = _answered(values) if num_unanswered() > before else None
            sums.append(
                {name: _sum(value, there) for name, value in values.items()}
                | {"unanswered": (0.0 if there is None else float((~there).sum()), len(rows))}
            )
    table = torch.zeros(len(sums), len(sums[0]), 2, dtype=torch.float64)
    for place, found in enumerate(sums):
        if found and place % world == rank:
            table[place] = torch.tensor(list(found.values()), dtype=torch.float64)
    totals = add_over_ranks(table.to(device)).tolist() if world > 1 else table.tolist()
    columns = zip(sums[0], zip(*totals, strict=True), strict=True)
    means = {name: _mean(column) for name, column in columns}
    if not means["unanswered"]:
        del means["unanswered"]
    return means


def device_of_model(model: nn.Module) -> torch.device | None:
    """Where a model's parameters are; None where it has none."""
    return next((parameter.device for parameter in model.parameters()), None)


def dtype_of_model(model: nn.Module) -> torch.dtype:
    """What a model computes in: the type of its first floating-point parameter."""
    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(kinds, torch.get_default_dtype())


def _answered(values: dict[str, Any]) -> Tensor:
    """Which examples have a number for every metric."""
    parts = [v[0] if isinstance(v, tuple) else v for v in values.values()]
    return torch.stack([~part.isnan() for part in parts]).all(0)


def _sum(value: Tensor | tuple[Tensor, Tensor], there: Tensor | None) -> tuple[float, float]:
    """The sums of a metric and of its weights, over some examples or over all."""
    part, weight = value if isinstance(value, tuple) else (value, torch.ones_like(value))
    if there is not None:
        part, weight = part[there], weight[there]
    return float(part.double().sum()), float(weight.double().sum())


def _mean(slices: Sequence[tuple[float, float]]) -> float:
    total, weight = (sum(part) for part in zip(*slices, strict=True))
    return total / (weight or math.nan)


@contextlib.contextmanager
def as_in_use(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, and NaN where a structure has no answer; undone at the end."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), nan_rows():
            yield
    finally:
        for module, training in was_training.items():
            module.training = training


def default_metrics(model: nn.Module, batch: Any, noise: Noise) -> dict[str, Any]:
    """What a model's own ``metrics`` give, or its loss."""
    if isinstance(model, HasMetrics):
        return model.metrics(batch, noise)
    if not isinstance(model, HasLoss):
        raise InputError(
            f"{type(model).__name__} cannot be evaluated: it has no loss(batch, noise) -> [batch]."
        )
    return {"loss": model.loss(batch, noise)}


def _check(values: Any, examples: int, names: Any) -> None:
    if not isinstance(values, dict):
        raise InputError(f"Metrics must be a dictionary of tensors, got {type(values).__name__}.")
    if list(values) != list(names):
        raise InputError(
            f"Metrics must have the same names for every batch: {', '.join(values)} are not "
            f"{', '.join(names)}."
        )
    for name, value in values.items():
        if name in RESERVED:
            raise InputError(f"A metric cannot be called {name!r}: records have that key already.")
        for part in value if isinstance(value, tuple) and len(value) == 2 else (value,):
            if not isinstance(part, Tensor) or part.shape != (examples,):
                is_tensor = isinstance(part, Tensor)
                got = f"shape {tuple(part.shape)}" if is_tensor else type(part).__name__
                raise InputError(
                    f"The metric {name!r} must be a tensor with one value per example, "
                    f"[{examples}]; got {got}."
                )


@contextlib.contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Within this context torch multiplies float32 matrices with this precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
