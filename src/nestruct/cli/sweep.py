"""``nestruct sweep``: one run for each combination of values."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from nestruct.cli.arguments import Device, Number, RecipeName
from nestruct.errors import InputError
from nestruct.reports import read_run
from nestruct.training import Recipe, read_recipe
from nestruct.wording import number

Settings = Annotated[
    tuple[str, ...], Positional, arg(metavar="KEY=A,B,C ...", help_behavior_hint="")
]


def sweep(
    recipe: RecipeName,
    settings: Annotated[
        tuple[str, ...], Positional, arg(metavar="KEY=A,B,C ...", help_behavior_hint="")
    ],
    /,
    *,
    run: Annotated[Path, arg(metavar="DIR")],
    jobs: Annotated[int, arg(metavar="N")] = 1,
    max_steps: Number = None,
    device: Device = None,
) -> int:
    """Train a recipe once for each combination of values, each in a folder of its own.

    A sweep that was stopped goes on by the same command: finished runs are skipped, others resumed.

    Args:
        recipe: A name that `nestruct recipes` lists, or a TOML file of your own.
        settings: What to vary, like estimator.sigma=0.01,0.1 seed=0,1,2.
        run: The folder for all runs.
        jobs: Runs at a time.
        max_steps: How many steps to train, instead of the recipe's.
        device: auto, cpu, cuda or cuda:1.
    """
    grid, varied = _grid(settings)
    common = [] if max_steps is None else [f"training.max_steps={max_steps}"]
    common += [] if device is None else [f"device={device}"]
    for overrides in grid:  # all of them can be trained, or none is started
        Recipe.from_tables(read_recipe(recipe, [*common, *overrides]))
    folders = [run / _name(overrides, varied) for overrides in grid]

    def train(overrides: list[str], folder: Path) -> int:
        if (folder / "metrics.jsonl").exists() and read_run(folder).finished:
            print(f"{folder}: already done, {_outcome(folder, 0)}", flush=True)
            return 0
        command = [sys.executable, "-m", "nestruct", "train"]
        if (folder / "config.toml").exists():
            command += ["--resume", str(folder)]
        else:
            command += [recipe, *common, *overrides, "--run", str(folder)]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{folder.name}.log").open("ab") as log:
            status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
        print(f"{folder}: {_outcome(folder, status)}", flush=True)
        return status

    print(f"{len(grid)} runs in {run}, {jobs} at a time; their output is in *.log.", flush=True)
    pool = ThreadPoolExecutor(max(1, jobs))
    try:
        statuses = list(pool.map(train, grid, folders))
    except KeyboardInterrupt:  # the runs heard it too, and save
        pool.shutdown(cancel_futures=True)
        print("Stopped; the same command continues.")
        return 130
    print(f"See them with: nestruct report {run}/*/ -o page.html")
    return max(statuses)


def _grid(settings: tuple[str, ...]) -> tuple[list[list[str]], list[str]]:
    """Every combination, as overrides; and the keys that vary."""
    axes = []
    for setting in settings:
        key, equals, values = setting.partition("=")
        if not equals or not all(values.split(",")):
            raise InputError(f"Say what to vary as KEY=A,B,C, like seed=0,1,2; got {setting!r}.")
        axes.append([f"{key}={value}" for value in values.split(",")])
    if not axes:
        raise InputError("Say what to vary, like estimator.sigma=0.01,0.1 seed=0,1,2.")
    varied = [axis[0].partition("=")[0] for axis in axes if len(axis) > 1 or len(axes) == 1]
    return [list(choice) for choice in itertools.product(*axes)], varied


def _name(overrides: list[str], varied: list[str]) -> str:
    """A folder name that says what the run has of its own."""
    own = [override for override in overrides if override.partition("=")[0] in varied]
    return "_".join(own or overrides).replace("/", "-")


def _outcome(folder: Path, status: int) -> str:
    if status == 130:
        return "stopped, saved"
    if status:
        return f"failed (status {status}); see {folder}.log"
    run = read_run(folder)
    metric = run.config["training"]["metric"]
    best = run.value("best", metric)
    return "done" if best is None else f"best validation {metric} {number(best)}"
