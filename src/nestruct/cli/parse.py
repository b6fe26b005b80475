"""``nestruct parse``: dependency trees for a CoNLL-U file."""

import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from nestruct.cli.arguments import Flag, RunFolder
from nestruct.data import slices, to_device
from nestruct.data.sentences import collate
from nestruct.data.treebank import Reader, Sentence, write_treebank
from nestruct.errors import InputError
from nestruct.models import ParserVAE
from nestruct.training import load

_AT_ONCE = 256  # sentences
_PATIENCE = 1.0  # seconds that a sentence waits for others to be parsed with


def parse(
    run: RunFolder,
    file: Annotated[str, Positional, arg(metavar="FILE.conllu")],
    /,
    *,
    output: Annotated[str, arg(aliases=["-o"], metavar="OUT")] = "-",
    skip_bad: Flag = False,
    checkpoint: Literal["best", "last"] = "best",
    device: Annotated[str, arg(metavar="D")] = "auto",
) -> int:
    """Parse a CoNLL-U file with the model of a run: heads and labels are set, all else is kept.

    Sentences are written as they come. Neither the run's data nor NESTRUCT_DATA are needed.

    Args:
        run: A run folder.
        file: What to parse, plain or gzip; - is standard input.
        output: Where to; - is standard output, a name that ends in .gz is compressed.
        skip_bad: Pass malformed sentences through as they are, and count them.
        checkpoint: Which parameters: best on validation, or last.
        device: auto, cpu, cuda or cuda:1.
    """
    model = load(run, checkpoint=checkpoint, device=device)
    if not isinstance(model, ParserVAE):
        raise InputError(
            f"{run} holds no parser but a {type(model).__name__}; train parser-source."
        )
    reader = Reader(file, trees=False, skip_bad=skip_bad)
    done = {"sentences": 0, "words": 0}
    write_treebank(output, _parsed(model, reader.blocks(), done))
    left = "it is" if reader.num_bad == 1 else "they are"
    bad = f"; {reader.num_bad} malformed left as {left}" if reader.num_bad else ""
    bad += f" ({reader.first_bad.removesuffix('.')})" if reader.first_bad else ""
    counts = ", ".join(f"{n:,} {name if n != 1 else name[:-1]}" for name, n in done.items())
    print(f"Parsed {counts}{bad}.", file=sys.stderr)
    return 0


def _parsed(
    model: ParserVAE, blocks: Iterator[Sentence | bytes], done: dict[str, int]
) -> Iterator[Sentence | bytes]:
    device = model.vectors.device
    for some in _buckets(blocks):
        known = [
            (k, block) for k, block in enumerate(some) if isinstance(block, Sentence) and block
        ]
        batch = collate([sentence for _, sentence in known], model.vocabulary, trees=False)
        for rows, part in slices(batch, _AT_ONCE):
            heads, labels = (found.tolist() for found in model.parse(to_device(part, device)))
            for row, *tree in zip(rows.tolist(), heads, labels, strict=True):
                place, sentence = known[row]
                head, label = (numbers[1 : len(sentence) + 1] for numbers in tree)
                names = [model.vocabulary.labels[number] for number in label]
                some[place] = sentence.with_tree(head, names)
                done["words"] += len(sentence)
        done["sentences"] += len(known)
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
