"""Files that a stranger may have written: regular ones, bounded in size, nesting and numbers.

A run folder, an archive, a recipe or a cache may come from anywhere. Its text is read through this
module, which says in a ValueError what it will not take. A pipe in place of a file would never end,
a file with holes can be larger than memory, and brackets in brackets exhaust the stack.
"""

import errno
import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

MOST_BYTES = 64 * 2**20  # of a JSON document, or of a line of a log
MOST_LOG_BYTES = 512 * 2**20
MOST_TOML_BYTES = 2**18
MOST_DOTS = 100  # in a line of TOML: time to read a dotted key grows with the square of its parts
DEEPEST = 64  # levels of brackets in brackets
_LARGEST = 2**63 - 1  # of whole numbers: more than that is none that we have written


def read_file(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        ValueError: It is no regular file, or larger than `most` bytes.
    """
    # Without O_NONBLOCK the mere opening of a pipe waits for someone who writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        size = _check_file(descriptor, path, most)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(size)
    finally:
        os.close(descriptor)


def check_regular(path: str | Path) -> int:
    """The size of a regular file; raises ValueError where it is something else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return _check_file(descriptor, path)
    finally:
        os.close(descriptor)


def memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def parse_json(text: bytes) -> Any:
    """What JSON text says; NaN and Infinity, which JSON does not have, are None.

    Raises:
        ValueError: It is no JSON, or nested too deeply, or has a number that is too large.

    Example:
        >>> parse_json(b'{"step": 3, "loss": NaN}')
        {'step': 3, 'loss': None}
    """
    if len(text) > MOST_BYTES:
        raise ValueError(_too_large(MOST_BYTES))
    try:
        value = json.loads(text.decode(), parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    _check_values(value)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """What TOML text says.

    Raises:
        ValueError: It is no TOML, or too long, or nested too deeply, or has too large a number.
    """
    if len(text) > MOST_TOML_BYTES:
        raise ValueError(_too_large(MOST_TOML_BYTES))
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MOST_DOTS:
            raise ValueError(f"line {number} has more than {MOST_DOTS} dots")
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    _check_values(value)
    return value


def read_toml(path: str | Path) -> dict[str, Any]:
    """What a TOML file says; raises as `read_file` and `parse_toml` do."""
    return parse_toml(read_file(path, MOST_TOML_BYTES).decode())


def _check_file(descriptor: int, path: str | Path, most: int | None = None) -> int:
    """The size of a file."""
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a regular file")
    if most is not None and found.st_size > most:
        raise ValueError(_too_large(most))
    return found.st_size


def _check_values(value: Any) -> None:
    """Raises where lists and tables are nested too deeply, or a whole number is too large."""
    level: list[Any] = [[value]]
    for _ in range(DEEPEST + 1):
        below: list[Any] = []
        for item in level:
            below += item.values() if isinstance(item, dict) else item
        if any(type(item) is int and abs(item) > _LARGEST for item in below):
            raise ValueError("a whole number in it is too large")
        level = [item for item in below if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError(_too_deep())


def _too_deep() -> str:
    return f"it is nested too deeply, in more than {DEEPEST} levels"


def _too_large(most: int) -> str:
    size = f"{most // 2**20} MB" if most >= 2**20 else f"{most // 2**10} kB"
    return f"it is larger than {size}"
