"""``nestruct parse``: dependency trees for sentences, from CoNLL-U or from plain text."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from nestruct import plots
from nestruct.cli.arguments import Flag, MaxWords, RunFolder, Trust, UsageError
from nestruct.cli.life import signs_of_life
from nestruct.data import TextReader, find_vectors
from nestruct.data.sentences import UNKNOWN, normalise
from nestruct.data.treebank import MAX_WORDS, Reader, Sentence
from nestruct.errors import InputError
from nestruct.models import ParserVAE
from nestruct.models.parser.files import Parsed, parse_file
from nestruct.models.parser.words import describe
from nestruct.training import load, read_config

_MOST_DRAWN = 200  # sentences in one picture
Blocks = Iterator[Sentence | bytes]


def parse(
    run: RunFolder,
    file: Annotated[
        str | None, Positional, arg(metavar="[FILE.conllu]", help_behavior_hint="")
    ] = None,
    /,
    *,
    text: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    tokenise: Flag = False,
    vectors: Annotated[str, arg(metavar="FILE|auto|none")] = "auto",
    format: Literal["conllu", "tree", "svg"] = "conllu",
    output: Annotated[str, arg(aliases=["-o"], metavar="OUT")] = "-",
    skip_bad: Flag = False,
    max_words: MaxWords = MAX_WORDS,
    checkpoint: Literal["best", "last"] = "best",
    device: Annotated[str, arg(metavar="D")] = "auto",
    trust: Trust = False,
) -> int:
    """Parse sentences with the model of a run: text in, or CoNLL-U; trees out.

    Of a CoNLL-U file heads and labels are set, and all else is kept. Sentences are written as they
    come. The run's data are not needed. Words that training did not know are looked up in the word
    vectors that it was trained with, where those are at hand.

    Args:
        run: A run folder.
        file: What to parse: CoNLL-U, plain or gzip; - is standard input.
        text: Parse plain text instead: a sentence a line, words between blanks; - is standard
            input.
        tokenise: Find words and punctuation marks in the text, where no blanks are between them.
        vectors: Word vectors for words that training did not know; auto: those of the run's
            language in NESTRUCT_DATA; none: such words are unknown.
        format: CoNLL-U, drawings in text, or one SVG picture.
        output: Where to; - is standard output, a name that ends in .gz is compressed.
        skip_bad: Pass over malformed sentences, and count them; those of CoNLL-U are written as
            they are.
        max_words: A longer sentence is a malformed one.
        checkpoint: Which parameters: best on validation, or last.
        device: auto, cpu, cuda or cuda:1.
    """
    source = _source(file, text, tokenise)
    model = load(run, checkpoint=checkpoint, device=device, trust=trust)
    if not isinstance(model, ParserVAE):
        raise InputError(
            f"{run} holds no parser but a {type(model).__name__}; train parser-source."
        )

    def read(skip_bad: bool) -> Reader | TextReader:
        if text is None:
            return Reader(source, trees=False, skip_bad=skip_bad, max_words=max_words)
        split = "tokenise" if tokenise else "blanks"
        return TextReader(source, split=split, skip_bad=skip_bad, max_words=max_words)

    if vectors != "none":
        _learn_words(model, run, vectors, source, read(True))
    reader, done = read(skip_bad), Parsed()
    with signs_of_life(lambda: f"Parsed {done} so far." if done.at_work else None):
        parse_file(model, reader, output, done, _shown(model, format))
    _say(done, reader, left=text is None and format == "conllu")
    return 0


def _source(file: str | None, text: str | None, tokenise: bool) -> str:
    """What is read; exactly one of the two is given."""
    if file is not None and text is not None:
        raise UsageError("Give a CoNLL-U file or --text FILE, not both.")
    if tokenise and text is None:
        raise UsageError("--tokenise is about --text: CoNLL-U has its words already.")
    source = file if text is None else text
    if source is None:
        raise UsageError("Say what to parse: FILE.conllu, or --text FILE; - is standard input.")
    return source


def _learn_words(
    model: ParserVAE, run: Path, vectors: str, source: str, reader: Reader | TextReader
) -> None:
    """Reads word vectors, where there are any, for the words of the input.

    Which file that is, is for the user and for NESTRUCT_DATA to say: of the run only the language
    counts.
    """
    path = _vectors_of(run) if vectors == "auto" else Path(vectors)
    if path is None or (source != "-" and not Path(source).exists()):
        return
    words = None
    if source != "-" and Path(source).is_file():  # else it is read once, and any word may come
        words = {w for block in reader.blocks() if isinstance(block, Sentence) for w in block.forms}
        words = {normalise(word) for word in words if model.vocabulary.index(word) == UNKNOWN}
        if not words:
            return
    try:
        with signs_of_life(lambda: f"Reading {path}."):
            found = model.read_vectors(path, words)
    except InputError as error:
        if vectors != "auto":
            raise
        print(f"No word vectors are used: {error}", file=sys.stderr)
        return
    those = "more words" if words is None else f"of {len(words):,} new words"
    print(f"{found:,} {those} known by {path}.", file=sys.stderr)


def _vectors_of(run: Path) -> Path | None:
    """The word vectors of the run's language in ``NESTRUCT_DATA``."""
    data = read_config(run).get("data", {})
    source = data.get("source")
    if data.get("name") != "treebanks" or data.get("embeddings") != "auto":
        return None
    return find_vectors(Path(source).name.partition("_")[0]) if isinstance(source, str) else None


def _shown(model: ParserVAE, format: str) -> Callable[[Blocks], Blocks]:
    """What is written of sentences with trees."""
    if format == "conllu":
        return iter

    def trees(blocks: Blocks) -> Blocks:
        for block in blocks:
            if isinstance(block, Sentence) and block:
                yield f"{describe(model, block)}\n\n".encode()

    def picture(blocks: Blocks) -> Blocks:
        parsed = [describe(model, b) for b in blocks if isinstance(b, Sentence) and b]
        if len(parsed) > _MOST_DRAWN:
            raise InputError(
                f"A picture has at most {_MOST_DRAWN} sentences, not {len(parsed):,}: give fewer, "
                "or say --format tree."
            )
        yield plots.sentences(parsed).svg.encode()

    return trees if format == "tree" else picture


def _say(done: Parsed, reader: Reader | TextReader, *, left: bool) -> None:
    """Prints how much was parsed, and what was not."""
    unknown = f", {done.unknown:,} of them unknown" if done.unknown else ""
    those = "it is" if reader.num_bad == 1 else "they are"
    where = f"left as {those}" if left else "left out"
    bad = f"; {reader.num_bad} malformed {where}" if reader.num_bad else ""
    bad += f" ({reader.first_bad.removesuffix('.')})" if reader.first_bad else ""
    print(f"Parsed {done}{unknown}{bad}.", file=sys.stderr)
