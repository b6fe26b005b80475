"""Treebanks in CoNLL-U: a streaming reader and writer, plain or gzip.

The format is that of Universal Dependencies (universaldependencies.org/format.html): ten columns
per word, a blank line after each sentence. A sentence keeps the bytes it was read from, so
comments, multiword tokens (``3-4``), empty nodes (``5.1``), line ends and whatever else is in a
file survive; heads and labels are all that is ever changed.
"""

import contextlib
import gzip
import io
import logging
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nestruct.checks import check_count
from nestruct.data.blocks import name_of, read_blocks
from nestruct.errors import InputError
from nestruct.files import BOM, open_whole

log = logging.getLogger("nestruct")

_COLUMNS = 10
_ID, _FORM, _HEAD, _LABEL = 0, 1, 6, 7
_MAX_DIGITS = 9
MAX_WORDS = 1000  # of a sentence, unless more are asked for: a parser takes seconds for so many
_MOST_BYTES = 2**30  # of a file whose sentences are all in memory
_BYTES_PER_WORD = 1024  # that a sentence may take, comments and all
_EXTRA = re.compile(rf"[0-9]{{1,{_MAX_DIGITS}}}[-.][0-9]{{1,{_MAX_DIGITS}}}")
_WITHOUT_BREAKS = re.compile(r"[^\t\r\n\0]*")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a CoNLL-U file.

    Args:
        lines: Its lines as they are in the file, with comments before and a blank line after.
        places: Which of the lines are its syntactic words.
        forms: Those words.
        heads: The head of each word, 0 for the root; empty where heads were not asked for.
        labels: The relation of each word to its head; empty likewise.
    """

    lines: tuple[bytes, ...]
    places: tuple[int, ...]
    forms: tuple[str, ...]
    heads: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.forms)

    def __bytes__(self) -> bytes:
        return b"".join(self.lines)

    def with_tree(self, heads: Sequence[int], labels: Sequence[str]) -> "Sentence":
        """The same sentence with another tree; every other byte stays.

        Example:
            >>> sentence = sentence_of(["Dogs", "bark"], [2, 0], ["nsubj", "root"])
            >>> other = sentence.with_tree([0, 1], ["root", "dep"])
            >>> bytes(other).splitlines()[1].split()[6:8]
            [b'1', b'dep']
        """
        _check_columns(self.forms, heads, labels)
        lines = list(self.lines)
        for place, head, label in zip(self.places, heads, labels, strict=True):
            columns = lines[place].split(b"\t")
            columns[_HEAD], columns[_LABEL] = str(head).encode(), label.encode()
            lines[place] = b"\t".join(columns)
        return Sentence(tuple(lines), self.places, self.forms, tuple(heads), tuple(labels))


def sentence_of(forms: Sequence[str], heads: Sequence[int], labels: Sequence[str]) -> Sentence:
    """A sentence from its words and their tree."""
    _check_columns(forms, heads, labels)
    rows = zip(range(1, len(forms) + 1), forms, heads, labels, strict=True)
    lines = [f"{k}\t{form}\t_\t_\t_\t_\t{head}\t{label}\t_\t_\n" for k, form, head, label in rows]
    encoded = (*(line.encode() for line in lines), b"\n")
    places = tuple(range(len(lines)))
    return Sentence(encoded, places, tuple(forms), tuple(heads), tuple(labels))


class Reader:
    """Sentences of a CoNLL-U file, one after the other, as they are read.

    Args:
        source: A path (plain or gzip, whatever its name), or an open binary file.
        trees: Whether every sentence must have a tree. Without, heads and labels are not looked at.
        single_root: Whether that tree must have exactly one word below the root.
        skip_bad: Whether a malformed sentence is passed over and counted instead of an error.
        max_words: A sentence with more words is malformed, and so is one that takes more than 1 kB
            for each of so many words. No more than that is in memory at a time.

    Attributes:
        num_bad: Malformed sentences so far; each reading counts from 0.
        first_bad: What was wrong with the first of them.

    Raises:
        InputError: While reading, at the first malformed sentence: file, line and what is wrong.

    Example:
        >>> import io
        >>> file = io.BytesIO(bytes(sentence_of(["Dogs", "bark"], [2, 0], ["nsubj", "root"])))
        >>> [sentence.heads for sentence in Reader(file)]
        [(2, 0)]
    """

    def __init__(
        self,
        source: str | Path | BinaryIO,
        *,
        trees: bool = True,
        single_root: bool = True,
        skip_bad: bool = False,
        max_words: int = MAX_WORDS,
    ) -> None:
        self.source, self.trees, self.single_root = source, trees, single_root
        self.skip_bad = skip_bad
        self.max_words = check_count("Reader", "max_words", max_words, 1)
        self.num_bad = 0
        self.first_bad: str | None = None
        if isinstance(source, io.TextIOBase):
            raise InputError(
                f"Reader: {name_of(source)} is a text stream; open it as a binary one."
            )

    def __iter__(self) -> Iterator[Sentence]:
        return (block for block in self.blocks() if isinstance(block, Sentence))

    def blocks(self) -> Iterator[Sentence | bytes]:
        """Sentences, and the bytes of those that were passed over: all that the file has.

        The bytes of a sentence that is too large come in several pieces.
        """
        self.num_bad, self.first_bad = 0, None
        name, most = name_of(self.source), self.max_words * _BYTES_PER_WORD
        for number, lines, part in read_blocks(self.source, most):
            if part == "rest":
                yield b"".join(lines)
                continue
            try:
                if part == "start":
                    raise _BadLineError(0, f"the sentence has more than {most // 1024:,} kB")
                yield _parse(lines, self.trees, self.single_root, self.max_words)
            except _BadLineError as error:
                reason = f"{name}, line {number + error.place}: {error}."
                if not self.skip_bad:
                    raise InputError(reason) from None
                self.num_bad += 1
                self.first_bad = self.first_bad or reason
                yield b"".join(lines)


def read_treebank(path: str | Path, **options: Any) -> list[Sentence]:
    """All sentences with words of a file; options are those of `Reader`.

    Of malformed ones that are left out, a warning says how many.
    """
    reader = Reader(path, **options)
    sentences, size = [], 0
    for sentence in reader:
        size += sum(map(len, sentence.lines))
        if size > _MOST_BYTES:
            raise InputError(f"{path} has more than 1 GB of sentences: give a part of it.")
        if len(sentence):
            sentences.append(sentence)
    if reader.num_bad:
        count, first = reader.num_bad, reader.first_bad
        log.warning("Left out: malformed sentences, %d of them, the first: %s", count, first)
    return sentences


def write_treebank(target: str | Path, sentences: Iterable[Sentence | bytes]) -> int:
    """Writes sentences as they come and returns how many; ``-`` is standard output.

    A name that ends in ``.gz`` is compressed. A regular file appears under its name when it is
    complete, so it may be the one that the sentences are read from.
    """
    count = 0
    with open_target(target) as file:
        for sentence in sentences:
            file.write(bytes(sentence))
            if not isinstance(file, gzip.GzipFile):  # which would be the longer for it
                file.flush()
            count += 1
    return count


@contextlib.contextmanager
def open_target(target: str | Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """A binary file to write; a regular one takes its name once all is written.

    Whatever else has the name (a pipe, a device) is written into, and a link stays a link.
    """
    if str(target) == "-":
        if sys.stdout is None:
            raise InputError("Standard output is closed: name a file to write.")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if not str(target):
        raise InputError("The file to write has an empty name: give one, or - for standard output.")
    path = Path(target)
    with contextlib.ExitStack() as stack:
        try:
            if path.exists() and not path.is_file():
                file: BinaryIO = stack.enter_context(path.open("wb"))
            else:
                file = stack.enter_context(open_whole(Path(os.path.realpath(path))))
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{target} cannot be written: {reason}.") from None
        if path.suffix == ".gz":  # without name and time in it: the same text, the same bytes
            yield stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        else:
            yield file


def is_punctuation(form: str) -> bool:
    """Whether a word is made of Unicode punctuation only: what attachment scores leave out.

    As in NLTK's evaluator, which the published scores come from; so ``$`` and ``+`` count.
    """
    return all(unicodedata.category(character).startswith("P") for character in form)


def _check_columns(forms: Sequence[str], heads: Sequence[int], labels: Sequence[str]) -> None:
    """Raises unless these can be written and read again; whether heads are a tree is not asked."""
    if not len(forms) == len(heads) == len(labels):
        raise InputError(
            f"A sentence needs as many heads and labels as words, {len(forms)}, "
            f"got {len(heads)} and {len(labels)}."
        )
    for text in (*forms, *labels):
        if not _WITHOUT_BREAKS.fullmatch(text):
            raise InputError(
                f"A form or label must have no NUL, no tabs or line ends in it, got {text!r}."
            )
    if not all(forms):
        raise InputError("A form must not be empty.")
    for head in heads:
        if not 0 <= head <= len(forms):
            raise InputError(f"A head must be from 0 to {len(forms)}, the words, got {head!r}.")


class _BadLineError(Exception):
    """What is wrong with a line, as the end of a sentence that starts with file and line."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place


def _parse(lines: list[bytes], trees: bool, single_root: bool, max_words: int) -> Sentence:
    places: list[int] = []
    forms: list[str] = []
    heads: list[int] = []
    labels: list[str] = []
    extras: list[tuple[int, str]] = []  # multiword tokens and empty nodes
    for place, raw in enumerate(lines):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            bad = error.object[error.start]
            raise _BadLineError(place, f"it is not UTF-8 (byte 0x{bad:02x})") from None
        line = line.removeprefix(BOM).rstrip("\r\n")
        if not line.strip() or line.startswith("#"):
            continue
        if "\r" in line or "\0" in line:
            raise _BadLineError(place, "it has a carriage return or a NUL in a column")
        columns = line.split("\t")
        if len(columns) != _COLUMNS:
            found = f"{len(columns)} column{'s' * (len(columns) != 1)}"
            raise _BadLineError(place, f"it has {found} and must have {_COLUMNS}, between tabs")
        number = columns[_ID]
        if "-" in number or "." in number:
            if not _EXTRA.fullmatch(number):
                reason = f"the ID {_short(number)!r} is neither a word's nor like 3-4 or 3.1"
                raise _BadLineError(place, reason)
            extras.append((place, number))
            continue
        if number != str(len(places) + 1):
            reason = f"the word's ID is {_short(number)!r} and must be {len(places) + 1}"
            raise _BadLineError(place, reason)
        if not columns[_FORM]:
            raise _BadLineError(place, "the word's FORM is empty")
        if len(places) == max_words:
            reason = f"the sentence has more than {max_words:,} words (max_words)"
            raise _BadLineError(place, reason)
        places.append(place)
        forms.append(columns[_FORM])
        if trees:
            heads.append(_head(columns[_HEAD], place))
            labels.append(columns[_LABEL])
    _check_ranges(extras, len(places))
    if trees and places:
        _check_tree(heads, places, single_root)
    return Sentence(tuple(lines), tuple(places), tuple(forms), tuple(heads), tuple(labels))


def _check_ranges(extras: list[tuple[int, str]], num_words: int) -> None:
    for place, number in extras:
        first, dash, last = number.partition("-")
        if dash and not 1 <= int(first) <= int(last) <= num_words:
            reason = f"the ID {number!r} is no range of words from 1 to {num_words}"
            raise _BadLineError(place, reason)


def _head(text: str, place: int) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _BadLineError(place, f"the HEAD is {_short(text)!r} and must be a number")
    if len(text) > _MAX_DIGITS:
        raise _BadLineError(place, f"the HEAD {_short(text)} is out of range")
    return int(text)


def _short(text: str) -> str:
    """What a message shows of a column."""
    return text if len(text) <= 40 else f"{text[:18]}...{text[-18:]}"


def _check_tree(heads: list[int], places: list[int], single_root: bool) -> None:
    for place, head in zip(places, heads, strict=True):
        if head > len(heads):
            words = f"{len(heads)} word{'s' * (len(heads) != 1)}"
            reason = f"the HEAD {head} is out of range: the sentence has {words}"
            raise _BadLineError(place, reason)
    roots = [place for place, head in zip(places, heads, strict=True) if head == 0]
    if single_root and len(roots) > 1:
        raise _BadLineError(roots[1], "the sentence has a second root: one HEAD must be 0")
    reached = [True] + [False] * len(heads)  # whether a word is known to hang below the root
    for start in range(1, len(heads) + 1):
        path, word = set(), start
        while not reached[word]:
            if word in path:
                reason = f"word {word} is in a cycle of heads"
                reason += "" if roots else ", and the sentence has no root: no HEAD is 0"
                raise _BadLineError(places[word - 1], reason)
            path.add(word)
            word = heads[word - 1]
        for word in path:
            reached[word] = True
