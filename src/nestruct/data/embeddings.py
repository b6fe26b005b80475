"""Word vectors from outside: text files as FastText writes them (``.vec``), and ``.npz``.

A text file may be plain or gzip; it is read line by line, and only the vectors of the words asked
for are kept. Its first line may say how many words and dimensions there are; words have no spaces.
An ``.npz`` file has ``words`` (strings) and ``vectors`` ``[words, size]``.
"""

import contextlib
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from nestruct.errors import InputError
from nestruct.files import BOM, GZIP
from nestruct.untrusted import check_regular, memory

_ZIP = b"PK\x03\x04"
_MOST_LINE = 2**20  # bytes: a word and its numbers
_MOST_RATIO = 20  # of unpacked to packed bytes; text of numbers is packed to a third
_MOST_EACH = 2**24  # bytes that any file may unpack to
_HEADER = re.compile(r"[0-9]{1,18} [0-9]{1,18}")


def read_embeddings(
    path: str | Path, words: Container[str] | None = None
) -> tuple[list[str], Float[np.ndarray, "words size"]]:
    """Words and their vectors, float32, in the order of the file; the first of a repeated word.

    Args:
        path: The file.
        words: Which words to keep; all when None. Words without a vector are simply not there.

    Raises:
        InputError: The file is missing, damaged, or not what its name says; with the line.
    """
    path = Path(path)
    try:
        size = check_regular(path)
        with path.open("rb") as file:
            start = file.read(4)
        if start == _ZIP:
            return _read_archive(path, words)
        with contextlib.ExitStack() as stack:
            text: Any = stack.enter_context(path.open("rb"))
            if start.startswith(GZIP):
                packed: Any = stack.enter_context(gzip.GzipFile(fileobj=text))
                text = io.BufferedReader(packed)  # its lines come several times faster
            return _read_text(_lines(text, path, max(_MOST_EACH, _MOST_RATIO * size)), path, words)
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile):
        raise InputError(f"{path} is damaged or cut short: get it again.") from None
    except MemoryError:
        raise InputError(f"{path} holds more than fits into memory.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except InputError:
        raise
    except ValueError as error:  # a pipe in place of a file, say
        raise InputError(f"{str(path)!r} cannot be read: {error}.") from None


def _lines(file: Any, path: Path, most: int) -> Iterator[bytes]:
    """The lines of a file, no more than so many bytes of them, and none longer than it can be."""
    number = total = 0
    while line := file.readline(_MOST_LINE):
        number += 1
        total += len(line)
        if len(line) == _MOST_LINE:
            raise InputError(f"{path}, line {number}: it is longer than a word and its vector.")
        if total > most:
            raise InputError(f"{path} unpacks to more than {_MOST_RATIO} times its size: refused.")
        yield line


def _read_archive(
    path: Path, words: Container[str] | None
) -> tuple[list[str], Float[np.ndarray, "words size"]]:
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(part.file_size for part in packed.infolist()) > memory() // 2:
                raise MemoryError
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            # What is no array there is one of bytes here.
            known, vectors = (np.asarray(archive[name]) for name in ("words", "vectors"))
    except (KeyError, ValueError, RuntimeError) as error:
        reason = str(error.args[0]) if error.args else "it cannot be read"
        raise InputError(
            f"{path} must hold words (strings) and vectors [words, size]: {reason}."
        ) from None
    if known.dtype.kind != "U" or vectors.dtype.kind not in "fiu":
        raise InputError(f"{path} must hold words as strings and vectors as numbers.")
    if known.ndim != 1 or vectors.shape[:-1] != known.shape or not vectors.shape[-1]:
        raise InputError(
            f"{path} must hold words and vectors [words, size]; it has words of shape "
            f"{known.shape} and vectors of shape {vectors.shape}."
        )
    names = known.tolist()
    first = {word: place for place, word in reversed(list(enumerate(names)))}
    keep = [p for p, w in enumerate(names) if first[w] == p and (words is None or w in words)]
    chosen = vectors[keep].astype(np.float32)
    if not np.isfinite(chosen).all():
        raise InputError(f"{path} has vectors that are not finite: get it again.")
    return [names[p] for p in keep], chosen


def _read_text(
    lines: Iterable[bytes], path: Path, words: Container[str] | None
) -> tuple[list[str], Float[np.ndarray, "words size"]]:
    found: dict[str, np.ndarray] = {}
    size: int | None = None
    promised: int | None = None
    num_lines = 0
    for number, raw in enumerate(lines, 1):
        try:
            text = raw.decode("utf-8").rstrip(" \r\n")
        except UnicodeDecodeError:
            raise InputError(f"{path}, line {number}: it is not UTF-8.") from None
        text = text.removeprefix(BOM) if number == 1 else text
        if not text:
            continue
        if size is None and _HEADER.fullmatch(text):
            promised, size = map(int, text.split(" "))
            if not promised or not size:
                raise InputError(f"{path}, line {number}: it says {text}: there are no vectors.")
            continue
        word, *numbers = text.split(" ")
        size = size or max(1, len(numbers))
        if len(numbers) != size:
            raise InputError(
                f"{path}, line {number}: it must have a word and {size} number{'s' * (size != 1)}, "
                "between spaces."
            )
        num_lines += 1
        if word in found or (words is not None and word not in words):
            continue
        try:
            found[word] = np.array(numbers, dtype=np.float32)
        except ValueError:
            found[word] = np.array([np.nan])
        if not np.isfinite(found[word]).all():
            raise InputError(f"{path}, line {number}: the vector of {word!r} is not of numbers.")
    if size is None:
        raise InputError(f"{path} is empty: it must have a word and its vector on each line.")
    if promised is not None and num_lines != promised:
        raise InputError(
            f"{path} says that it has {promised} words and has {num_lines}: get it again."
        )
    vectors = np.stack(list(found.values())) if found else np.zeros((0, size), np.float32)
    return list(found), vectors
