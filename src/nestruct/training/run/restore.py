"""Taking up a run where it stands: what is put back, what is checked."""

import logging
import re
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from nestruct.checks import check_choice, check_value
from nestruct.errors import InputError
from nestruct.estimators import Estimator
from nestruct.training.run.checkpoint import Checkpoint, first_good
from nestruct.training.run.state import Progress
from nestruct.wording import flatten

log = logging.getLogger("nestruct")

# What may differ between the sessions of a run: how long it is, when it is looked at, its means.
_LENGTH = ("max_steps", "max_epochs")
_MEANS = ("checkpoint_seconds", "log_interval", "eval_interval", "eval_batch_size")
_ROOM = ("chunk_size", "memory_budget", "graph")  # where another GPU has less of it
_FREE = {
    *("title", "device"),
    *(f"training.{name}" for name in (*_LENGTH, *_MEANS)),
    *(f"estimator.{name}" for name in _ROOM),
}

_COUNTS = ("step", "evaluations", "decoded", "solved", "failed", "unimproved", "best_step")


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
    estimator: Estimator,
) -> Progress:
    """Puts everything back as it was at a checkpoint."""
    try:
        model.load_state_dict(found.model)
        _load_optimizer(optimizer, found.optimizer["optimizer"])
        if scheduler is not None:
            scheduler.load_state_dict(found.optimizer["scheduler"])
        estimator.load_state_dict(found.estimator)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"The checkpoint of step {found.step} is of another model, optimizer, scheduler or "
            f"estimator ({reason}); resume with those that the run began with."
        ) from None
    # What version 0.1 did not count is not known.
    return _progress({"decoded": None, "solved": None} | found.loop)


def _progress(loop: dict[str, Any]) -> Progress:
    """Where the run was; raises where a value is none that `Progress` can have."""
    hints = get_type_hints(Progress)
    for name, value in loop.items():
        if name not in hints:
            raise InputError(
                f"The checkpoint has an entry {name!r} that is not known; it cannot be used."
            )
        check_value(f"The checkpoint's {name}", value, hints[name])
    entries = [
        *(loop.get("lines") or {}).values(),
        *(v or 0 for k, v in loop.items() if k in _COUNTS),
    ]
    if any(type(value) is not int or value < 0 for value in entries):
        raise InputError("The checkpoint counts something below 0; it cannot be used.")
    return Progress(**loop)


def find_checkpoint(run: str | Path, checkpoint: str) -> tuple[str, Checkpoint]:
    """A checkpoint of a run and its name: the last one where the best is damaged or not there."""
    check_choice("checkpoint", checkpoint, ("best", "last"))
    reasons: list[str] = []
    for name in ["best", "last"] if checkpoint == "best" else ["last"]:
        found, refused = first_good(Path(run) / "checkpoints", [name])
        for reason in refused:
            log.warning("Not used: %s.", reason)
        if found is not None:
            if name != checkpoint and found.loop.get("best_step") is not None:  # there was one
                log.warning(
                    "%s has no checkpoint %r that can be used: taking %r, of step %d.",
                    *(run, checkpoint, name, found.step),
                )
            return name, found
        reasons += refused
    why = "; ".join(reasons) or "it has not saved one yet"
    raise InputError(f"{run} has no checkpoint that can be used: {why}.")


def fill_model(model: nn.Module, state: dict[str, Any], run: str | Path) -> None:
    """Sets a model's parameters to those of a run's checkpoint."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        # torch lists all tensors, a kind of mistake in a line: the first of them tells enough.
        _, _, reasons = str(error).partition(":\n")
        first = (reasons or str(error)).strip().splitlines()[0]
        first = re.sub('", ".*', '" and others', first).rstrip(". ")
        name = type(model).__name__
        raise InputError(
            f"The parameters in {run} are not those of this {name}: {first}."
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


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Also keeps the dtypes of the state, which torch casts to those of the parameters."""
    optimizer.load_state_dict(state)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in state["state"].items():
        current = optimizer.state[parameters[index]]
        for name, value in values.items():
            if isinstance(value, Tensor) and current[name].dtype != value.dtype:
                current[name] = value.to(current[name].device)
