"""``nestruct reproduce``: a table or a figure of the paper, from its runs to its page."""

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from nestruct.cli.arguments import Device, Flag, Number, check_word
from nestruct.cli.parts import PlannedPart, make_part
from nestruct.cli.queue import Job
from nestruct.errors import InputError, NestructError, first_line
from nestruct.training import Recipe, build, read_recipe
from nestruct.training.recipes.plan import plan_names, read_plan
from nestruct.wording import duration


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
    table1, table2, table3, figure2, figure-unstructured, figure-sigma, figure-bound, or all; or
    what our pages show beside them, such as table1-pull: a wrong name lists all. Tables 2 and 3 and
    the figures but figure2 read data sets: see `nestruct data list`.

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
    check_word("The table or figure", what, [*plan_names(), "all"])
    for option, value in (("--seeds", seeds), ("--budget", budget), ("--jobs", jobs)):
        if value is not None and not value > 0:
            raise InputError(f"{option} must be positive, got {value}.")
    deadline = None if budget is None else time.monotonic() + 60 * budget
    count = 1 if tiny and seeds is None else seeds
    plans = [read_plan(name, tiny=tiny) for name in (plan_names() if what == "all" else [what])]
    parts: dict[str, PlannedPart] = {}
    for one in plans:
        if what != "all" or not one.beside:
            folder = run / (f"{one.name}-tiny" if tiny else one.name)
            parts[one.name] = make_part(
                one, folder, seeds=count, device=device, jobs=jobs, tiny=tiny
            )
    if plan:
        _describe(list(parts.values()), tiny)
        return 0
    print("Reading the data.", flush=True)
    _read_data(job for part in parts.values() for job in part.jobs)
    failed = []
    for number, (name, part) in enumerate(parts.items()):
        if number:
            print()
        try:
            ended = part.run(deadline)
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
    if len(parts) > 1:
        pages = [part.folder / "page.html" for part in parts.values()]
        print("\nAll pages:", *(page for page in pages if page.exists()), sep="\n  ")
        _say_failed(failed)
    return 1 if failed else 0


def _say_failed(names: Sequence[str]) -> None:
    if names:
        print(f"Failed, in part or in whole: {', '.join(names)}.")


def _describe(parts: Sequence[PlannedPart], tiny: bool) -> None:
    """Says what would be run, and what it costs."""
    for number, part in enumerate(parts):
        if number:
            print()
        part.describe()
    if len(parts) > 1:
        seconds = sum(part.seconds_left() for part in parts)
        cost = "a few minutes on a laptop" if tiny else f"about {duration(seconds)} on one H200"
        print(f"\nIn all: the runs that are left take {cost}, and Figure 2 comes on top.")


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
