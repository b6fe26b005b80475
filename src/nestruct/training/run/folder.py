"""A run on disk: ``config.toml``, ``environment.json``, ``metrics.jsonl``, ``structures.jsonl`` and
``checkpoints/``; ``details.json`` where the model has details. One trainer at a time holds it."""

import contextlib
import itertools
import json
import math
import os
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import tomli_w

from nestruct.errors import InputError, NestructError
from nestruct.files import write_whole
from nestruct.training.run.checkpoint import Checkpoint, discard_damaged, write_checkpoint
from nestruct.training.run.lock import give_lock_back, take_lock
from nestruct.training.run.state import LOGS, Record


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
            self.how = f"nestruct train --resume {shlex.quote(str(path))}"
        try:
            self._config = tomli_w.dumps(config).encode()
        except TypeError as error:
            raise InputError(f"The configuration cannot be written as TOML: {error}.") from None
        self.lines: dict[str, int] = {}  # that each log has
        self._step: int | None = None  # of the newest checkpoint
        self._logs: dict[str, BinaryIO] = {}
        self._good: set[str] = set()  # checkpoints known to be whole
        with self.one_sentence():
            path.mkdir(parents=True, exist_ok=True)
            self._lock = take_lock(path, patience)

    def create(self, environment: dict[str, Any]) -> None:
        """Makes the folder a run."""
        check_is_free(self.path)  # someone else may have been faster
        with self.one_sentence():
            text = json.dumps(environment, indent=1) + "\n"
            write_whole(self.path / "environment.json", text.encode())
            # Last, because this file is what makes the folder a run.
            write_whole(self.path / "config.toml", self._config)

    def take_up(self, step: int, lines: dict[str, int]) -> list[str]:
        """Cuts the logs to so many lines and opens them for more; notes what is missing of them."""
        notes = []
        self._step = step or None
        with self.one_sentence():
            if (self.path / "config.toml").read_bytes() != self._config:  # trained for longer
                write_whole(self.path / "config.toml", self._config)
            for name in LOGS:  # and no other name, whatever a checkpoint says
                count = lines.get(name, 0)
                file = _open_log(self.path / name)
                self._logs[name] = file
                whole = [line for line in itertools.islice(file, count) if line.endswith(b"\n")]
                file.truncate(sum(map(len, whole)))
                self.lines[name] = len(whole)
                if len(whole) < count:
                    notes.append(f"{name} has lost {count - len(whole)} of its {count} lines.")
        return notes

    def append(self, name: str, record: Record) -> None:
        """Adds a line to a log; values that are not finite become null."""
        line = json.dumps(finite(record), allow_nan=False) + "\n"
        with self.one_sentence():
            self._logs[name].write(line.encode())
            self._logs[name].flush()
        self.lines[name] += 1

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint, after what the logs hold by then."""
        folder = self.path / "checkpoints"
        with self.one_sentence():
            for file in self._logs.values():
                os.fsync(file.fileno())
            if name not in self._good:  # a damaged one must not displace the one before it
                discard_damaged(folder / name)
            write_checkpoint(folder, name, checkpoint)
        self._good.add(name)
        self._step = checkpoint.step

    def undo(self) -> None:
        """Removes the files of a run that failed before it began, and the folder if it is empty."""
        with contextlib.suppress(OSError):
            (self.path / "config.toml").unlink()  # first: without it the folder is no run
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
            for name in (*LOGS, "environment.json", ".lock"):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def close(self) -> None:
        """Lets the folder go."""
        for file in self._logs.values():
            with contextlib.suppress(OSError):  # a full disk was reported when it was written to
                file.close()
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
    for name in ("config.toml", "checkpoints"):
        if (path / name).exists():
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
    return name in ("environment.json", "tensorboard") or name[0] == "." or name.endswith(".log")


def read_config(path: Path) -> dict[str, Any]:
    """The resolved recipe of a run."""
    file = Path(path) / "config.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path} is not a run folder: it has no config.toml; give the one that --run named."
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}.") from None


def _open_log(path: Path) -> BinaryIO:
    """Not through a link: a run folder from elsewhere must not reach out of itself."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o644), "r+b")


def finite(value: Any) -> Any:
    """A copy with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
