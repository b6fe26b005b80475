"""A run on disk: ``config.toml``, ``environment.json``, ``metrics.jsonl``, ``structures.jsonl`` and
``checkpoints/``. One trainer at a time holds it."""

import contextlib
import fcntl
import itertools
import json
import math
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import tomli_w

from nestruct.errors import InputError, NestructError
from nestruct.files import write_whole
from nestruct.training.checkpoint import Checkpoint, first_good, write_checkpoint

Record = dict[str, Any]  # one line of a log
LOGS = ("metrics.jsonl", "structures.jsonl")


class RunFolder:
    """A run folder that this process holds; use `create` or `reopen`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.step: int | None = None  # of the newest checkpoint
        self._logs: dict[str, BinaryIO] = {}
        self.lines: dict[str, int] = {}  # that each log has
        self._lock = _lock(path)

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], environment: dict[str, Any]) -> "RunFolder":
        """Starts a run in a new folder, or in one that holds no run yet."""
        check_is_free(path)
        with _one_sentence(path):
            path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        try:
            check_is_free(path)  # someone else may have been faster
            with _one_sentence(path):
                text = json.dumps(environment, indent=1) + "\n"
                write_whole(path / "environment.json", text.encode())
                # Last, because this file is what makes the folder a run.
                write_whole(path / "config.toml", tomli_w.dumps(config).encode())
            folder.cut(dict.fromkeys(LOGS, 0))
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        """Takes an existing run up again."""
        read_config(path)
        return cls(path)

    def append(self, name: str, record: Record) -> None:
        """Adds a line to a log; values that are not finite become null."""
        line = json.dumps(_finite(record), allow_nan=False) + "\n"
        with _one_sentence(self.path, self.step):
            self._logs[name].write(line.encode())
            self._logs[name].flush()
        self.lines[name] += 1

    def cut(self, lines: dict[str, int]) -> None:
        """Shortens the logs to so many lines, and opens them for more."""
        self._close_logs()
        for name, count in lines.items():
            with _one_sentence(self.path, self.step):
                file = (self.path / name).open("a+b")
                self._logs[name] = file
                file.seek(0)
                self.lines[name] = sum(1 for _ in itertools.islice(file, count))
                file.truncate(file.tell())

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint, after what the logs hold by then."""
        with _one_sentence(self.path, self.step):
            for file in self._logs.values():
                os.fsync(file.fileno())
            write_checkpoint(self.path / "checkpoints", name, checkpoint)
        self.step = checkpoint.step

    def close(self) -> None:
        """Lets the folder go."""
        self._close_logs()
        os.close(self._lock)

    def _close_logs(self) -> None:
        for file in self._logs.values():
            with contextlib.suppress(OSError):  # a full disk was reported when it was written to
                file.close()
        self._logs = {}


def check_is_free(path: Path) -> None:
    """Raises where a new run would overwrite one."""
    for name in ("config.toml", "checkpoints"):
        if (path / name).exists():
            raise InputError(
                f"{path} already holds a run: continue it with `nestruct train --resume {path}`, "
                "or choose another folder."
            )


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


def newest_checkpoint(path: Path) -> tuple[Checkpoint | None, list[str]]:
    """What a run goes on from, and which checkpoints were refused."""
    return first_good(Path(path) / "checkpoints", ["last", "best"])


def _lock(path: Path) -> int:
    """The kernel gives the lock back however the process ends."""
    with _one_sentence(path):
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise NestructError(
            f"{path} is in use by another trainer: wait for it, stop it, or choose another folder."
        ) from None
    return lock


@contextlib.contextmanager
def _one_sentence(path: Path, step: int | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        file = "" if error.filename is None else f" ({error.filename})"
        safe = (
            ""
            if step is None
            else f" The checkpoint of step {step} is intact: make room, then continue with "
            f"`nestruct train --resume {path}`."
        )
        raise NestructError(f"Cannot write to {path}: {error.strerror}{file}.{safe}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
