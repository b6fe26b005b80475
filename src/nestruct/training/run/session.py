"""One sitting of a run: holds the folder, puts back what was saved, saves what is new."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nestruct.errors import InputError
from nestruct.estimators import Estimator
from nestruct.models.compiled import state_of
from nestruct.processes import (
    first_rank_decides,
    is_launched,
    my_rank,
    wait_for_all,
    world_size,
)
from nestruct.training.run.checkpoint import Checkpoint, checksum_of
from nestruct.training.run.environment import describe_environment
from nestruct.training.run.folder import RunFolder, check_is_free, is_run, read_config
from nestruct.training.run.restore import (
    compare_configs,
    find_best_model,
    newest_checkpoint,
    restore,
)
from nestruct.training.run.state import Progress, Record
from nestruct.training.run.verify import read_start, saved_config, what_changed

# Seconds that one of several processes waits for the folder: where torchrun itself was killed and
# comes back, the processes that it had started may need a step to notice.
_PATIENCE = 60.0


class Session:
    """What `fit` has of a run; without a folder, and in all ranks but the first, it keeps nothing.

    Args:
        run: The run folder, or None.
        resume: Whether to go on where it stands.
        device: Where the model is.
    """

    def __init__(self, run: str | Path | None, *, resume: bool, device: torch.device) -> None:
        self.path = None if run is None else Path(run)
        self.device = device
        there = resume and self.path is not None and is_run(self.path)
        self.continues = bool(first_rank_decides(float(there), device))
        self.folder: RunFolder | None = None
        self.now = Progress()
        self.best_model: dict[str, Any] | None = None
        self.notes: list[str] = []  # what a person should know
        self.begins = True  # no step was restored

    def read_config(self) -> dict[str, Any]:
        """What ``config.toml`` says; nothing of a new run."""
        return read_config(self.path) if self.continues and self.path is not None else {}

    def check_is_free(self) -> None:
        """Raises where a new run would overwrite something."""
        if self.path is not None and not self.continues and my_rank() == 0:
            check_is_free(self.path)

    @contextlib.contextmanager
    def open(
        self,
        config: dict[str, Any],
        *,
        model: nn.Module,
        estimator: Estimator,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        max_steps: int,
        init_from: str | Path | None,
    ) -> Iterator[None]:
        """Holds the folder in this context, everything put back as it was at its last checkpoint.

        A new run that is refused at its first step leaves no folder behind.
        """
        self.parts = (model, optimizer, scheduler, estimator)
        threads, made = torch.get_num_threads(), False
        start = None if self.path is None else _describe_start(self.path, model, init_from)
        try:
            if self.path is not None and my_rank() == 0:
                self.folder = RunFolder(self.path, config, _PATIENCE if is_launched() else 0.0)
                if not self.continues:
                    about = describe_environment(self.device, world_size())
                    self.folder.create(about | {"kind": estimator.kind, "start": start})
                    made = True
            wait_for_all()  # rank 0 holds the folder before anyone reads it
            if self.continues and self.path is not None:
                self._take_up(self.path, config, max_steps, start or {})
            wait_for_all()  # everyone has read before rank 0 writes
            if self.folder is not None and not self.begins and self.now.reason is None:
                self.notes += self.folder.take_up(self.now)
            yield
        except InputError:
            if self.folder is not None and made and self.now.step == 0:
                self.folder.undo()  # there is nothing to continue
            raise
        finally:
            if self.folder is not None:
                self.folder.close()
            torch.set_num_threads(threads)

    def begin(self) -> None:
        """Writes the checkpoint of step 0, and only then what makes the folder a run."""
        self.save("last")
        if self.folder is not None:
            self.folder.take_up(self.now)

    def _take_up(
        self, path: Path, config: dict[str, Any], max_steps: int, start: dict[str, str]
    ) -> None:
        """Restores the newest checkpoint; where there is none, the start must be at hand."""
        found, refused = newest_checkpoint(path)
        self.notes += [f"Not used: {reason}." for reason in refused]
        if found is not None:
            self._compare(path, found, config, start)
            self.begins = False
            self.now = restore(found, *self.parts)
            if self.now.reason == "finished" and self.now.step < max_steps:
                self.now.reason = self.now.test = self.now.whole_logs = None  # to go on for longer
            self.best_model = find_best_model(path, self.now, self.notes)
            if self.now.reason is None:
                self.notes.append(f"Continuing at step {self.now.step}.")
        else:
            compare_configs(read_config(path), config)
            began = read_start(path)
            if began.get("parameters") != start["parameters"]:
                why = f" ({'; '.join(refused)})" if refused else ""
                raise InputError(
                    f"{path} has no checkpoint that can be used{why}, and it did not begin with "
                    f"the parameters that are given now{_whose(path, began)}: start it again, in "
                    "another folder."
                )
            self.notes.append("There is no checkpoint to continue from: starting anew at step 0.")
        if self.now.threads != torch.get_num_threads():
            self.notes.append(
                f"Using {self.now.threads} threads, as before: others round otherwise."
            )
            torch.set_num_threads(self.now.threads)

    def _compare(
        self, path: Path, found: Checkpoint, config: dict[str, Any], start: dict[str, str]
    ) -> None:
        """Raises where the run is not the one that its checkpoint is of."""
        if found.config is None:
            compare_configs(read_config(path), config)
            self.notes.append(
                "This run is of version 0.1, whose checkpoints do not tell if config.toml or a log "
                "was changed; those that are written from now on do."
            )
        else:
            changed = ", ".join(what_changed(path, found.config))
            try:
                compare_configs(saved_config(found.config), config)
            except InputError as error:
                if not changed:
                    raise
                raise InputError(
                    f"{path / 'config.toml'} was changed after the checkpoint of step "
                    f"{found.step}: {changed}. Put it back as it was, or start another run."
                ) from error
            if changed:
                self.notes.append(f"config.toml was changed since the last checkpoint: {changed}.")
        began = read_start(path)
        if "init_from" in start and began.get("parameters") not in (None, start["parameters"]):
            raise InputError(
                f"{path} did not begin with the parameters that are given now"
                f"{_whose(path, began)}: start another run."
            )

    def append(self, log: str, record: Record) -> None:
        """Adds a line to a log."""
        if self.folder is not None:
            self.folder.append(log, record)

    def save(self, name: str) -> Checkpoint:
        """Writes a checkpoint of the present state."""
        model, optimizer, scheduler, estimator = self.parts
        if self.folder is not None:
            self.now.lines, self.now.digests = self.folder.lines, self.folder.digests
        checkpoint = Checkpoint(
            model=state_of(model),
            optimizer={
                "optimizer": optimizer.state_dict(),
                "scheduler": None if scheduler is None else scheduler.state_dict(),
            },
            estimator=estimator.state_dict(),
            loop=dataclasses.asdict(self.now),
        )
        self.write(name, checkpoint)
        return checkpoint

    def write(self, name: str, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint as it is."""
        if self.folder is not None:
            self.folder.save(name, checkpoint)

    def end(self) -> list[str]:
        """Looks at the folder once more; says what was deleted meanwhile, and is there again."""
        if self.folder is None:
            return []
        folder, notes = self.folder, []
        with folder.one_sentence():
            folder.put_back()
            best = folder.path / "checkpoints" / "best"
            if self.best_model is not None and not best.is_dir():
                # Its optimizer is lost: nothing can go on from it, but it can be used.
                then = {"step": self.now.best_step, "reason": None, "test": None}
                loop = dataclasses.asdict(self.now) | then | {"whole_logs": None}
                self.write("best", Checkpoint(self.best_model, {}, {}, loop))
            if folder.is_changed():
                notes.append("config.toml was changed while training, which went on as it began.")
        for name in sorted(folder.deleted):
            notes.append(f"{name} was deleted or replaced while training: it was written again.")
        return notes


def _describe_start(path: Path, model: nn.Module, init_from: str | Path | None) -> dict[str, str]:
    """The SHA-256 of a model's parameters, and whose they were."""
    start = {"parameters": checksum_of(state_of(model))}
    return start if init_from is None else start | {"init_from": os.path.relpath(init_from, path)}


def _whose(path: Path, began: dict[str, Any]) -> str:
    source = began.get("init_from")
    return f", but with those of {os.path.normpath(path / str(source))}" if source else ""
