"""Plans: which runs make a table or a figure of the paper, and what they cost."""

import itertools
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from nestruct.checks import check_name
from nestruct.training.recipes.grid import grid

TRY = "search-"  # what the names of runs begin with that try a setting
_TRY_SEED = 1000  # of those runs: what is chosen by them is then run with other seeds
_TINY_TRIES = 2
_SEARCH = ("search_options", "search_seconds")


@dataclass(frozen=True)
class PlannedRun:
    """One line of a plan: a recipe with options, for some seeds.

    Args:
        name: The run's name; seeds are added to it.
        recipe: A recipe that comes with nestruct.
        options: Overrides.
        seeds: How many seeds it is run with, from 0 on.
        once: Whether it is run with seed 0 only, whatever number of seeds is asked for.
        last: Whether all seeds of other entries come before it: it takes hours, or matters least.
        seconds: The wall-clock of one of them on the plan's `machine`, its `jobs` side by side.
        fills: Whether one of them fills the GPU, so that it is faster where it is alone.
        after: The entry whose run it starts from: the one of the same seed, or its only one.
        tiny: Further overrides of the tiny version.
        search: What is tried before, as ``nestruct sweep`` takes it (``KEY=A,B,C``): every
            combination once. The best on validation data is what the seeds are run with.
        search_options: Overrides of these tries.
        search_seconds: What one of them takes; as long as its own runs when 0.
        setting: What a try tries; of no other entry.
        best_of: The tries of an entry with ``search``.
    """

    name: str
    recipe: str
    seconds: int
    options: tuple[str, ...] = ()
    seeds: int = 1
    once: bool = False
    last: bool = False
    fills: bool = False
    after: str | None = None
    tiny: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    search_options: tuple[str, ...] = ()
    search_seconds: int = 0
    setting: tuple[str, ...] = ()
    best_of: tuple[str, ...] = ()

    def seed(self, number: int) -> int:
        """The seed of one of its runs, which are numbered from 0 on."""
        return number + _TRY_SEED * bool(self.setting)

    def tries(self, most: int | None) -> "list[PlannedRun]":
        """What is tried for it, and then itself."""
        if not self.search:
            return [self]
        settings, _ = grid(self.search)
        found = [
            replace(
                self,
                name=f"{TRY}{self.name}-{number}",
                options=(*self.options, *self.search_options),
                setting=tuple(setting),
                search=(),
                seeds=1,
                once=True,
                seconds=self.search_seconds or self.seconds,
            )
            for number, setting in enumerate(settings[:most], start=1)
        ]
        return [*found, replace(self, best_of=tuple(one.name for one in found))]

    def on(self, name: str, options: Sequence[str]) -> "PlannedRun":
        """The same on other data: their name comes first, and their options."""
        return replace(
            self,
            name=f"{name}-{self.name}",
            options=(*options, *self.options),
            after=None if self.after is None else f"{name}-{self.after}",
        )


@dataclass(frozen=True)
class Plan:
    """What ``nestruct reproduce NAME`` runs.

    Args:
        name: What is reproduced.
        title: What it is about.
        protocol: In a few sentences: what is measured, and what differs from the paper's.
        entries: The runs, what is worth most first; none where a benchmark is run instead.
        tiny: Overrides that make a laptop's version of every entry, or of the benchmark.
        jobs: How many runs share a GPU.
        machine: Where the entries' seconds are meant, in words.
        measured: True if the entries' seconds were measured, not estimated from shorter runs.
        beside: True if it is no table or figure of the paper: ``all`` leaves it out.
        bench: The benchmark that is run instead of trainings, as `nestruct bench` calls it.
        cost: What a benchmark takes, in a sentence.
    """

    name: str
    title: str
    protocol: str = ""
    entries: tuple[PlannedRun, ...] = ()
    tiny: tuple[str, ...] = ()
    jobs: int = 1
    machine: str = "one H200"
    measured: bool = True
    beside: bool = False
    bench: str = ""
    cost: str = ""

    def runs(self, seeds: int | None = None) -> Iterator[tuple[PlannedRun, int]]:
        """Every entry with every seed, the first seed of all entries first."""

        def count(entry: PlannedRun) -> int:
            return 1 if entry.once else entry.seeds if seeds is None else seeds

        for last in (False, True):
            entries = [entry for entry in self.entries if entry.last == last]
            for seed in range(max(map(count, entries), default=0)):
                yield from ((entry, seed) for entry in entries if seed < count(entry))

    def start(self, entry: PlannedRun, seed: int) -> tuple[str, int] | None:
        """The entry, and its seed, whose run a run starts from; None where it starts afresh."""
        if entry.after is None:
            return None
        before = next(e for e in self.entries if e.name == entry.after)
        return before.name, 0 if before.once else seed

    def overrides(self, entry: PlannedRun, *, tiny: bool) -> list[str]:
        """What a run of an entry changes in its recipe."""
        if not tiny:
            return [*entry.options, *entry.setting]
        small = [*self.tiny, *entry.tiny]
        other_data = any(override.startswith("data.name=") for override in small)
        kept = [o for o in entry.options if not (other_data and o.startswith("data."))]
        merged = dict(override.split("=", 1) for override in itertools.chain(kept, small))
        return [*(f"{key}={value}" for key, value in merged.items()), *entry.setting]


def plan_names() -> list[str]:
    """The plans that come with nestruct: tables, figures of the text, of the appendix, the rest."""
    names = [
        file.name.removesuffix(".toml")
        for file in _folder().iterdir()
        if file.name.endswith(".toml")
    ]
    return sorted(names, key=lambda name: ("table" not in name, "-" in name, name))


def read_plan(name: str, *, tiny: bool = False) -> Plan:
    """A plan, by name.

    A file may have, besides runs and what `Plan` takes:

    - ``base``, another plan or several: what the file does not say is as there, and its runs come
      after those;
    - ``options``, overrides of every run;
    - ``seeds``, how many seeds every run has, also one that is run once elsewhere;
    - ``search_options``, overrides of the runs that try a setting (`PlannedRun.search`), and
      ``search_seconds``, what one of them takes: of the runs of this file, and of those of its base
      where that has none;
    - ``vary``, names with options: every run that is not run once is there for each of them;
    - ``each``, names with options: all runs are there for the first name, then for the second.

    The tiny version has no ``each``; of runs that its own data make the same, the first; and tries
    two settings of each search.
    """
    tables = _read(name)
    every, vary = tables.pop("options", []), tables.pop("vary", {})
    search = {key: tables.pop(key) for key in _SEARCH if key in tables}
    seeds = {"seeds": tables.pop("seeds"), "once": False} if "seeds" in tables else {}
    entries = tuple(
        replace(entry, name=called, options=(*entry.options, *every, *more))
        for entry in (PlannedRun(**_tuples(search | run | seeds)) for run in tables.pop("runs", []))
        for called, more in _variants(entry, vary)
    )
    each = tables.pop("each", {})
    if each and not tiny:
        entries = tuple(e.on(other, options) for other, options in each.items() for e in entries)
    plan = Plan(name=name, entries=entries, **_tuples(tables))
    if tiny:
        distinct = {(e.recipe, *sorted(plan.overrides(e, tiny=True))): e for e in reversed(entries)}
        entries = tuple(reversed(distinct.values()))
    most = _TINY_TRIES if tiny else None
    return replace(plan, entries=tuple(e for one in entries for e in one.tries(most)))


def _read(name: str) -> dict[str, Any]:
    """The tables of a plan upon those of its base."""
    check_name("The plan", name, plan_names())
    tables = tomllib.loads(_folder().joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    if "base" not in tables:
        return tables
    names = tables.pop("base")
    runs: list[dict[str, Any]] = []
    rest: dict[str, Any] = {}
    for base in map(_read, [names] if isinstance(names, str) else names):
        search = {key: base.pop(key) for key in _SEARCH if key in base}
        runs += [search | run for run in base.pop("runs")]
        rest |= base
    return rest | tables | {"runs": runs + tables.get("runs", [])}


def _variants(entry: PlannedRun, vary: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """The names that an entry has, with the options of each."""
    if entry.once or not vary:
        return [(entry.name, [])]
    return [(f"{entry.name}-{name}", options) for name, options in vary.items()]


def estimate(runs: Sequence[tuple[PlannedRun, int]], jobs: int) -> float:
    """Seconds that runs take in all, so many side by side."""
    longest = max((entry.seconds for entry, _ in runs if not entry.fills), default=0)
    return max(longest, sum(entry.seconds for entry, _ in runs) / jobs)


def _folder():
    return resources.files("nestruct").joinpath("recipes", "plans")


def _tuples(table: dict) -> dict:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
