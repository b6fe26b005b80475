"""The errors nestruct raises on purpose: one sentence that says what to change."""

import difflib
from collections.abc import Iterable


class NestructError(Exception):
    """Base of every error that nestruct raises on purpose."""


class InputError(NestructError, ValueError):
    """Something handed to nestruct cannot be used; the message says what, where and what to do."""


class MissingError(InputError, AttributeError):
    """Something is asked of an object that it does not have; the message says what to do."""


def first_line(error: Exception) -> str:
    """The first line of what an error says, for a log; its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU or the machine had no memory left; torch says so in RuntimeErrors."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "OutOfMemoryError" in kinds or "MemoryError" in kinds:  # torch's own, and Python's
        return True
    phrases = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return any(phrase in str(error) for phrase in phrases)


def check_choice(what: str, value: object, allowed: Iterable[str]) -> None:
    """Raises where an option has none of the values that it can have.

    Example:
        >>> check_choice("NES: mode", "map", ["auto", "vmap", "loop"])
        Traceback (most recent call last):
        nestruct.errors.InputError: NES: mode must be one of 'auto', 'vmap', 'loop'; got 'map'.
    """
    names = list(allowed)
    if value not in names:
        raise InputError(f"{what} must be one of {', '.join(map(repr, names))}; got {value!r}.")


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Raises, with a suggestion, where a name is not among the known ones.

    Example:
        >>> check_name("the estimator", "NSE", ["NES", "Enumeration"])
        Traceback (most recent call last):
        nestruct.errors.InputError: the estimator 'NSE' is not known; did you mean 'NES'?
    """
    names = sorted(known)
    if name in names:
        return
    lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[close[0]]!r}?" if close else f"there are: {', '.join(names)}."
    raise InputError(f"{what} {name!r} is not known; {hint}")
