"""Whether an option has a value that it can have; if not, one sentence says what to change."""

import dataclasses
import difflib
import functools
import math
import numbers
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from nestruct.errors import InputError

_Kind = TypeVar("_Kind")  # a class, whose type a checker must not lose
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def check_options(options: Any) -> None:
    """Raises where an option of a dataclass is none of the values of its ``Literal``.

    Example:
        >>> @dataclasses.dataclass
        ... class Search:
        ...     mode: Literal["vmap", "loop"] = "vmap"
        >>> check_options(Search(mode="map"))
        Traceback (most recent call last):
        nestruct.errors.InputError: Search: mode must be one of 'vmap', 'loop'; got 'map'.
    """
    kind: Any = type(options)
    for name, choices in _choices(kind).items():
        check_choice(f"{kind.__name__}: {name}", getattr(options, name), choices)


def renamed(**names: str) -> Callable[[_Kind], _Kind]:
    """A class decorator: an option by its old name is refused with the new one."""

    def decorate(kind: Any) -> Any:
        init = kind.__init__

        @functools.wraps(init)
        def refuse_old(self: Any, *values: Any, **options: Any) -> None:
            for old, new in names.items():
                if old in options:
                    raise InputError(f"{kind.__name__}: the option {old} is called {new} now.")
            init(self, *values, **options)

        kind.__init__ = refuse_old
        kind.renamed_options = names
        return kind

    return decorate


@functools.cache
def _choices(kind: Any) -> dict[str, tuple[str, ...]]:
    if not dataclasses.is_dataclass(kind):
        return {}
    hints = get_type_hints(kind)
    names = [option.name for option in dataclasses.fields(kind) if option.init]
    return {name: get_args(hints[name]) for name in names if get_origin(hints[name]) is Literal}


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
    names = list(known)
    if name not in names:
        raise InputError(unknown_name(what, name, names))


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """Says that a name is not among the known ones, with a suggestion."""
    names = sorted(known)
    lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[close[0]]!r}?" if close else f"there are: {', '.join(names)}."
    return f"{what} {name!r} is not known; {hint}"


def check_count(owner: str, name: str, value: int, low: int, high: int | None = None) -> int:
    """Returns ``value`` if it is a whole number in range, else raises."""
    try:
        number = operator.index(value)  # numpy's integers too
    except TypeError:
        number = low - 1
    if isinstance(value, bool) or number < low or (high is not None and number > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{owner}: {name} must be a whole number {limits}, got {value!r}.")
    return number


def check_positive(owner: str, name: str, value: float) -> None:
    """Raises unless ``value`` is a number above 0, and finite."""
    try:
        positive = 0 < value < math.inf
    except TypeError:
        positive = False
    if not positive:
        raise InputError(f"{owner}: {name} must be positive, got {value!r}.")


def check_temperature(owner: str, temperature: float | Tensor) -> None:
    """Raises unless the temperature is positive; a tensor is not looked into."""
    if not isinstance(temperature, Tensor):
        check_positive(owner, "temperature", temperature)


def check_value(where: str, value: Any, hint: Any) -> Any:
    """The value in the type that is asked for; raises where it cannot be.

    A whole number may stand for a float, and the word ``none`` for None.
    """
    if isinstance(value, numbers.Real) and type(value) not in (bool, int, float):  # numpy's
        value = int(value) if isinstance(value, numbers.Integral) else float(value)
    if value == "none" and not _fits(value, hint) and _fits(None, hint):
        return None  # TOML has no word for it
    if not _fits(value, hint):
        raise InputError(f"{where} must be {describe_type(hint)}, got {value!r}.")
    if type(value) is int and _fits(1.0, hint) and not _takes(int, hint):
        return float(value)
    return value


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    if hint in (None, type(None)):
        return value is None
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and type(value) is not bool
    if isinstance(origin or hint, type):
        plain = origin or hint
        if isinstance(value, list | tuple):  # TOML has one kind of sequence
            return issubclass(plain, list | tuple) or plain.__module__ == "collections.abc"
        return isinstance(value, plain)
    return True  # an annotation we do not read: whoever takes the value checks it


def _takes(kind: type, hint: Any) -> bool:
    return hint is kind or any(_takes(kind, option) for option in get_args(hint))


def describe_type(hint: Any) -> str:
    """What a value of a type is, in words.

    Example:
        >>> describe_type(float | None), describe_type(Literal["vmap", "loop"])
        ('a number', "one of 'vmap', 'loop'")
    """
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, options))
    if get_origin(hint) in (Union, types.UnionType):
        known = [o for o in options if o in _WORDS or get_origin(o) is Literal]
        return " or ".join(map(describe_type, known or options[:1]))
    return _WORDS.get(hint, f"a {getattr(hint, '__name__', hint)}")
