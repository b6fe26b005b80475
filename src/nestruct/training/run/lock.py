"""One trainer at a time holds a run folder."""

import fcntl
import os
import time
from pathlib import Path

from nestruct.errors import NestructError
from nestruct.files import has_name

FILE = ".lock"

_LOOK = 0.1  # seconds between tries


def take_lock(path: Path, patience: float = 0.0) -> int:
    """The lock of a folder, as a file descriptor.

    The kernel gives it back however the process ends.

    Args:
        path: The folder.
        patience: Seconds to wait for a trainer that has it.

    Raises:
        NestructError: Another trainer has it.
    """
    deadline = time.monotonic() + patience
    lock = os.open(path / FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            if time.monotonic() < deadline:
                time.sleep(_LOOK)
                continue
            os.close(lock)
            raise NestructError(
                f"{path} is in use by another trainer: wait for it, stop it, or choose another "
                "folder."
            ) from None


def keep_lock(lock: int, path: Path) -> int:
    """The same lock, or a new one where its file was deleted and another trainer may have come.

    Raises:
        NestructError: Another trainer has the folder now.
    """
    if has_name(lock, path / FILE):
        return lock
    again = take_lock(path)
    give_lock_back(lock)
    return again


def give_lock_back(lock: int) -> None:
    """Lets others have the folder."""
    fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child may hold a copy
    os.close(lock)
