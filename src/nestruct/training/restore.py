"""Taking up a run where it stands: what is put back, what is checked."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestruct.errors import InputError
from nestruct.training.checkpoint import Checkpoint, first_good
from nestruct.training.loop import Progress
from nestruct.wording import flatten

# What may differ between the sessions of a run: how long it is, when it is looked at, its means.
_LENGTH = ("max_steps", "max_epochs")
_MEANS = ("checkpoint_seconds", "log_interval", "eval_interval", "eval_batch_size")
_ROOM = ("chunk_size", "memory_budget", "graph")  # where another GPU has less of it
_FREE = {
    *("title", "device"),
    *(f"training.{name}" for name in (*_LENGTH, *_MEANS)),
    *(f"estimator.{name}" for name in _ROOM),
}


def newest_checkpoint(path: Path) -> tuple[Checkpoint | None, list[str]]:
    """What a run goes on from, and which checkpoints were refused.

    After a kill that may be the best one: it has all that the last one has.
    """
    last, refused = first_good(path / "checkpoints", ["last"])
    best, others = first_good(path / "checkpoints", ["best"])
    if last is None:
        return best, refused + others
    return (last if best is None or best.step <= last.step else best), refused


def restore(
    found: Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    estimator: Any,
) -> Progress:
    """Puts everything back as it was at a checkpoint."""
    try:
        model.load_state_dict(found.model)
        _load_optimizer(optimizer, found.optimizer["optimizer"])
        if scheduler is not None:
            scheduler.load_state_dict(found.optimizer["scheduler"])
        if hasattr(estimator, "load_state_dict"):
            estimator.load_state_dict(found.estimator)
        return Progress(**found.loop)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"The checkpoint of step {found.step} is of another model, optimizer, scheduler or "
            f"estimator ({reason}); resume with those that the run began with."
        ) from None


def find_best_model(path: Path, now: Progress, notes: list[str]) -> dict[str, Any] | None:
    """The best parameters so far; where they are lost, the search for the best starts anew."""
    if now.best_step is None:
        return None
    found, refused = first_good(path / "checkpoints", ["best"])
    notes += [f"Not used: {reason}." for reason in refused]
    if found is not None and found.step == now.best_step:
        return found.model
    notes.append("The best parameters are lost.")
    if now.reason is None:
        now.best = now.best_step = None
    return None


def compare_configs(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises where a setting is not what the run began with.

    One that the run says nothing of is younger than it, so nothing differs.
    """
    before, after = flatten(old), flatten(new)
    changes = [
        f"{key} {value}, not {after.get(key, 'none')}"
        for key, value in before.items()
        if key not in _FREE and value != after.get(key, "none")
    ]
    if changes:
        raise InputError(
            f"This run began with {' and '.join(changes)}: resume it as it began, or start "
            "another run."
        )


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raises where an optimizer could not train the model."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("LBFGS evaluates the loss itself, which an estimator replaces; use Adam.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"The optimizer must be a torch optimizer, got {optimizer!r}.")
    own = {id(parameter) for parameter in model.parameters()}
    if own and not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise InputError("The optimizer holds none of the model's parameters: make it from them.")


def join_parameters(estimator: Any, optimizer: torch.optim.Optimizer) -> None:
    """Adds an estimator's own parameters to the optimizer's first group, which a scheduler knows.

    NES has an option of the same name, so it is the class that is asked.
    """
    if not callable(getattr(type(estimator), "parameters", None)):
        return
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = [p for p in estimator.parameters() if id(p) not in known]
    if own and isinstance(optimizer, torch.optim.Adagrad):
        raise InputError(
            "Adagrad takes on no parameters after it is made, and the estimator has some: use Adam."
        )
    optimizer.param_groups[0]["params"] += own


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Also keeps the dtypes of the state, which torch casts to those of the parameters."""
    optimizer.load_state_dict(state)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in state["state"].items():
        current = optimizer.state[parameters[index]]
        for name, value in values.items():
            if isinstance(value, Tensor) and current[name].dtype != value.dtype:
                current[name] = value.to(current[name].device)
