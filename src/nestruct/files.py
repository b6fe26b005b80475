"""Files that are there whole or not at all: temporary name, sync, rename."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

GZIP = b"\x1f\x8b"  # how such a file starts
BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"  # some editors put it at the start of a file


@contextlib.contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """A binary file that a reader, or a kill, never meets half of.

    It takes its name once all is written, and the mode of the file that it replaces.
    """
    # Its own name for each process: another may be writing the same file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        with _open_synced(temporary) as file:
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(path, temporary)
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a reader, or a kill, never meets half of it."""
    with open_whole(path) as file:
        file.write(content)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file and waits until it is on the disk."""
    with _open_synced(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _open_synced(path: Path) -> Iterator[BinaryIO]:
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
