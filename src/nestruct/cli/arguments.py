"""Arguments that several verbs share."""

from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

RecipeName = Annotated[str, Positional, arg(metavar="RECIPE")]
RunFolder = Annotated[Path, Positional, arg(metavar="DIR")]
Overrides = Annotated[
    tuple[str, ...], Positional, arg(metavar="KEY=VALUE ...", help_behavior_hint="")
]
# None by default, which the help need not say.
Folder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]
Number = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
Device = Annotated[str | None, arg(metavar="D", help_behavior_hint="")]
Flag = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]
