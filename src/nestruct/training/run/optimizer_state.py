"""Optimizers and schedulers take their state back, though a stranger may have written it.

torch copies what it is given: a learning rate that is a word, or moments of another shape, fail
somewhere in a later step. Here a value is taken if it is of the kind that it replaces.
"""

import inspect
import math
from typing import Any

import torch
from torch import Tensor


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Puts an optimizer's state back, with the dtypes that it had.

    Of a group's options numbers come from the checkpoint, because schedulers move them. All others
    say how to compute, and stay as the optimizer was built.

    Raises:
        ValueError: The state is none that this optimizer can have.
    """
    moments, groups = state["state"], state["param_groups"]
    known = optimizer.state_dict()["param_groups"]
    if len(groups) != len(known):
        raise ValueError(f"it has {len(groups)} groups of parameters, not {len(known)}")
    merged = []
    for group, own in zip(groups, known, strict=True):
        if group["params"] != own["params"]:
            raise ValueError("its groups hold other parameters")
        moved = {k: v for k, v in group.items() if _is_number(v, own.get(k, v))}
        merged.append({**own, **moved})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    options = [group for group in merged for _ in group["params"]]
    for group in merged:  # also where no step has left a state
        if group["params"]:
            _rehearse(optimizer, group, parameters[group["params"][0]])
    for index, values in moments.items():
        if type(index) is not int or not 0 <= index < len(parameters):
            raise ValueError(f"it has a state for the parameter {index!r}")
        like = _rehearse(optimizer, options[index], parameters[index])
        for name, value in values.items():
            _check_moment(f"{name} of parameter {index}", value, parameters[index], like, name)
    optimizer.load_state_dict({"state": moments, "param_groups": merged})
    # torch casts the state to the dtypes of the parameters.
    for index, values in moments.items():
        current = optimizer.state[parameters[index]]
        for name, value in values.items():
            if isinstance(value, Tensor) and current[name].dtype != value.dtype:
                current[name] = value.to(current[name].device)


def load_scheduler(scheduler: Any, state: dict[str, Any]) -> None:
    """Puts a scheduler's state back; one that is not torch's or ours checks its own.

    Raises:
        ValueError: An entry is of another kind than the scheduler's own.
    """
    known = type(scheduler).__module__.startswith(("torch.optim.", "nestruct."))
    own = scheduler.state_dict() if known else {}
    for name, value in state.items():
        if name in own and not _is_alike(value, own[name]):
            raise ValueError(f"the scheduler's {name} cannot be {value!r}")
    scheduler.load_state_dict(state)


def _rehearse(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: Tensor
) -> dict[str, Any] | None:
    """What one step on a dummy leaves as its state; None for an optimizer that is not torch's.

    torch checks the ranges of options where an optimizer is made, and nowhere else.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return None
    shape = [2] * parameter.dim()
    dummy = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device, requires_grad=True)
    dummy.grad = torch.ones_like(dummy)
    names = inspect.signature(type(optimizer)).parameters.keys() & group.keys() - {"params"}
    options = {name: group[name] for name in names}
    other = type(optimizer)([dummy], **options)
    other.step()
    return dict(other.state[dummy])


def _check_moment(
    what: str, value: Any, parameter: Tensor, state: dict[str, Any] | None, name: str
) -> None:
    """Raises where a moment is of another kind or shape: fused kernels do not look."""
    if not isinstance(value, Tensor):
        if not (value is None or isinstance(value, bool | int | float)):
            raise ValueError(f"{what} cannot be {value!r}")
    elif torch.broadcast_shapes(value.shape, parameter.shape) != parameter.shape:
        raise ValueError(f"{what} has shape {tuple(value.shape)}")
    if state is None:
        return
    like = state.get(name)
    if isinstance(like, Tensor) != isinstance(value, Tensor):
        raise ValueError(f"{what} cannot be {value!r}")
    if isinstance(like, Tensor):
        whole = like.shape == (2,) * parameter.dim()
        right = value.shape == parameter.shape if whole else value.dim() == like.dim()
        if not right or value.dtype != like.dtype:
            raise ValueError(f"{what} has shape {tuple(value.shape)} and dtype {value.dtype}")


def _is_number(value: Any, own: Any) -> bool:
    """Whether both are numbers, or tensors of one shape, or as many numbers (Adam's betas)."""
    if isinstance(value, Tensor) or isinstance(own, Tensor):
        return isinstance(value, Tensor) and isinstance(own, Tensor) and value.shape == own.shape
    if isinstance(value, list | tuple) and isinstance(own, list | tuple):
        return len(value) == len(own) > 0 and all(map(_is_number, value, own))
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in (value, own)]
    return all(numbers) and math.isfinite(value)


def _is_alike(value: Any, own: Any) -> bool:
    """Whether a value can stand in the place of another: of its kind, and as long."""
    if isinstance(own, dict) and isinstance(value, dict):
        return own.keys() == value.keys() and all(_is_alike(value[k], own[k]) for k in own)
    if isinstance(own, list | tuple) and isinstance(value, list | tuple):
        return len(own) == len(value) and all(map(_is_alike, value, own))
    if isinstance(own, bool | str) or isinstance(value, bool | str):
        return type(own) is type(value)
    if isinstance(own, int | float | Tensor) and isinstance(value, int | float | Tensor):
        return isinstance(own, Tensor) == isinstance(value, Tensor)
    return value is None or own is None
