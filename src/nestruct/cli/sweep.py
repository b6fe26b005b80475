"""``nestruct sweep``: one run for each combination of values."""

import itertools
import os
import re
import shlex
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from nestruct.cli.arguments import Device, Folder, Number, RecipeName, Trust
from nestruct.cli.display import QueueDisplay
from nestruct.cli.queue import Job, run_jobs
from nestruct.errors import InputError
from nestruct.training import Recipe, build, read_recipe
from nestruct.training.recipes import typed_names
from nestruct.training.recipes.grid import grid

Settings = Annotated[
    tuple[str, ...], Positional, arg(metavar="KEY=A,B,C ...", help_behavior_hint="")
]


def sweep(
    recipe: RecipeName,
    settings: Settings,
    /,
    *,
    run: Annotated[Path, arg(metavar="DIR")],
    jobs: Annotated[int, arg(metavar="N")] = 1,
    processes: Annotated[int, arg(metavar="K")] = 1,
    max_steps: Number = None,
    device: Device = None,
    init_from: Folder = None,
    trust: Trust = False,
) -> int:
    """Train a recipe once for each combination of values, each in a folder of its own.

    A sweep that was stopped goes on by the same command: finished runs are skipped, others resumed.

    Args:
        recipe: A name that `nestruct recipes` lists, or a TOML file of your own.
        settings: What to vary, like estimator.sigma=0.01,0.1 seed=0,1,2.
        run: The folder for all runs.
        jobs: Runs at a time.
        processes: Processes that share the work of each run, under torchrun.
        max_steps: How many steps to train, instead of the recipe's.
        device: auto, cpu, cuda or cuda:1.
        init_from: A run whose best parameters each run starts from.
    """
    for name, value in (("jobs", jobs), ("processes", processes)):
        if value < 1:
            raise InputError(f"--{name} must be at least 1, got {value}.")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError(
            "A sweep starts its runs itself: say nestruct sweep ... --processes K, not torchrun."
        )
    if max_steps is not None and any(s.startswith("training.max_steps=") for s in settings):
        raise InputError(
            "--max-steps and training.max_steps say the same: leave one of the two out."
        )
    combinations, varied = grid(settings)
    common = [] if max_steps is None else [f"training.max_steps={max_steps}"]
    common += [] if device is None else [f"device={device}"]
    trusted = trust or typed_names(itertools.chain(*combinations))
    for overrides in combinations:  # all of them can be trained, or none is started
        tables = read_recipe(recipe, [*common, *overrides])
        build(Recipe.from_tables(tables, trust=trusted))
    folders = [run / _name(overrides, varied) for overrides in combinations]
    if len(set(folders)) < len(folders):
        raise InputError("Two runs of this sweep would be the same: say every value once.")
    words = [] if init_from is None else ["--init-from", str(init_from)]
    trainings = [
        Job(
            folder=folder,
            words=[recipe, *common, *overrides, *words],
            max_steps=max_steps,
            device=device,
            processes=processes,
            trust=trusted,
        )
        for overrides, folder in zip(combinations, folders, strict=True)
    ]
    runs = f"{len(combinations)} run{'s' * (len(combinations) > 1)}"
    print(f"{runs} in {run}, {jobs} at a time; their output is in *.log.", flush=True)
    with QueueDisplay(trainings) as display:
        ended = run_jobs(trainings, jobs, tell=display.tell, look=display.look)
    if ended.stopped:
        print("Stopped; the same command continues.")
        return 130
    print(f"See them with: nestruct report {shlex.quote(str(run))}/*/ -o page.html")
    return 1 if ended.failed else 0


def _name(overrides: list[str], varied: list[str]) -> str:
    """A folder name made of the options in which the run differs from the others."""
    own = [override for override in overrides if override.partition("=")[0] in varied]
    return re.sub("[/:]", "-", "_".join(own or overrides))
