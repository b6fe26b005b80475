"""Writing to disk: files that are there whole or not at all, and names that stay.

Content is on the disk once its file was synced, a name once its folder was. A run writes by these
functions only. ``tests/test_files.py`` records their calls, and resumes from all that a power loss
can leave after each of them.
"""

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
    with _whole(path) as temporary, os.fdopen(_create(temporary), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a reader, or a kill, never meets half of it."""
    with _whole(path) as temporary:
        write_synced(temporary, content)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file and waits until its content is on the disk; its name may not be yet."""
    descriptor = _create(path)
    try:
        _write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, where they are not there; they stay."""
    if path.is_dir():
        return
    if not path.parent.exists():
        make_folder(path.parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not path.is_dir():  # else someone else was faster
            raise
    sync_folder(path.parent)


def move(path: Path, target: Path) -> None:
    """Gives a file or a folder another name, in place of a file that has it; not synced."""
    os.replace(path, target)


def remove_folder(path: Path) -> None:
    """Removes a folder and all that is in it, where it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def remove_file(path: Path) -> None:
    """Removes a file, or a link, where it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class GrowingFile:
    """A file that grows at its end; made where it is not there, and not opened through a link.

    Args:
        path: Its name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = self._open()

    def read(self) -> bytes:
        """All that is in it, also once its name is gone."""
        with open(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            return file.read()

    def append(self, content: bytes) -> None:
        """Adds to its end."""
        _write(self._descriptor, content)

    def cut(self, size: int) -> None:
        """Keeps the first bytes."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Waits until its content is on the disk."""
        os.fsync(self._descriptor)

    def put_back(self) -> bool:
        """Writes the file again if it was deleted or replaced; whether that was so."""
        if has_name(self._descriptor, self.path):
            return False
        content = self.read()
        self.close()
        write_whole(self.path, content)
        self._descriptor = self._open()
        return True

    def close(self) -> None:
        """Lets it go."""
        os.close(self._descriptor)

    def _open(self) -> int:
        # No link: a run folder from elsewhere must not reach out of itself.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        return os.open(self.path, flags, 0o644)


def has_name(descriptor: int, path: Path) -> bool:
    """True if a name still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A temporary name, whose file takes the name ``path`` when the block is done."""
    # Its own name for each process: another may be writing the same file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        os.close(_create(temporary))
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, temporary)
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
