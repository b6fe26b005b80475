"""Whether a value that a person wrote fits the annotation of its option."""

import numbers
import types
from typing import Any, Literal, Union, get_args, get_origin

from nestruct.errors import InputError

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def check_value(where: str, value: Any, hint: Any) -> Any:
    """The value in the type that is asked for; raises where it cannot be.

    A whole number may stand for a float, and the word ``none`` for None.
    """
    if isinstance(value, numbers.Real) and type(value) not in (bool, int, float):  # numpy's
        value = int(value) if isinstance(value, numbers.Integral) else float(value)
    if value == "none" and not _fits(value, hint) and _fits(None, hint):
        return None  # TOML has no word for it
    if not _fits(value, hint):
        raise InputError(f"{where} must be {_describe(hint)}, got {value!r}.")
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


def _describe(hint: Any) -> str:
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, options))
    if get_origin(hint) in (Union, types.UnionType):
        known = [o for o in options if o in _WORDS or get_origin(o) is Literal]
        return " or ".join(map(_describe, known or options[:1]))
    return _WORDS.get(hint, f"a {getattr(hint, '__name__', hint)}")
