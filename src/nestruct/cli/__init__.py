"""The command line: one file per verb, each a function whose arguments are the options.

An error that nestruct raises on purpose ends in one sentence and exit status 1; anything else is a
bug and shows its traceback.
"""

import os
import sys
from collections.abc import Sequence

import tyro

from nestruct.cli.bench import bench
from nestruct.cli.check_gradient import check_gradient
from nestruct.cli.data import data
from nestruct.cli.doctor import doctor
from nestruct.cli.evaluate import evaluate
from nestruct.cli.parse import parse
from nestruct.cli.recipes import recipes
from nestruct.cli.report import report
from nestruct.cli.reproduce import reproduce
from nestruct.cli.sweep import sweep
from nestruct.cli.train import train
from nestruct.errors import NestructError

VERBS = {
    "train": train,
    "evaluate": evaluate,
    "parse": parse,
    "report": report,
    "reproduce": reproduce,
    "sweep": sweep,
    "recipes": recipes,
    "data": data,
    "check-gradient": check_gradient,
    "bench": bench,
    "doctor": doctor,
}
WITH_OVERRIDES = {"train", "sweep", "check-gradient"}
FLAGS = {"--tensorboard", "--tiny"}  # options without a value


def main(arguments: Sequence[str] | None = None) -> None:
    """``nestruct VERB ...``; exits with the verb's status."""
    words = _overrides_last(sys.argv[1:] if arguments is None else arguments)
    status: int
    try:
        status = tyro.extras.subcommand_cli_from_dict(
            VERBS,  # type: ignore[arg-type]
            prog="nestruct",
            description="Train models with a discrete structure inside, from forward passes alone.",
            args=words,
        )
    except NestructError as error:
        print(f"nestruct: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        print("nestruct: stopped.", file=sys.stderr)
        status = 130
    except BrokenPipeError:  # the reader of our output (head, say) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    except OSError as error:
        print(f"nestruct: {error.strerror or error}.", file=sys.stderr)
        status = 1
    sys.exit(status)


def _overrides_last(words: Sequence[str]) -> list[str]:
    """Puts ``estimator.sigma=0.1``, also written ``--estimator.sigma 0.1``, behind the options.

    tyro takes the words of a list only where they stand together.
    """
    if not words or words[0] not in WITH_OVERRIDES:
        return list(words)
    options, overrides = [], []
    rest, takes_value = iter(words), False
    for word in rest:
        key, equals, _ = word.partition("=")
        if key.startswith("--") and "." in key:
            overrides.append(word[2:] if equals else f"{word[2:]}={next(rest, '')}")
        elif equals and not key.startswith("-") and not takes_value:
            overrides.append(word)
        else:
            options.append(word)
        takes_value = word.startswith("-") and not equals and word not in FLAGS
    return options + overrides


__all__ = ["VERBS", "main"]
