"""``nestruct list``: what recipes can name, and the options of each."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from nestruct.checks import describe_type
from nestruct.training.recipes.names import entry_points
from nestruct.training.recipes.parts import LISTED, PARTS, RecipePart, find_part

_WIDTH = 100
_ENTRY = re.compile(r" {4}(\*{0,2}\w+)(?: \(.*?\))?: ?(.*)")  # of a docstring's Args


def list_parts(
    what: Annotated[
        Literal["estimators", "models", "datasets", "structures"] | None,
        Positional,
        arg(metavar="[estimators|models|datasets|structures]", help_behavior_hint=""),
    ] = None,
    name: Annotated[str | None, Positional, arg(metavar="[NAME]", help_behavior_hint="")] = None,
    /,
) -> int:
    """List what recipes can name, or all options of one of them with their defaults.

    Others are named by module:Class, like problem:Packing for the class Packing of problem.py in
    the current folder, which is then imported, or are registered by installed packages.

    Args:
        what: Which part of a recipe; all of them unless said.
        name: The one to explain.
    """
    if what is not None and name is not None:
        key = LISTED[what]
        print("\n".join(_explain(key, name, find_part(key, name, trust=True))))
        return 0
    for number, plural in enumerate([what] if what else LISTED):
        if what is None:
            print(f"{chr(10) * bool(number)}{plural}")
        for line in _lines(LISTED[plural]):
            print(f"{'' if what else '  '}{line}")
    return 0


def _lines(key: str) -> Iterator[str]:
    """Names with what they are, in a line each; entry points are not imported for it."""
    found = {name: _first_sentence(part.make) for name, part in PARTS[key].items()}
    for name, entry in entry_points(key).items():
        package = "" if entry.dist is None else f", {entry.dist.name} {entry.dist.version}"
        found.setdefault(name, f"({entry.value}{package})")
    width = max(map(len, found))
    yield from (f"{name:{width}}  {text}".rstrip() for name, text in found.items())


def _explain(key: str, name: str, part: RecipePart) -> Iterator[str]:
    """What a name stands for, and its options."""
    yield f"{name}: {_first_sentence(part.make)}".rstrip(": ")
    kind = getattr(part.make, "kind", None)
    if isinstance(kind, str):
        yield f"Kind: {kind}."
    if part.origin:
        yield f"From: {part.origin['module']}, {part.origin['version']}."
    told = ", ".join(part.given)
    if told:
        yield f"From the data: {told}."
    parameters, hints, texts = part.parameters(), part.hints(), _arguments(part.make)
    yield f"Options of [{key}]:" if parameters else "It has no options."
    for option, parameter in parameters.items():
        hint = hints.get(option, Any)
        kinds = _kinds(hint)
        if parameter.default is parameter.empty:
            kinds.append(
                "needed (the data set's attribute of that name, unless said)"
                if key == "model" and part.origin
                else "needed"
            )
        else:
            kinds.append(f"default {_plain(parameter.default)}")
        yield f"  {option}: {'; '.join(kinds)}"
        yield from textwrap.wrap(
            texts.get(option, ""), _WIDTH, initial_indent="      ", subsequent_indent="      "
        )


def _kinds(hint: Any) -> list[str]:
    """What an option takes, where a recipe has a word for it."""
    text = "" if hint is Any else describe_type(hint)
    if text.startswith(("a list", "a tuple", "a Sequence")):
        return ["a list"]
    return [text] if text.startswith(("a number", "a whole", "a string", "true", "one")) else []


def _plain(value: Any) -> str:
    """A value as a recipe has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    return "none" if value is None else str(value)


def _first_sentence(make: Any) -> str:
    """The first line of what a class says of itself; nothing where it says nothing."""
    text = inspect.cleandoc(_own_docstring(make))
    return " ".join(text.partition("\n\n")[0].split())


def _own_docstring(make: Any) -> str:
    """A docstring that somebody wrote: dataclasses without one show their signature."""
    text = make.__doc__ or ""
    return "" if text.startswith(f"{make.__name__}(") else text


def _arguments(make: Any) -> dict[str, str]:
    """What docstrings say under ``Args:``, those of base classes too."""
    sources = [*reversed(make.__mro__)] if inspect.isclass(make) else [make]
    found: dict[str, str] = {}
    for source in sources:
        for text in (_own_docstring(source), getattr(source, "__init__").__doc__ or ""):  # noqa: B009
            found |= _parse(inspect.cleandoc(text))
    return found


def _parse(text: str) -> dict[str, str]:
    """The entries of a docstring's ``Args:``.

    Example:
        >>> _parse("It.\\n\\nArgs:\\n    x: One\\n        thing.\\n\\nReturns:\\n    y: No.")
        {'x': 'One thing.'}
    """
    _, found, rest = f"\n{text}".partition("\nArgs:\n")
    entries: dict[str, str] = {}
    name = ""
    for line in rest.split("\n") if found else []:
        if line.strip() and not line.startswith("    "):
            break
        entry = _ENTRY.fullmatch(line)
        if entry:
            name = entry[1]
            entries[name] = entry[2]
        elif line.strip() and name:
            entries[name] += f" {line.strip()}"
    return entries
