"""``nestruct reproduce``: a table or a figure of the paper, from its runs to its page."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from nestruct.cli.arguments import Device, Flag, Number, check_word
from nestruct.cli.bench import bench
from nestruct.cli.display import Display
from nestruct.cli.queue import Ended, Job, cores, run_jobs
from nestruct.data import CATALOGUE
from nestruct.data.catalogue import needed
from nestruct.errors import InputError, NestructError, first_line
from nestruct.reports import (
    find_runs,
    paper_tables,
    read_groups,
    report_tables,
    to_markdown,
    write_page,
)
from nestruct.reports.paper import sections
from nestruct.training import Recipe, build, read_recipe
from nestruct.training.plan import Plan, estimate, plan_names, read_plan
from nestruct.training.recipe import resolve_device
from nestruct.wording import duration

_SCALING = "figure2"
_SCALING_TITLE = "Figure 2: seconds of one training step against the size of the structure"
_SCALING_COST = (
    "About an hour on one core of a CPU and a quarter of one on an H200, where 108 and 50 of its "
    "250 measurements took 15 and 3 minutes (docs/scaling.md). --budget MINUTES stops and saves."
)


def reproduce(
    what: Annotated[str, Positional, arg(metavar="WHAT")],
    /,
    *,
    run: Annotated[Path, arg(metavar="DIR")] = Path("runs"),
    seeds: Number = None,
    budget: Annotated[float | None, arg(metavar="MINUTES", help_behavior_hint="")] = None,
    device: Device = None,
    jobs: Number = None,
    tiny: Flag = False,
    plan: Flag = False,
) -> int:
    """Run what makes a table or figure of the paper, and show it beside the paper's numbers.

    What was done before is skipped, what was stopped goes on: the same command continues. WHAT is
    table1, table2, table3, figure2, figure-unstructured, figure-sigma, figure-bound, or all.
    Tables 2 and 3 and the figures but figure2 read data sets: see `nestruct data list`.

    Args:
        what: What to reproduce.
        run: The folder for all runs; each table has a folder in it.
        seeds: Seeds of every run, instead of the plan's.
        budget: Minutes after which everything is stopped and saved; what is worth most comes first.
        device: auto, cpu, cuda or cuda:1.
        jobs: Runs at a time, instead of the plan's on a GPU, and on a CPU one, or tiny one a core.
        tiny: The whole way on a laptop in minutes; its numbers are not comparable with anything.
        plan: Only say what would be run, what it costs, and which data are missing.
    """
    # Tables first, then the figures of the paper's text, then those of its appendix.
    known = sorted([*plan_names(), _SCALING], key=lambda n: ("table" not in n, "-" in n, n))
    check_word("The table or figure", what, [*known, "all"])
    for name, value in (("--seeds", seeds), ("--budget", budget), ("--jobs", jobs)):
        if value is not None and not value > 0:
            raise InputError(f"{name} must be positive, got {value}.")
    where = resolve_device(device or "auto")
    deadline = None if budget is None else time.monotonic() + 60 * budget
    count = 1 if tiny and seeds is None else seeds
    names = known if what == "all" else [what]
    folders = {name: run / (f"{name}-tiny" if tiny else name) for name in names}
    parts = {}
    for name in [name for name in names if name != _SCALING]:
        one = read_plan(name, tiny=tiny)
        trainings = _jobs(one, folders[name], count, device, tiny)
        at_once = jobs or _at_once(one, where, tiny)
        parts[name] = _Part(one, folders[name], trainings, count, at_once, tiny)
    if plan:
        _show_plans(folders, parts, where, tiny)
        return 0
    print("Reading the data.", flush=True)
    _read_data(job for part in parts.values() for job in part.jobs)
    failed = []
    for number, (name, folder) in enumerate(folders.items()):
        if number:
            print()
        try:
            if name == _SCALING:
                _scale(folder, where, deadline, tiny=tiny)
                continue
            ended = parts[name].run(deadline)
        except (NestructError, OSError, RuntimeError) as error:  # others do not need this part
            print(f"nestruct: {name}: {first_line(error)}", file=sys.stderr)
            failed.append(name)
            continue
        if ended.failed:
            failed.append(name)
        if ended.stopped:
            print("Stopped, all is saved; the same command continues.")
            _say_failed(failed)
            in_time = deadline is None or time.monotonic() < deadline  # so it was a signal
            return 130 if in_time else int(bool(failed))
    if len(folders) > 1:
        pages = [folder / "page.html" for folder in folders.values()]
        print("\nAll pages:", *(page for page in pages if page.exists()), sep="\n  ")
        _say_failed(failed)
    return 1 if failed else 0


def _say_failed(names: Sequence[str]) -> None:
    if names:
        print(f"Failed, in part or in whole: {', '.join(names)}.")


@dataclass(frozen=True)
class _Part:
    """A table or figure that is made of runs.

    Args:
        plan: What is run.
        folder: Where.
        jobs: The trainings, in the plan's order.
        seeds: How many seeds were asked for; the plan's when None.
        at_once: Runs at a time.
        tiny: Whether it is the tiny version.
    """

    plan: Plan
    folder: Path
    jobs: Sequence[Job]
    seeds: int | None
    at_once: int
    tiny: bool

    def seconds_left(self) -> float:
        """Of one H200, for what is still to do."""
        runs = zip(self.plan.runs(self.seeds), self.jobs, strict=True)
        return estimate([run for run, job in runs if not job.is_done], self.plan.jobs)

    def announce(self) -> None:
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
        print(
            f"{self.at_once} at a time here; on one H200, {plan.jobs} side by side, what is left "
            f"{took} about {cost}; a CPU takes far longer. --budget MINUTES stops and saves."
        )

    def list_runs(self) -> None:
        """Says which data are missing, and what is run: with how many seeds, how long each."""
        for name, remedy in _missing_data(self.jobs).items():
            print(f"Missing: {name}; {remedy}.")
        seeds = Counter(entry for entry, _ in self.plan.runs(self.seeds))
        rows = [("run", "recipe", "seeds", f"each, {self.plan.jobs} side by side")]
        rows += [(e.name, e.recipe, str(n), duration(e.seconds)) for e, n in seeds.items()]
        columns = list(zip(*rows, strict=True))[: 3 if self.tiny else 4]
        padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
        for row in zip(*padded, strict=True):
            print("  " + "  ".join(row).rstrip())

    def run(self, deadline: float | None) -> Ended:
        """Runs what is left, and shows what came out."""
        self.announce()
        with Display(self.jobs) as display:
            ended = run_jobs(
                self.jobs, self.at_once, tell=display.tell, deadline=deadline, look=display.look
            )
        self._conclude()
        return ended

    def _conclude(self) -> None:
        plan, folder = self.plan, self.folder
        runs = find_runs([folder])[0] if folder.is_dir() else []
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


def _show_plans(
    folders: Mapping[str, Path], parts: Mapping[str, _Part], device: str, tiny: bool
) -> None:
    """What would be run, and what it costs."""
    for number, (name, folder) in enumerate(folders.items()):
        if number:
            print()
        if name == _SCALING:
            print(_SCALING_TITLE)
            print(f"Measured, not trained: nestruct bench scaling --device {device} -o {folder}")
            print("Tiny sizes: some seconds." if tiny else _SCALING_COST)
        else:
            parts[name].announce()
            parts[name].list_runs()
    if len(folders) > 1:
        seconds = sum(part.seconds_left() for part in parts.values())
        cost = "a few minutes on a laptop" if tiny else f"about {duration(seconds)} on one H200"
        print(f"\nIn all: the runs that are left take {cost}, and Figure 2 comes on top.")


def _scale(folder: Path, device: str, deadline: float | None, *, tiny: bool) -> None:
    """Figure 2 is not of runs: it is a benchmark, which continues by itself."""
    print(_SCALING_TITLE)
    minutes = None if deadline is None else max(0.01, (deadline - time.monotonic()) / 60)
    if not tiny:
        bench("scaling", device=device, budget=minutes, output=folder)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # steps so small only lose by more, most where the machine is busy
    try:
        bench(
            "scaling",
            device=device,
            budget=minutes,
            output=folder,
            sizes="5,10,20",
            repeats=1,
            longest=0.1,
        )
    finally:
        torch.set_num_threads(threads)
    print("TINY sizes, timed once each: these numbers are not comparable with any.")


def _jobs(plan: Plan, folder: Path, seeds: int | None, device: str | None, tiny: bool) -> list[Job]:
    """The plan's trainings, in order."""
    where = resolve_device(device or "auto")
    jobs: dict[tuple[str, int], Job] = {}
    for entry, seed in plan.runs(seeds):
        overrides = [*plan.overrides(entry, tiny=tiny), f"seed={seed}", f"device={where}"]
        start = plan.start(entry, seed)
        jobs[entry.name, seed] = Job(
            folder=folder / f"{entry.name}-s{seed}",
            words=[entry.recipe, *overrides],
            device=device,
            after=None if start is None else jobs[start],
        )
    return list(jobs.values())


def _read_data(jobs: Iterable[Job]) -> None:
    """Reads every data set that is still needed, once: where one is missing, nothing is started."""
    read = set()
    for job in jobs:
        recipe, *overrides = job.words
        tables = read_recipe(recipe, overrides)
        asked = (tables["data"]["name"], *(o for o in overrides if o.startswith("data.")))
        if asked not in read and not job.is_done:
            read.add(asked)
            build(Recipe.from_tables(tables | {"device": "cpu"})).data.splits()


def _missing_data(jobs: Iterable[Job]) -> dict[str, str]:
    """The data sets that are needed and not here, each with what to do."""
    tables = [read_recipe(job.words[0], job.words[1:]) for job in jobs if not job.is_done]
    names = dict.fromkeys(name for table in tables for name in needed(table["data"]))
    remedies = {name: CATALOGUE[name].missing() for name in names}
    return {name: remedy for name, remedy in remedies.items() if remedy is not None}


def _at_once(plan: Plan, device: str, tiny: bool) -> int:
    """How many runs share the device: of tiny ones on a CPU, one for each core."""
    if device.startswith("cuda"):
        return plan.jobs
    return cores() if tiny else 1
