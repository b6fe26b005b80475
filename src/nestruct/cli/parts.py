"""What ``nestruct reproduce`` is made of: a table or figure of trainings, or of a benchmark."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from nestruct.cli.bench import bench
from nestruct.cli.display import QueueDisplay
from nestruct.cli.queue import Ended, Job, cores, run_jobs
from nestruct.data import CATALOGUE
from nestruct.data.catalogue import needed
from nestruct.reports import (
    find_runs,
    paper_tables,
    read_groups,
    report_tables,
    to_markdown,
    write_page,
)
from nestruct.reports.paper import sections
from nestruct.training import read_recipe
from nestruct.training.recipes.plan import TRY, Plan, estimate
from nestruct.training.recipes.recipe import parse_value, resolve_device
from nestruct.wording import duration


class PlannedPart(Protocol):
    """A plan in a folder of its own."""

    @property
    def folder(self) -> Path:
        """Where its files go."""

    @property
    def jobs(self) -> Sequence[Job]:
        """The trainings, in the plan's order; none where it is a benchmark."""

    def seconds_left(self) -> float:
        """Seconds of the plan's machine for the trainings that are still to do."""

    def describe(self) -> None:
        """Prints what would be run, what it costs, and which data are missing."""

    def run(self, deadline: float | None) -> Ended:
        """Runs what is left, up to a time of `time.monotonic`, and prints what came out."""


def make_part(
    plan: Plan, folder: Path, *, seeds: int | None, device: str | None, jobs: int | None, tiny: bool
) -> PlannedPart:
    """A plan as something to run.

    Args:
        plan: The plan, its tiny version if `tiny`.
        folder: Where its runs or measurements go.
        seeds: Seeds of every run; the plan's when None.
        device: Where it runs; where there is a GPU, there, when None.
        jobs: Runs at a time; by the plan and the device when None.
        tiny: True if it is the tiny version.
    """
    where = resolve_device(device or "auto")
    if plan.bench:
        return BenchPart(plan, folder, where, tiny)
    at_once = jobs or _at_once(plan, where, tiny)
    return RunsPart(plan, folder, _jobs(plan, folder, seeds, device, tiny), seeds, at_once, tiny)


@dataclass(frozen=True)
class BenchPart:
    """A figure that is measured, by a benchmark that continues by itself.

    Args:
        plan: What is measured.
        folder: Where the measurements go.
        device: Where it is measured.
        tiny: True if it is the tiny version.
    """

    plan: Plan
    folder: Path
    device: str
    tiny: bool
    jobs: Sequence[Job] = ()

    def seconds_left(self) -> float:
        """No training is left; `Plan.cost` says in words what a benchmark takes."""
        return 0.0

    def describe(self) -> None:
        """Prints the command that measures it, and what that takes."""
        print(self.plan.title)
        command = f"nestruct bench {self.plan.bench} --device {self.device} -o {self.folder}"
        print(f"Measured, not trained: {command}")
        print("Tiny sizes: some seconds." if self.tiny else self.plan.cost)

    def run(self, deadline: float | None) -> Ended:
        """Measures what is missing."""
        print(self.plan.title)
        minutes = None if deadline is None else max(0.01, (deadline - time.monotonic()) / 60)
        pairs = (option.split("=", 1) for option in (self.plan.tiny if self.tiny else ()))
        options: dict[str, Any] = {key: parse_value(value) for key, value in pairs}
        threads = torch.get_num_threads()
        if self.tiny:
            torch.set_num_threads(1)  # steps so small only lose by more, most on a busy machine
        try:
            bench(
                self.plan.bench, device=self.device, budget=minutes, output=self.folder, **options
            )
        finally:
            torch.set_num_threads(threads)
        if self.tiny:
            print("TINY sizes, timed once each: these numbers are not comparable with any.")
        return Ended(0, stopped=False)


@dataclass(frozen=True)
class RunsPart:
    """A table or figure that is made of runs.

    Args:
        plan: What is run.
        folder: Where.
        jobs: The trainings, in the plan's order.
        seeds: How many seeds were asked for; the plan's when None.
        at_once: Runs at a time.
        tiny: True if it is the tiny version.
    """

    plan: Plan
    folder: Path
    jobs: Sequence[Job]
    seeds: int | None
    at_once: int
    tiny: bool

    def seconds_left(self) -> float:
        """Seconds of the plan's machine for what is still to do."""
        runs = zip(self.plan.runs(self.seeds), self.jobs, strict=True)
        return estimate([run for run, job in runs if not job.is_done], self.plan.jobs)

    def describe(self) -> None:
        """Prints which data are missing, and what is run: with how many seeds, how long each."""
        self._announce()
        for name, remedy in _missing_data(self.jobs).items():
            print(f"Missing: {name}; {remedy}.")
        seeds = Counter(entry for entry, _ in self.plan.runs(self.seeds))
        many = f", {self.plan.jobs} side by side" if self.plan.jobs > 1 else ""
        rows = [("run", "recipe", "seeds", f"each, on {self.plan.machine}{many}")]
        own = [(entry, count) for entry, count in seeds.items() if not entry.setting]
        rows += [(e.name, e.recipe, str(n), duration(e.seconds)) for e, n in own]
        tries = {len(entry.best_of) for entry, _ in own if entry.best_of}
        if tries:
            many = " to ".join(map(str, sorted({min(tries), max(tries)})))
            print(f"Each has a search before it: {many} short runs, the best on validation data.")
        columns = list(zip(*rows, strict=True))[: 3 if self.tiny else 4]
        padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
        for row in zip(*padded, strict=True):
            print("  " + "  ".join(row).rstrip())

    def run(self, deadline: float | None) -> Ended:
        """Runs what is left, and shows what came out."""
        self._announce()
        with QueueDisplay(self.jobs) as display:
            ended = run_jobs(
                self.jobs, self.at_once, tell=display.tell, deadline=deadline, look=display.look
            )
        self._conclude()
        return ended

    def _announce(self) -> None:
        """Says what it is, how far it is, and what is still to come."""
        plan, done = self.plan, sum(job.is_done for job in self.jobs)
        print(f"{plan.title}\n{len(self.jobs)} runs in {self.folder}, {done} of them done.")
        if done == len(self.jobs):
            return
        if self.tiny:
            small = "with tiny data and models: a minute or two on a laptop"
            print(f"{self.at_once} at a time, {small}.")
            return
        cost = duration(self.seconds_left())
        took = "took" if plan.measured else "should take"
        beside = f", {plan.jobs} side by side," if plan.jobs > 1 else ""
        slower = "; a CPU takes far longer" if plan.machine == "one H200" else ""
        print(
            f"{self.at_once} at a time here; on {plan.machine}{beside} what is left {took} about "
            f"{cost}{slower}. --budget MINUTES stops and saves."
        )

    def _conclude(self) -> None:
        plan, folder = self.plan, self.folder
        there = find_runs([folder])[0] if folder.is_dir() else []
        runs = [run for run in there if not run.name.startswith(TRY)]
        if not runs:
            return
        title = f"{plan.title} (tiny: not comparable)" if self.tiny else plan.title
        table_of = plan.name if self.tiny else None
        write_page(runs, folder / "page.html", title=title, sections=sections(tiny=table_of))
        print()
        groups = read_groups(runs)
        for table in paper_tables(groups, tiny=table_of) or report_tables(groups):
            print(to_markdown(table))
        tiny = "TINY data and models: these numbers are not comparable with the paper's, or any."
        print(tiny if self.tiny else plan.protocol)  # which is not that of tiny runs
        print(f"Page: {folder / 'page.html'}")


def _jobs(plan: Plan, folder: Path, seeds: int | None, device: str | None, tiny: bool) -> list[Job]:
    """The plan's trainings, in order."""
    where = resolve_device(device or "auto")
    jobs: dict[tuple[str, int], Job] = {}
    for entry, seed in plan.runs(seeds):
        own = entry.seed(seed)
        overrides = [*plan.overrides(entry, tiny=tiny), f"seed={own}", f"device={where}"]
        start = plan.start(entry, seed)
        jobs[entry.name, seed] = Job(
            folder=folder / f"{entry.name}-s{own}",
            words=[entry.recipe, *overrides],
            device=device,
            after=None if start is None else jobs[start],
            setting=entry.setting,
            best_of=[jobs[name, 0] for name in entry.best_of],
        )
    return list(jobs.values())


def _missing_data(jobs: Iterable[Job]) -> dict[str, str]:
    """The data sets that are needed and not here, each with what to do."""
    tables = [read_recipe(job.words[0], job.words[1:]) for job in jobs if not job.is_done]
    names = dict.fromkeys(name for table in tables for name in needed(table["data"]))
    remedies = {name: CATALOGUE[name].missing() for name in names if name in CATALOGUE}
    return {name: remedy for name, remedy in remedies.items() if remedy is not None}


def _at_once(plan: Plan, device: str, tiny: bool) -> int:
    """How many runs share the device: of tiny ones on a CPU, one for each core."""
    if device.startswith("cuda"):
        return plan.jobs
    return cores() if tiny else 1
