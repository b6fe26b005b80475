"""``nestruct data``: which data sets there are, and which are here."""

import os
import time
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from nestruct.cli.arguments import check_word
from nestruct.data import CATALOGUE
from nestruct.data.cache import folder
from nestruct.data.catalogue import DataSource
from nestruct.errors import InputError
from nestruct.wording import duration


def data(
    action: Annotated[Literal["list", "make"], Positional, arg(metavar="[list|make]")] = "list",
    name: Annotated[str | None, Positional, arg(metavar="[NAME]", help_behavior_hint="")] = None,
    /,
) -> int:
    """List the data sets and whether they are here, or generate one.

    Data sets are read from the folder that the environment variable NESTRUCT_DATA names; those that
    are generated are made where they are needed, or at once by `nestruct data make NAME`, and kept
    in the cache where they are large.

    Args:
        action: list or make.
        name: The data set to make.
    """
    if action == "make":
        return _make(name)
    if name is not None:
        raise InputError(f"`nestruct data list` takes no name, got {name!r}; to make one: make.")
    print(data_place())
    for line in data_lines():
        print(line)
    return 0


def data_lines() -> list[str]:
    """A line for each data set: name, whether it is here, what it is for."""
    width = max(map(len, CATALOGUE))
    return [f"{name:{width}}  {_state(entry)}" for name, entry in CATALOGUE.items()]


def data_place() -> str:
    """Where data sets are read from."""
    root = os.environ.get("NESTRUCT_DATA")
    if not root:
        return "NESTRUCT_DATA is not set: only what is made here can be used."
    there = "" if Path(root).is_dir() else ", which is no folder: make it, or name another"
    return f"NESTRUCT_DATA = {root}{there}"


def _state(entry: DataSource) -> str:
    remedy = entry.missing()
    if remedy is not None:
        return f"missing ({entry.purpose}): {remedy}"
    try:
        contents = entry.describe()
    except InputError as error:
        return f"damaged ({entry.purpose}): {error}"
    return f"{'found' if entry.make is None else 'made here'} ({entry.purpose}): {contents}"


def _make(name: str | None) -> int:
    made = ", ".join(known for known, entry in CATALOGUE.items() if entry.make is not None)
    if name is None:
        raise InputError(f"Say which data set to make: {made}.")
    check_word("The data set", name, CATALOGUE)
    entry = CATALOGUE[name]
    if entry.make is None:
        remedy = entry.missing()
        what = remedy or "it is there"
        raise InputError(f"{name} is read, not made (those that are made: {made}): {what}.")
    start = time.perf_counter()
    entry.make()
    took = duration(time.perf_counter() - start)
    print(f"{name}: {entry.describe()}; {took}. The cache is {folder()}.")
    return 0
