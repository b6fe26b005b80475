"""``nestruct reproduce``: a table or a figure of the paper, from its runs to its page."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from nestruct.cli.arguments import Device, Flag, Number, check_word
from nestruct.cli.bench import bench
from nestruct.cli.display import Display
from nestruct.cli.queue import Job, cores, run_jobs
from nestruct.errors import InputError
from nestruct.reports import (
    find_runs,
    paper_tables,
    read_groups,
    report_tables,
    to_markdown,
    write_page,
)
from nestruct.training import Recipe, build, read_recipe
from nestruct.training.plan import Plan, estimate, plan_names, read_plan
from nestruct.training.recipe import resolve_device
from nestruct.wording import duration

_SCALING = "figure2"


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
        plan: Only say what would be run, and what it costs.
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
    plans = {name: read_plan(name, tiny=tiny) for name in names if name != _SCALING}
    todo = {n: _jobs(one, folders[n], count, where, tiny) for n, one in plans.items()}
    if not plan:
        print("Reading the data.", flush=True)
        _read_data(job for jobs_of_one in todo.values() for job in jobs_of_one)
    status = 0
    for number, (name, folder) in enumerate(folders.items()):
        if number:
            print()
        if name == _SCALING:
            _scale(folder, where, deadline, tiny=tiny, plan=plan)
            continue
        one = plans[name]
        at_once = jobs or _at_once(one, where, tiny)
        _announce(one, folder, todo[name], count, at_once, tiny)
        if plan:
            continue
        with Display(todo[name]) as display:
            ended = run_jobs(
                todo[name], at_once, tell=display.tell, deadline=deadline, look=display.look
            )
        _conclude(one, folder, tiny)
        if ended.stopped:
            print("Stopped, all is saved; the same command continues.")
            return 130 if deadline is None or time.monotonic() < deadline else 0
        status = max(status, min(ended.failed, 1))
    if len(folders) > 1 and not plan:
        pages = [folder / "page.html" for folder in folders.values()]
        print("\nAll pages:", *(page for page in pages if page.exists()), sep="\n  ")
    return status


def _scale(folder: Path, device: str, deadline: float | None, *, tiny: bool, plan: bool) -> None:
    """Figure 2 is not of runs: it is a benchmark, which continues by itself."""
    print("Figure 2: seconds of one training step against the size of the structure")
    if plan:
        print(f"Measured, not trained: nestruct bench scaling --device {device} -o {folder}")
        return
    minutes = None if deadline is None else max(0.01, (deadline - time.monotonic()) / 60)
    if tiny:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # steps so small only lose by more, most where the machine is busy
        bench(
            "scaling",
            device=device,
            budget=minutes,
            output=folder,
            sizes="5,10,20",
            repeats=1,
            longest=0.1,
        )
        torch.set_num_threads(threads)
        print("TINY sizes, timed once each: these numbers are not comparable with any.")
    else:
        bench("scaling", device=device, budget=minutes, output=folder)


def _jobs(plan: Plan, folder: Path, seeds: int | None, device: str, tiny: bool) -> list[Job]:
    """The plan's trainings, in order."""
    jobs: dict[tuple[str, int], Job] = {}
    for entry, seed in plan.runs(seeds):
        overrides = [*plan.overrides(entry, tiny=tiny), f"seed={seed}", f"device={device}"]
        start = plan.start(entry, seed)
        jobs[entry.name, seed] = Job(
            folder=folder / f"{entry.name}-s{seed}",
            words=[entry.recipe, *overrides],
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


def _at_once(plan: Plan, device: str, tiny: bool) -> int:
    """How many runs share the device: of tiny ones on a CPU, one for each core."""
    if device.startswith("cuda"):
        return plan.jobs
    return cores() if tiny else 1


def _announce(
    plan: Plan, folder: Path, jobs: Sequence[Job], seeds: int | None, at_once: int, tiny: bool
) -> None:
    runs = list(plan.runs(seeds))
    left = [run for run, job in zip(runs, jobs, strict=True) if not job.is_done]
    print(f"{plan.title}\n{len(jobs)} runs in {folder}, {len(jobs) - len(left)} of them done.")
    if left and tiny:
        print(f"{at_once} at a time, with tiny data and models: a minute or two on a laptop.")
    elif left:
        cost = duration(estimate(left, plan.jobs))
        took = "took" if plan.measured else "should take"
        print(
            f"{at_once} at a time. What is left {took} about {cost} on one H200, {plan.jobs} side "
            "by side; a CPU takes far longer. --budget MINUTES stops and saves."
        )


def _conclude(plan: Plan, folder: Path, tiny: bool) -> None:
    runs = find_runs([folder])[0] if folder.is_dir() else []
    if not runs:
        return
    title = f"{plan.title} (tiny: not comparable)" if tiny else plan.title
    table_of = plan.name if tiny else None
    write_page(runs, folder / "page.html", title=title, tiny=table_of)
    print()
    groups = read_groups(runs)
    for table in paper_tables(groups, tiny=table_of) or report_tables(groups):
        print(to_markdown(table))
    print(plan.protocol)
    if tiny:
        print("TINY data and models: these numbers are not comparable with the paper's, or any.")
    print(f"Page: {folder / 'page.html'}")
