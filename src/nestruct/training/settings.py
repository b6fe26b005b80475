"""What a call of `fit` says about itself in ``config.toml``: what a resumed call must repeat."""

import dataclasses
import inspect
from typing import Any

import torch
from torch import Tensor

from nestruct.estimators import Estimator
from nestruct.estimators.base import options_of
from nestruct.training.options import Training

# How an optimizer computes, which does not change what it computes.
_MEANS = {"foreach", "fused", "capturable", "differentiable"}
_INTERVALS = ("log_interval", "eval_interval")


def describe_call(
    estimator: Estimator,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    settings: Training,
    seed: int,
) -> dict[str, Any]:
    """The tables of ``config.toml``, put together from the arguments of `fit`."""
    tables: dict[str, Any] = {"seed": seed, "estimator": {"name": type(estimator).__name__}}
    names = [option.name for option in options_of(estimator)]
    tables["estimator"] |= _plain({name: getattr(estimator, name) for name in names})
    tables["optimizer"] = {"name": type(optimizer).__name__, **_optimizer(optimizer, scheduler)}
    if scheduler is not None:
        tables["scheduler"] = {"name": type(scheduler).__name__, **_scheduler(scheduler)}
    return tables | {"training": _plain(dataclasses.asdict(settings))}


def in_steps(config: dict[str, Any], settings: Training) -> dict[str, Any]:
    """A configuration with what its epochs came to in steps, and its intervals."""
    steps = ("max_steps", *_INTERVALS)
    return config | {"training": config["training"] | {k: getattr(settings, k) for k in steps}}


def keep_intervals(config: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Options of a resumed `fit`, with the run's intervals where they name none of their own."""
    known = config.get("training", {})
    names = [name for name in _INTERVALS if options.get(name) is None]
    return options | {name: known[name] for name in names if isinstance(known.get(name), int)}


def _optimizer(optimizer: torch.optim.Optimizer, scheduler: Any) -> dict[str, Any]:
    """The options of the first group, and what others have of their own."""
    groups = []
    for group in optimizer.param_groups:
        names = [name for name in optimizer.defaults if name in group and name not in _MEANS]
        options = {name: group[name] for name in names}
        if scheduler is not None:  # it moves these: what they were before, also in a second call
            moved = options.keys() & {"lr", "momentum", "betas"}
            began = {name: optimizer.defaults[name] for name in moved}
            options |= began | {"lr": group.get("initial_lr", began.get("lr", group["lr"]))}
        groups.append(_plain(options))
    first, *others = groups
    for index, group in enumerate(others, 1):
        own = {name: value for name, value in group.items() if value != first.get(name)}
        first |= {f"group_{index}": own} if own else {}
    return first


def _scheduler(scheduler: Any) -> dict[str, Any]:
    """The options that a scheduler keeps as attributes of the same names."""
    names = inspect.signature(type(scheduler)).parameters.keys() - {"last_epoch"}
    values = vars(scheduler) if hasattr(scheduler, "__dict__") else {}
    return _plain({name: values[name] for name in sorted(names & values.keys())})


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """The options whose values TOML can write."""
    words = {name: _word(value) for name, value in options.items()}
    return {name: value for name, value in words.items() if value is not None}


def _word(value: Any) -> Any:
    if value is None:
        return "none"
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, tuple | list):
        words = [_word(item) for item in value]
        return None if None in words else words
    if isinstance(value, bool | str):
        return value
    return next((kind(value) for kind in (int, float) if isinstance(value, kind)), None)
