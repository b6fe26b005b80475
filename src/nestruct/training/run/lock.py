"""One trainer at a time holds a run folder."""

import fcntl
import os
from pathlib import Path

from nestruct.errors import NestructError


def take_lock(path: Path) -> int:
    """The lock of a folder, as a file descriptor.

    The kernel gives it back however the process ends.

    Raises:
        NestructError: Another trainer has it.
    """
    lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise NestructError(
            f"{path} is in use by another trainer: wait for it, stop it, or choose another folder."
        ) from None
    return lock


def give_lock_back(lock: int) -> None:
    """Lets others have the folder."""
    fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child may hold a copy
    os.close(lock)
