"""A text file, plain or gzip, in blocks that a blank line ends, as they are read.

A file may come from a stranger. No more than one block is in memory at a time, and of a block that
is too large no more than its limit, however small the gzip file is that it comes from.
"""

import contextlib
import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from nestruct.errors import InputError
from nestruct.files import GZIP

_PIECE = 2**16  # bytes of a line that are read at once


class Block(NamedTuple):
    """Lines of a file.

    Args:
        number: Of the first of its lines, from 1 on.
        lines: With their line ends; blank lines before and one after.
        part: All of a block; or, where it is larger than the limit, its start, and then what is
            left of it, piece by piece. Very many blank lines are what is left of nothing.
    """

    number: int
    lines: list[bytes]
    part: str  # all, start or rest


def read_blocks(source: Any, most: int) -> Iterator[Block]:
    """The blocks of a file: all of its bytes, in order.

    Args:
        source: A path, an open binary file, or ``-`` for standard input.
        most: Bytes that a block may have.

    Raises:
        InputError: The file cannot be read.
    """
    lines: list[bytes] = []
    first = number = 1
    size, has_text, is_new, is_large = 0, False, True, False
    for piece in read_pieces(source):
        goes_on, is_new = not is_new, piece.endswith(b"\n")
        is_blank = not goes_on and not piece.strip()
        if goes_on and lines:
            lines[-1] += piece
        else:
            lines.append(piece)
        number += is_new
        size += len(piece)
        has_text |= not is_blank
        ends = is_blank and is_new and has_text  # at once: the next line may be long in coming
        if ends or size > (_PIECE if is_large else most):
            is_whole = ends and not is_large
            part = "all" if is_whole else "start" if has_text and not is_large else "rest"
            yield Block(first, lines, part)
            is_large = has_text and not ends
            lines, size, has_text, first = [], 0, is_large, number
    if lines:
        yield Block(first, lines, "rest" if is_large else "all")


def name_of(source: Any) -> str:
    """What a file is called in a message."""
    if source == "-":
        return "standard input"
    if isinstance(source, str | Path):
        return str(source) or "''"
    return str(getattr(source, "name", "file"))


def read_pieces(source: Any) -> Iterator[bytes]:
    """The lines of a file; long ones in pieces, each but the last without a line end.

    Args:
        source: As that of `read_blocks`.
    """
    name, number = name_of(source), 0
    try:
        with contextlib.ExitStack() as stack:
            if source == "-":
                source = _standard_input()
            elif isinstance(source, str | Path):
                source = stack.enter_context(open(source, "rb"))
            if _is_packed(source):
                source = stack.enter_context(gzip.GzipFile(fileobj=source))
            while piece := source.readline(_PIECE):
                yield piece
                number += piece.endswith(b"\n")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(
            f"{name} is not a whole gzip file: it can be read up to line {number}; get it again."
        ) from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}.") from None


def _standard_input() -> BinaryIO:
    """A file of its own: where a thread still reads ``sys.stdin`` at the end, Python aborts."""
    if sys.stdin is None:
        raise InputError("Standard input is closed: name a file to read.")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _is_packed(file: Any) -> bool:
    if hasattr(file, "peek"):
        return file.peek(2)[:2] == GZIP
    start = file.read(2)  # of what lies in memory
    file.seek(0)
    return start == GZIP
