"""The command line: one file per verb, each a function whose arguments are the options.

An error that nestruct raises on purpose ends in one sentence and exit status 1, or 2 where a word
was not understood; anything else is a bug and shows its traceback.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import tyro

from nestruct._version import __version__
from nestruct.cli.arguments import UsageError, check_word
from nestruct.cli.bench import bench
from nestruct.cli.check_gradient import check_gradient
from nestruct.cli.data import data
from nestruct.cli.doctor import doctor
from nestruct.cli.evaluate import evaluate
from nestruct.cli.listing import list_parts
from nestruct.cli.parse import parse
from nestruct.cli.recipes import recipes
from nestruct.cli.report import report
from nestruct.cli.reproduce import reproduce
from nestruct.cli.suggest import suggest
from nestruct.cli.sweep import sweep
from nestruct.cli.train import train
from nestruct.errors import NestructError, first_line, is_out_of_memory
from nestruct.wording import printable

VERBS: dict[str, Callable[..., int]] = {
    "train": train,
    "evaluate": evaluate,
    "parse": parse,
    "report": report,
    "reproduce": reproduce,
    "sweep": sweep,
    "recipes": recipes,
    "list": list_parts,
    "data": data,
    "check-gradient": check_gradient,
    "suggest": suggest,
    "bench": bench,
    "doctor": doctor,
}
WITH_OVERRIDES = {"train", "sweep", "check-gradient", "suggest"}
FLAGS = {"--continue", "--tensorboard", "--trust"}  # their options without a value
TIDY = {"evaluate", "parse", "report", "data"}  # others decide themselves what SIGTERM does


_OUT_OF_MEMORY = (
    "out of memory. Evaluate fewer at a time (estimator.chunk_size or, in bytes, memory_budget for "
    "NES; estimator.num_samples for others), or make training.batch_size or "
    "training.eval_batch_size smaller"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """``nestruct VERB ...``; exits with the verb's status."""
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(words: list[str]) -> int:
    """Runs the verb that the words name; its exit status."""
    verb, *rest = words or [""]
    if verb in ("", "-h", "--help"):
        print(_help(), file=sys.stdout if verb else sys.stderr)
        return 0 if verb else 2
    if verb == "--version":
        print(f"nestruct {__version__}")
        return 0
    if not {"-h", "--help"}.isdisjoint(rest):
        rest = ["--help"]  # tyro leaves out of the usage line what has been said
    elif verb in WITH_OVERRIDES:
        rest = _overrides_last(rest)
    try:
        check_word("The verb", verb, VERBS)
        with _tidy_end() if verb in TIDY else contextlib.nullcontext():
            return tyro.cli(VERBS[verb], prog=f"nestruct {verb}", args=rest)
    except NestructError as error:
        print(f"nestruct: {printable(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("nestruct: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head, say) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"nestruct: {_OUT_OF_MEMORY} ({first_line(error)}).", file=sys.stderr)
        return 1
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"nestruct: {where}{error.strerror or error}.", file=sys.stderr)
        return 1


class _EndedError(BaseException):
    """SIGTERM came."""


@contextlib.contextmanager
def _tidy_end() -> Iterator[None]:
    """Removes unfinished files at SIGTERM, and then ends by it, as without us."""

    def end(number: int, frame: object) -> None:
        raise _EndedError

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not in the main thread: whoever started it decides
        yield
        return
    try:
        yield
    except _EndedError:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def _help() -> str:
    """Every verb in a line: the first of its docstring."""
    width = max(map(len, VERBS))
    verbs = [f"  {name:{width}}  {_first_line(verb)}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: nestruct VERB ...",
            "",
            "Train networks around a combinatorial solver that stays a black box.",
            "",
            *verbs,
            "",
            "nestruct VERB --help says all about a verb; nestruct --version, which one this is.",
        ]
    )


def _first_line(verb: Callable[..., int]) -> str:
    return (verb.__doc__ or "").partition("\n")[0]


def _overrides_last(words: Sequence[str]) -> list[str]:
    """Puts ``estimator.sigma=0.1``, also written ``--estimator.sigma 0.1``, behind the options.

    tyro takes the words of a list only where they stand together.
    """
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
