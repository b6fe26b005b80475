"""Files that are there whole or not at all: temporary name, sync, rename."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a reader, or a kill, never meets half of it."""
    # Its own name for each process: another may be writing the same file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        write_synced(temporary, content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file and waits until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
