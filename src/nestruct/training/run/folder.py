"""A run on disk: ``config.toml``, ``environment.json``, ``metrics.jsonl``, ``structures.jsonl`` and
``checkpoints/``; ``details.json`` where the model has details. One trainer at a time holds it."""

import contextlib
import json
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from nestruct.errors import InputError, NestructError
from nestruct.files import make_folder, remove_file, remove_folder, sync_folder, write_whole
from nestruct.training.run.checkpoint import (
    Checkpoint,
    discard_damaged,
    holds_no_step,
    read_last,
    write_checkpoint,
)
from nestruct.training.run.lock import give_lock_back, keep_lock, take_lock
from nestruct.training.run.log import Log
from nestruct.training.run.reach import check_reach
from nestruct.training.run.state import LOGS, Progress, Record
from nestruct.untrusted import parse_toml, read_file, read_toml


class RunFolder:
    """A run folder that this process alone holds.

    Args:
        path: The folder; made where it is not there.
        config: What ``config.toml`` says, or is to say.
        patience: Seconds to wait for a trainer that holds it.
    """

    def __init__(self, path: Path, config: dict[str, Any], patience: float = 0.0) -> None:
        self.path = path
        self.how = "resume=True"  # to continue
        if "recipe" in config:
            trust = " --trust" * ("code" in config)
            self.how = f"nestruct train --resume {shlex.quote(str(path))}{trust}"
        try:
            self.config = tomli_w.dumps(config)
        except TypeError as error:
            raise InputError(f"The configuration cannot be written as TOML: {error}.") from None
        self.deleted: set[str] = set()  # files that were missing while training, written again
        self._files: dict[str, bytes] = {}  # that do not change while training
        self._logs: dict[str, Log] = {}
        self._step: int | None = None  # of the newest checkpoint
        self._good: set[str] = set()  # checkpoints known to be whole
        with self.one_sentence():
            make_folder(path)
            check_reach(path)
            self._lock = take_lock(path, patience)

    def create(self, environment: dict[str, Any]) -> None:
        """Writes what a run ran on. The folder is no run yet: that takes `take_up`."""
        check_is_free(self.path)  # someone else may have been faster
        with self.one_sentence():
            text = json.dumps(environment, indent=1) + "\n"
            write_whole(self.path / "environment.json", text.encode())

    def take_up(self, now: Progress) -> list[str]:
        """Opens the logs for more lines than a checkpoint knows; notes what is wrong with them.

        It writes ``config.toml``, which makes the folder a run: a checkpoint is there by then.
        """
        notes = []
        if now.step:
            self._step = now.step
        with self.one_sentence():
            config = self.path / "config.toml"
            if now.step and not config.exists():
                notes.append("config.toml was lost: it was written again.")
            if _content(config) != self.config.encode():  # new, trained for longer, or changed
                write_whole(config, self.config.encode())
            for name in LOGS:  # and no other name, whatever a checkpoint says
                log = self._logs[name] = Log(self.path / name)
                wrong = log.take_up(now.lines.get(name, 0), now.digests.get(name))
                notes += [] if wrong is None else [wrong]
            sync_folder(self.path)  # the names of new logs
            for name in ("config.toml", "environment.json"):
                content = _content(self.path / name)
                if content is not None:
                    self._files[name] = content
        return notes

    def append(self, name: str, record: Record) -> None:
        """Adds a line to a log; values that are not finite become null."""
        line = json.dumps(finite(record), allow_nan=False) + "\n"
        with self.one_sentence():
            self._logs[name].append(line.encode())

    @property
    def lines(self) -> dict[str, int]:
        """How many lines each log has."""
        return dict.fromkeys(LOGS, 0) | {name: log.num_lines for name, log in self._logs.items()}

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each log."""
        return {name: log.digest for name, log in self._logs.items()}

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint, after what the logs hold by then."""
        folder = self.path / "checkpoints"
        checkpoint.config = self.config
        with self.one_sentence():
            self.put_back()
            for log in self._logs.values():
                log.file.sync()
            if name not in self._good:  # a damaged one must not displace the one before it
                discard_damaged(folder / name)
            write_checkpoint(folder, name, checkpoint)
        self._good.add(name)
        self._step = checkpoint.step

    def put_back(self) -> None:
        """Writes files again that were deleted while training."""
        self._lock = keep_lock(self._lock, self.path)
        for name, content in self._files.items():
            if not (self.path / name).exists():
                write_whole(self.path / name, content)
                self.deleted.add(name)
        for name, log in self._logs.items():
            if log.file.put_back():
                self.deleted.add(name)
        for name in self._good:  # these are written again when their time comes
            if not (self.path / "checkpoints" / name).is_dir():
                self.deleted.add(f"checkpoints/{name}")

    def is_changed(self) -> bool:
        """True if ``config.toml`` is not what this training wrote or read there."""
        return _content(self.path / "config.toml") != self.config.encode()

    def undo(self) -> None:
        """Removes the files of a run that failed before it began, and the folder if it is empty."""
        with contextlib.suppress(OSError):
            remove_file(self.path / "config.toml")  # first: the folder is no run then
            remove_folder(self.path / "checkpoints")
            for name in (*LOGS, "environment.json", ".lock"):
                remove_file(self.path / name)
            self.path.rmdir()

    def close(self) -> None:
        """Lets the folder go."""
        for log in self._logs.values():
            with contextlib.suppress(OSError):  # a full disk was reported when it was written to
                log.file.close()
        give_lock_back(self._lock)

    @contextlib.contextmanager
    def one_sentence(self) -> Iterator[None]:
        """Turns an OSError of the block into one readable line."""
        try:
            yield
        except OSError as error:
            file = "" if error.filename is None else f" ({error.filename})"
            safe = ""
            if self._step is not None and (self.path / "checkpoints").is_dir():
                safe = f" The checkpoint of step {self._step} is intact: continue with {self.how}."
            reason = f"{error.strerror}{file}"
            raise NestructError(f"Cannot write to {self.path}: {reason}.{safe}") from error


def check_is_free(path: Path) -> None:
    """Raises where a new run would overwrite one, or lie among other things."""
    # A run that was killed between its first checkpoint and config.toml may be started again.
    if (path / "config.toml").exists() or not holds_no_step(path / "checkpoints"):
        raise InputError(
            f"{path} already holds a run: continue it (nestruct train --resume "
            f"{shlex.quote(str(path))}; in Python resume=True), or choose another folder."
        )
    with contextlib.suppress(OSError):  # said when it is written to
        others = sorted(file.name for file in path.iterdir() if not _is_left(file.name))
        if others:
            raise InputError(
                f"{path} holds other things than a run ({others[0]}): say a new folder for it."
            )


def _is_left(name: str) -> bool:
    """Whether it may be of a run that was killed or refused before it began, or of its output."""
    known = ("environment.json", "checkpoints", "tensorboard")
    return name in known or name[0] == "." or name.endswith(".log")


def is_run(path: Path) -> bool:
    """True if a folder holds a run that can be continued."""
    return (path / "config.toml").exists() or _saved_config(path) is not None


def read_config(path: Path) -> dict[str, Any]:
    """The resolved recipe of a run; if ``config.toml`` is lost, from the copy in a checkpoint."""
    file = Path(path) / "config.toml"
    try:
        if file.exists():
            return read_toml(file)
        text = _saved_config(Path(path))
        if text is not None:
            return parse_toml(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}.") from None
    if (Path(path) / "environment.json").exists():
        raise InputError(
            f"{path} is not a run folder: it has no config.toml. If its run was stopped before "
            "step 0, start it again as it was started."
        )
    raise InputError(
        f"{path} is not a run folder: it has no config.toml; give the one that --run named."
    )


def _saved_config(path: Path) -> str | None:
    """The copy of ``config.toml`` in the last checkpoint."""
    state = read_last(path / "checkpoints") or {}
    return state["config"] if isinstance(state.get("config"), str) else None


def _content(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(f"{path} cannot be read: {error}; remove it.") from None


def finite(value: Any) -> Any:
    """A copy with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
