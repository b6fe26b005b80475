"""Plain text as sentences: one sentence a line, tokens between blanks, or found by `tokenise`.

A sentence that is read here is one of CoNLL-U: its number is that of its line, and where no blank
follows a token, ``SpaceAfter=No`` says so.
"""

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from nestruct.checks import check_choice, check_count
from nestruct.data.blocks import name_of, read_pieces
from nestruct.data.treebank import MAX_WORDS, Sentence
from nestruct.errors import InputError
from nestruct.files import BOM

_BYTES_PER_WORD = 1024  # that a line may take
_BLANKS = re.compile(r"[ \t]+")
_INNER = "-'\N{RIGHT SINGLE QUOTATION MARK}\N{MIDDLE DOT}"  # inside of a word: well-known, l'home
_IN_NUMBERS = ".,:/"  # between digits: 3.14, 10:30
_JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"


def tokenise(text: str) -> list[str]:
    """The words and punctuation marks of a text.

    A word is a run of letters, digits and accents, in which a hyphen, an apostrophe or a middle dot
    may stand between two of them, and ``. , : /`` between two digits. Whatever else is no blank is
    a token by itself. Clitics stay with their words, and abbreviations lose their full stop: a
    treebank's own tokeniser may do better.

    Example:
        >>> tokenise("It's 3.5 km, isn't it?")
        ["It's", '3.5', 'km', ',', "isn't", 'it', '?']
    """
    tokens, start, end = [], 0, len(text)
    while start < end:
        if text[start].isspace():
            start += 1
            continue
        stop = start + 1
        if _is_in_word(text[start]):
            while stop < end and (_is_in_word(text[stop]) or _joins(text, stop)):
                stop += 1
        tokens.append(text[start:stop])
        start = stop
    return tokens


def check_token(token: str) -> str | None:
    """What is wrong with a token, as the end of a sentence; None where it can be parsed."""
    if not token or token.isspace():
        return "a word is blank"
    for character in token:
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            return f"it has the control character U+{ord(character):04X}"
    return None


class TextReader:
    """Sentences of a plain text, one a line, as they are read. Empty lines are passed over.

    Args:
        source: A path (plain or gzip), an open binary file, or ``-`` for standard input.
        split: ``blanks``: tokens stand between spaces and tabs; ``tokenise``: that function finds
            them.
        skip_bad: Whether a line that cannot be read is passed over and counted instead of an error.
        max_words: A longer sentence is a bad line, and so is one that takes more than 1 kB for each
            of so many words.

    Attributes:
        num_bad: Bad lines so far; each reading counts from 0.
        first_bad: What was wrong with the first of them.

    Raises:
        InputError: While reading, at the first bad line: file, line and what is wrong.

    Example:
        >>> import io
        >>> file = io.BytesIO(b"The dog barks\\n\\nIt runs\\n")
        >>> [sentence.forms for sentence in TextReader(file)]
        [('The', 'dog', 'barks'), ('It', 'runs')]
    """

    def __init__(
        self,
        source: str | Path | BinaryIO,
        *,
        split: str = "blanks",
        skip_bad: bool = False,
        max_words: int = MAX_WORDS,
    ) -> None:
        check_choice("TextReader: split", split, ("blanks", "tokenise"))
        self.source, self.split, self.skip_bad = source, split, skip_bad
        self.max_words = check_count("TextReader", "max_words", max_words, 1)
        self.num_bad = 0
        self.first_bad: str | None = None

    def __iter__(self) -> Iterator[Sentence]:
        return self.blocks()

    def blocks(self) -> Iterator[Sentence]:
        """The sentences: a text has nothing else to keep."""
        self.num_bad, self.first_bad = 0, None
        name = name_of(self.source)
        for number, line in enumerate(_lines(self.source, self.max_words * _BYTES_PER_WORD), 1):
            try:
                sentence = self._read(number, line)
            except _BadLineError as error:
                reason = f"{name}, line {number}: {error}."
                if not self.skip_bad:
                    raise InputError(reason) from None
                self.num_bad += 1
                self.first_bad = self.first_bad or reason
                continue
            if sentence is not None:
                yield sentence

    def _read(self, number: int, line: bytes | None) -> Sentence | None:
        if line is None:
            raise _BadLineError(f"it has more than {self.max_words:,} kB: one sentence a line")
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise _BadLineError(f"it is not UTF-8 (byte 0x{line[error.start]:02x})") from None
        text = text.removeprefix(BOM) if number == 1 else text
        tokens = tokenise(text) if self.split == "tokenise" else _BLANKS.split(text.strip(" \t"))
        if not any(tokens):
            return None
        if len(tokens) > self.max_words:
            raise _BadLineError(
                f"it has {len(tokens):,} words, more than {self.max_words:,} (max_words); "
                "one sentence a line"
            )
        for token in tokens:
            if reason := check_token(token):
                raise _BadLineError(reason)
        return from_tokens(tokens, number, text)


def from_tokens(tokens: list[str], number: int, text: str) -> Sentence:
    """A sentence without a tree.

    Args:
        tokens: Its words, in order.
        number: Its ``sent_id``.
        text: What they are from: where no blank follows a token there, CoNLL-U says so.
    """
    rows, whole, place = [], "", 0
    for k, token in enumerate(tokens, 1):
        place = text.index(token, place) + len(token)
        glued = k < len(tokens) and text[place : place + 1].strip() != ""
        whole += token if glued or k == len(tokens) else f"{token} "
        rows.append(f"{k}\t{token}" + "\t_" * 7 + f"\t{'SpaceAfter=No' if glued else '_'}\n")
    lines = [f"# sent_id = {number}\n", f"# text = {whole}\n", *rows, "\n"]
    places = tuple(range(2, 2 + len(tokens)))
    return Sentence(tuple(line.encode() for line in lines), places, tuple(tokens))


class _BadLineError(Exception):
    """What is wrong with a line, as the end of a sentence that starts with file and line."""


def _lines(source: str | Path | BinaryIO, most: int) -> Iterator[bytes | None]:
    """The lines of a file; None in place of one that is longer than allowed."""
    line: bytes | None = b""
    whole = True
    for piece in read_pieces(source):
        line = piece if whole else None if line is None else line + piece
        whole = piece.endswith(b"\n")
        if line is not None and len(line) > most:
            line = None
        if whole:
            yield line
    if not whole:
        yield line


def _is_in_word(character: str) -> bool:
    is_accent = unicodedata.category(character)[0] == "M"
    return character.isalnum() or is_accent or character in _JOINERS or character == "_"


def _joins(text: str, place: int) -> bool:
    """True if what stands between two characters of a word belongs to it."""
    before, after = text[place - 1], text[place + 1 : place + 2]
    if text[place] in _INNER:
        return after != "" and _is_in_word(after) and _is_in_word(before)
    return text[place] in _IN_NUMBERS and before.isdigit() and after.isdigit()
