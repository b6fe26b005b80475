"""``nestruct parse``: dependency trees for a CoNLL-U file."""

import sys
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from nestruct.cli.arguments import Flag, MaxWords, RunFolder, Trust
from nestruct.cli.life import signs_of_life
from nestruct.data.treebank import MAX_WORDS, Reader
from nestruct.errors import InputError
from nestruct.models import ParserVAE
from nestruct.models.parser.files import Parsed, parse_file
from nestruct.training import load


def parse(
    run: RunFolder,
    file: Annotated[str, Positional, arg(metavar="FILE.conllu")],
    /,
    *,
    output: Annotated[str, arg(aliases=["-o"], metavar="OUT")] = "-",
    skip_bad: Flag = False,
    max_words: MaxWords = MAX_WORDS,
    checkpoint: Literal["best", "last"] = "best",
    device: Annotated[str, arg(metavar="D")] = "auto",
    trust: Trust = False,
) -> int:
    """Parse a CoNLL-U file with the model of a run: heads and labels are set, all else is kept.

    Sentences are written as they come. Neither the run's data nor NESTRUCT_DATA are needed.

    Args:
        run: A run folder.
        file: What to parse, plain or gzip; - is standard input.
        output: Where to; - is standard output, a name that ends in .gz is compressed.
        skip_bad: Pass malformed sentences through as they are, and count them.
        max_words: A longer sentence is a malformed one.
        checkpoint: Which parameters: best on validation, or last.
        device: auto, cpu, cuda or cuda:1.
    """
    model = load(run, checkpoint=checkpoint, device=device, trust=trust)
    if not isinstance(model, ParserVAE):
        raise InputError(
            f"{run} holds no parser but a {type(model).__name__}; train parser-source."
        )
    reader = Reader(file, trees=False, skip_bad=skip_bad, max_words=max_words)
    done = Parsed()
    with signs_of_life(lambda: f"Parsed {done} so far." if done.at_work else None):
        parse_file(model, reader, output, done)
    left = "it is" if reader.num_bad == 1 else "they are"
    bad = f"; {reader.num_bad} malformed left as {left}" if reader.num_bad else ""
    bad += f" ({reader.first_bad.removesuffix('.')})" if reader.first_bad else ""
    print(f"Parsed {done}{bad}.", file=sys.stderr)
    return 0
