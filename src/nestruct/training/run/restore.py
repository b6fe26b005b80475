"""Taking up a run where it stands: what is put back, what is checked."""

import logging
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestruct.checks import check_choice
from nestruct.errors import InputError
from nestruct.estimators import Estimator
from nestruct.models.compiled import load_state, state_of
from nestruct.training.run.checkpoint import Checkpoint, first_good
from nestruct.training.run.optimizer_state import load_optimizer, load_scheduler
from nestruct.training.run.state import Progress
from nestruct.wording import flatten

log = logging.getLogger("nestruct")

# What may differ between the sessions of a run: how long it is, when it is looked at, its means.
_LENGTH = ("max_steps", "max_epochs")
_MEANS = ("checkpoint_seconds", "log_interval", "eval_interval", "eval_batch_size")
_ROOM = ("chunk_size", "memory_budget", "graph")  # where another GPU has less of it
FREE = {
    *("title", "device"),
    *(f"training.{name}" for name in (*_LENGTH, *_MEANS)),
    *(f"estimator.{name}" for name in _ROOM),
}


def is_free(key: str) -> bool:
    """True if a setting may differ between the sessions of a run.

    The version of somebody's code may (``code``): whoever reads it says that it changed.
    """
    return key in FREE or key.startswith("code.")


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
        _check_kinds(model, found.model)
        load_state(model, found.model)
        load_optimizer(optimizer, found.optimizer["optimizer"])
        if scheduler is not None:
            load_scheduler(scheduler, found.optimizer["scheduler"])
        estimator.load_state_dict(found.estimator)
    except Exception as error:  # torch, a scheduler or an estimator met what none of them wrote
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"The checkpoint of step {found.step} is of another model, optimizer, scheduler or "
            f"estimator ({reason}); resume with those that the run began with."
        ) from None
    return Progress.from_loop(found.loop)


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
        _check_kinds(model, state)
        load_state(model, state)
    except Exception as error:  # a model's own set_extra_state may raise anything
        # torch lists all tensors, a kind of mistake in a line: the first of them tells enough.
        _, _, reasons = str(error).partition(":\n")
        first = next(iter((reasons or str(error)).strip().splitlines()), type(error).__name__)
        first = re.sub('", ".*', '" and others', first).rstrip(". ")
        name = type(model).__name__
        raise InputError(
            f"The parameters in {run} are not those of this {name}: {first}."
        ) from None


def _check_kinds(model: nn.Module, state: dict[str, Any]) -> None:
    """Raises where a parameter would lose its imaginary part: torch says that in a warning only."""
    for name, own in state_of(model).items():
        value = state.get(name)
        is_complex = isinstance(value, Tensor) and value.is_complex()
        if is_complex and not (isinstance(own, Tensor) and own.is_complex()):
            raise ValueError(f"{name} is complex there")


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
        if not is_free(key) and value != after.get(key, "none")
    ]
    if changes:
        raise InputError(
            f"This run began with {' and '.join(changes)}: resume it as it began, or start "
            "another run."
        )
