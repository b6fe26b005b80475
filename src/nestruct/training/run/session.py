"""One sitting of a run: holds the folder, puts back what was saved, saves what is new."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nestruct.errors import InputError
from nestruct.estimators import Estimator
from nestruct.processes import first_rank_decides, my_rank, wait_for_all, world_size
from nestruct.training.run.checkpoint import Checkpoint
from nestruct.training.run.environment import describe_environment
from nestruct.training.run.folder import RunFolder, check_is_free, read_config
from nestruct.training.run.restore import (
    compare_configs,
    find_best_model,
    newest_checkpoint,
    restore,
)
from nestruct.training.run.state import Progress, Record

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
        there = resume and self.path is not None and (self.path / "config.toml").exists()
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
    ) -> Iterator[None]:
        """Holds the folder in this context, everything put back as it was at its last checkpoint.

        A new run that is refused at its first step leaves no folder behind.
        """
        self.parts = (model, optimizer, scheduler, estimator)
        threads, made = torch.get_num_threads(), False
        try:
            if self.path is not None and my_rank() == 0:
                self.folder = RunFolder(self.path, config, _PATIENCE if world_size() > 1 else 0.0)
                if not self.continues:
                    about = describe_environment(self.device, world_size())
                    self.folder.create(about | {"kind": estimator.kind})
                    made = True
            wait_for_all()  # rank 0 holds the folder before anyone reads it
            if self.continues and self.path is not None:
                compare_configs(read_config(self.path), config)
                self._take_up(self.path, max_steps)
            wait_for_all()  # everyone has read before rank 0 writes
            if self.folder is not None and self.now.reason is None:
                self.notes += self.folder.take_up(self.now.step, self.now.lines)
            yield
        except InputError:
            if self.folder is not None and made and self.now.step == 0:
                self.folder.undo()  # there is nothing to continue
            raise
        finally:
            if self.folder is not None:
                self.folder.close()
            torch.set_num_threads(threads)

    def _take_up(self, path: Path, max_steps: int) -> None:
        """Restores the newest checkpoint; where there is none, the run starts anew."""
        found, refused = newest_checkpoint(path)
        self.notes += [f"Not used: {reason}." for reason in refused]
        if found is not None:
            self.begins = False
            self.now = restore(found, *self.parts)
            if self.now.reason == "finished" and self.now.step < max_steps:
                self.now.reason = self.now.test = None  # asked to go on for longer
            self.best_model = find_best_model(path, self.now, self.notes)
            if self.now.reason is None:
                self.notes.append(f"Continuing at step {self.now.step}.")
        else:
            self.notes.append("There is no checkpoint to continue from: starting anew at step 0.")
        if self.now.threads != torch.get_num_threads():
            self.notes.append(
                f"Using {self.now.threads} threads, as before: others round otherwise."
            )
            torch.set_num_threads(self.now.threads)

    def append(self, log: str, record: Record) -> None:
        """Adds a line to a log."""
        if self.folder is not None:
            self.folder.append(log, record)

    def save(self, name: str) -> Checkpoint:
        """Writes a checkpoint of the present state."""
        model, optimizer, scheduler, estimator = self.parts
        if self.folder is not None:
            self.now.lines = dict(self.folder.lines)
        checkpoint = Checkpoint(
            model=model.state_dict(),
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
