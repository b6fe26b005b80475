"""Arguments that several verbs share, and what is said about words that are not understood."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from nestruct.checks import check_name
from nestruct.errors import InputError


def _to_number(words: list[str]) -> int:
    try:
        return int(words[0])
    except ValueError:
        raise ValueError(f"{words[0]!r} is not a whole number.") from None


_WHOLE_NUMBER: PrimitiveConstructorSpec = PrimitiveConstructorSpec(
    nargs=1,
    metavar="N",
    instance_from_str=_to_number,
    is_instance=lambda value: value is None or isinstance(value, int),
    str_from_instance=lambda value: [str(value)],
)

RecipeName = Annotated[str, Positional, arg(metavar="RECIPE")]
MaybeRecipe = Annotated[str | None, Positional, arg(metavar="[RECIPE]", help_behavior_hint="")]
RunFolder = Annotated[Path, Positional, arg(metavar="DIR")]
Overrides = Annotated[
    tuple[str, ...], Positional, arg(metavar="[KEY=VALUE ...]", help_behavior_hint="")
]
# None by default, which the help need not say.
Folder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]
Number = Annotated[int | None, _WHOLE_NUMBER, arg(metavar="N", help_behavior_hint="")]
MaxWords = Annotated[int, _WHOLE_NUMBER, arg(metavar="N")]
Device = Annotated[str | None, arg(metavar="D", help_behavior_hint="")]
Flag = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]
Trust = Annotated[
    bool,
    FlagCreatePairsOff,
    arg(
        help="Import what the file names as module:Class. That runs its code: look into it first.",
        help_behavior_hint="",
    ),
]


class UsageError(InputError):
    """A word of the command line is not understood."""


def check_word(what: str, word: str, known: Iterable[str]) -> None:
    """Raises `UsageError`, with a suggestion, where a word is not among the known ones."""
    try:
        check_name(what, word, known)
    except InputError as error:
        raise UsageError(str(error)) from None
