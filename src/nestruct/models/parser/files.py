"""Files of sentences and a parser: trees to compare with, and trees for what has none."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestruct.data import Sentences, Vocabulary, slices, to_device
from nestruct.data.sentences import UNKNOWN, collate
from nestruct.data.text import TextReader
from nestruct.data.treebank import Reader, Sentence, read_treebank, write_treebank
from nestruct.errors import InputError

if TYPE_CHECKING:
    from nestruct.models.parser import ParserVAE

_AT_ONCE = 256  # sentences
_PATIENCE = 1.0  # seconds that a sentence waits for others to be parsed with


def read_sentences(file: str | Path, vocabulary: Vocabulary, **options: Any) -> Sentences:
    """The sentences of a file with their trees, as one batch; options are those of `Reader`."""
    sentences = read_treebank(file, **options)
    if not sentences:
        raise InputError(f"{file} has no sentences.")
    return collate(sentences, vocabulary, trees=True)


class Parsed(dict[str, int]):
    """How many ``sentences`` and ``words`` were parsed so far.

    Attributes:
        at_work: Whether some are being parsed, not waited for.
        unknown: How many of the words the parser knows nothing of.
    """

    at_work = False
    unknown = 0

    def __str__(self) -> str:
        return ", ".join(f"{n:,} {name if n != 1 else name[:-1]}" for name, n in self.items())


def parse_file(
    model: "ParserVAE",
    reader: Reader | TextReader,
    output: str | Path,
    done: Parsed | None = None,
    show: Callable[[Iterator[Sentence | bytes]], Iterator[Sentence | bytes]] = iter,
) -> Parsed:
    """Writes sentences with the model's trees as they are read; ``-`` is standard output.

    Args:
        model: A parser.
        reader: Knows afterwards of the sentences that could not be read.
        output: Where to.
        done: Is told after every few sentences how far it is, for whoever watches.
        show: What is written of them, if not CoNLL-U.

    Returns:
        How many ``sentences`` and ``words`` were parsed.
    """
    done = Parsed() if done is None else done
    done |= {"sentences": 0, "words": 0}
    write_treebank(output, show(_parsed(model, reader.blocks(), done)))
    return done


def with_trees(
    model: "ParserVAE", sentences: Sequence[Sentence], done: Parsed | None = None
) -> list[Sentence]:
    """Sentences, each with words, with the model's trees.

    Args:
        model: A parser.
        sentences: Their own trees are not looked at.
        done: As that of `parse_file`.
    """
    found, done = list(sentences), Parsed() if done is None else done
    batch = collate(sentences, model.vocabulary, trees=False)
    for rows, part in slices(batch, _AT_ONCE):
        parsed = model.parse(to_device(part, model.vectors.device))
        heads, labels = (numbers.tolist() for numbers in parsed)
        for row, *tree in zip(rows.tolist(), heads, labels, strict=True):
            sentence = sentences[row]
            head, label = (numbers[1 : len(sentence) + 1] for numbers in tree)
            names = [model.vocabulary.labels[number] for number in label]
            found[row] = sentence.with_tree(head, names)
        done["words"] = done.get("words", 0) + int(part.lengths.sum())
        done["sentences"] = done.get("sentences", 0) + len(rows)
        done.unknown += int(((part.words == UNKNOWN) & part.is_word).sum())
    return found


def _parsed(
    model: "ParserVAE", blocks: Iterator[Sentence | bytes], done: Parsed
) -> Iterator[Sentence | bytes]:
    for some in _buckets(blocks):
        places = [k for k, block in enumerate(some) if isinstance(block, Sentence) and block]
        done.at_work = True
        sentences = [block for block in some if isinstance(block, Sentence) and block]
        for place, sentence in zip(places, with_trees(model, sentences, done), strict=True):
            some[place] = sentence
        done.at_work = False
        yield from some


def _buckets(blocks: Iterator[Sentence | bytes]) -> Iterator[list[Sentence | bytes]]:
    """Blocks in lists, as they are read; an error comes after all that was read before it.

    A thread reads, so that what is there can be parsed and written while more is waited for.
    """
    waiting: queue.Queue[Sentence | bytes | Exception | None] = queue.Queue(_AT_ONCE)

    def read() -> None:
        try:
            for block in blocks:
                waiting.put(block)
            waiting.put(None)
        except Exception as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        some: list[Sentence | bytes] = []
        block = waiting.get()
        end = time.monotonic() + _PATIENCE
        while isinstance(block, Sentence | bytes):
            some.append(block)
            if len(some) == _AT_ONCE:
                break
            try:
                block = waiting.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
        if some:
            yield some
        if isinstance(block, Exception):
            raise block
        if block is None:
            return
