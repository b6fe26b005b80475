"""A run folder reaches nothing outside of itself: what training would write through is checked.

A folder from a stranger may hold a link in place of a file, which leads to a file of yours, or a
pipe, at which a program waits for ever. Links are fine for reading, and above the run folder.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from nestruct.errors import InputError
from nestruct.training.run.state import LOGS
from nestruct.untrusted import MOST_LOG_BYTES

_FILES = {"config.toml", "environment.json", "details.json", ".lock", *LOGS}
_FOLDERS = {"checkpoints", "tensorboard"}


def check_reach(run: Path) -> None:
    """Raises where a file or folder that a training writes is a link, or something else.

    Args:
        run: The run folder; one that is not there reaches nothing.
    """
    for path, is_folder in _written(run):
        found = path.lstat()
        is_right = (stat.S_ISDIR if is_folder else stat.S_ISREG)(found.st_mode)
        if path.name in LOGS and found.st_size > MOST_LOG_BYTES:
            raise InputError(f"{path} is larger than {MOST_LOG_BYTES // 2**20} MB: cut it.")
        grows = path.name in LOGS or path.name.endswith(".writing")
        is_shared = grows and not is_folder and found.st_nlink > 1  # what is cut here is cut there
        if is_shared or not is_right:
            is_link = is_shared or stat.S_ISLNK(found.st_mode)
            what = "a link" if is_link else f"no {'folder' if is_folder else 'file'}"
            raise InputError(
                f"Cannot write to {run}: {path.relative_to(run)} is {what}; put what it stands for "
                "in its place, or remove it (the run folder itself may be a link)."
            )


def _written(run: Path) -> Iterator[tuple[Path, bool]]:
    """What is there of what a training writes, and whether it must be a folder."""
    for entry in _entries(run):
        if entry.name in _FOLDERS:
            yield entry, True
            inside = entry.name == "checkpoints"
            yield from ((inner, inside) for inner in _entries(entry))
        elif entry.name in _FILES or entry.name.endswith(".writing"):
            yield entry, False


def _entries(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
