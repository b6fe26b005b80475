"""``nestruct data``: which data sets there are, and which are here."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from nestruct.cli.arguments import Flag, check_word
from nestruct.cli.life import signs_of_life
from nestruct.data import CATALOGUE
from nestruct.data.cache import folder
from nestruct.data.catalogue import DataSource
from nestruct.data.download import Progress, Remote, check_room, fetch, size_of, target_of
from nestruct.errors import InputError
from nestruct.wording import duration


def data(
    action: Annotated[
        Literal["list", "make", "get"], Positional, arg(metavar="[list|make|get]")
    ] = "list",
    name: Annotated[str | None, Positional, arg(metavar="[NAME]", help_behavior_hint="")] = None,
    /,
    *,
    yes: Flag = False,
) -> int:
    """List the data sets and whether they are here, generate one, or download one.

    Data sets are read from the folder that the environment variable NESTRUCT_DATA names; those that
    are generated are made where they are needed, or at once by `nestruct data make NAME`, and kept
    in the cache where they are large. `nestruct data get NAME` downloads a published one: it shows
    addresses, sizes and the licence, and asks.

    Args:
        action: list, make or get.
        name: The data set to make or to get.
        yes: Download without asking.
    """
    if action == "make":
        return _make(name)
    if action == "get":
        return _get(name, yes)
    if name is not None:
        raise InputError(
            f"`nestruct data list` takes no name, got {name!r}; to make or download one: make, get."
        )
    print(data_place())
    for line, entry in zip(data_lines(), CATALOGUE.values(), strict=True):
        published = f"; published under {entry.licence}, {entry.home}" if entry.licence else ""
        print(f"{line}{published}")
    return 0


def data_lines() -> list[str]:
    """A line for each data set: name, whether it is here, what it is for."""
    width = max(map(len, CATALOGUE))
    return [f"{name:{width}}  {_state(name, entry)}" for name, entry in CATALOGUE.items()]


def data_place() -> str:
    """Where data sets are read from."""
    root = os.environ.get("NESTRUCT_DATA")
    if not root:
        return "NESTRUCT_DATA is not set: only what is made here can be used."
    there = "" if Path(root).is_dir() else ", which is no folder: make it, or name another"
    return f"NESTRUCT_DATA = {root}{there}"


def _state(name: str, entry: DataSource) -> str:
    remedy = entry.missing()
    if remedy is not None:
        get = f"; or: nestruct data get {name}" if entry.files else ""
        return f"missing ({entry.purpose}): {remedy}{get}"
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


def _get(name: str | None, yes: bool) -> int:
    if name is None:
        known = ", ".join(known for known, entry in CATALOGUE.items() if entry.files)
        raise InputError(f"Say which data set to get: {known}.")
    check_word("The data set", name, CATALOGUE)
    entry = CATALOGUE[name]
    if entry.make is not None:
        raise InputError(f"{name} is made here: nestruct data make {name}.")
    remedy = entry.missing()
    if remedy is None:
        print(f"{name} is here: {entry.describe()}.")
        return 0
    if not entry.files:
        raise InputError(f"{name} cannot be fetched by name: {remedy}.")
    wanted = [remote for remote in entry.files if not target_of(remote).exists()]
    total = _announce(name, entry, wanted)
    if not yes and not _agreed():
        print("Nothing was downloaded.")
        return 1
    check_room(total, target_of(wanted[0]).parent)
    progress = Progress()

    def say() -> str:
        come, whole = (progress.begun + n for n in (progress.bytes, progress.total))
        of = f" of {whole / 1e6:,.1f}" if progress.total else ""
        return f"{progress.name}: {come / 1e6:,.1f}{of} MB"

    with signs_of_life(say):
        for remote in wanted:
            digest = fetch(remote, progress)
            how = "checksum right" if remote.verified else "not verified, none was published to us"
            print(f"{target_of(remote)}: {how}; SHA-256 {digest}", flush=True)
    print(f"{name} is here: {entry.describe()}.")
    return 0


def _announce(name: str, entry: DataSource, wanted: list[Remote]) -> int:
    """Says what is to be fetched; its bytes, as far as servers say."""
    print(f"{name} ({entry.purpose}), from {entry.home}")
    print(f"Licence: {entry.licence}")
    total = 0
    for remote in wanted:
        size = size_of(remote)
        total += size or 0
        shown = "size unknown" if size is None else f"{size / 1e6:,.1f} MB"
        print(f"  {remote.address} ({shown})\n    -> {target_of(remote)}", flush=True)
    return total


def _agreed() -> bool:
    """Whether the user wants it; nobody is asked where nobody can answer."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError("Nobody can be asked here: say --yes to download.")
    try:
        return input("Download? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
