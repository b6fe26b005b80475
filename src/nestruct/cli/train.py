"""``nestruct train``: train a recipe, or continue a run."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import torch
from tyro.conf import arg

from nestruct.cli.arguments import (
    Device,
    Flag,
    Folder,
    MaybeRecipe,
    Number,
    Overrides,
    Trust,
)
from nestruct.cli.queue import stop_when_orphaned
from nestruct.errors import InputError
from nestruct.processes import first_rank_decides, my_rank
from nestruct.training import FitResult, Recipe, join_processes, read_config, read_recipe
from nestruct.training import train as train_recipe
from nestruct.training.join import COLLECTIVE_TIMEOUT
from nestruct.training.recipes import apply_override, resolve_device, typed_names
from nestruct.training.recipes.names import Trust as Trusted
from nestruct.training.run import compare_configs, is_run
from nestruct.wording import duration, number

# What a recipe leaves to the number of its steps.
_LENGTHS = {"scheduler": ("T_max", "total_steps"), "training": ("log_interval", "eval_interval")}


def train(
    recipe: MaybeRecipe = None,
    overrides: Overrides = (),
    /,
    *,
    run: Annotated[
        Path | None, arg(metavar="DIR", aliases=["--run-dir"], help_behavior_hint="")
    ] = None,
    continue_: Annotated[Flag, arg(name="continue")] = False,
    resume: Folder = None,
    seed: Number = None,
    max_steps: Number = None,
    device: Device = None,
    init_from: Folder = None,
    tensorboard: Flag = False,
    trust: Trust = False,
    collective_timeout: Annotated[Number, arg(metavar="SECONDS")] = None,
) -> int:
    """Train a recipe in a new run folder, or continue a run.

    A run starts by `nestruct train RECIPE --run DIR`; killed or stopped, it goes on by
    `nestruct train --resume DIR`. With --continue one command does both. Under
    `torchrun --nproc-per-node 2 -m nestruct train ...` processes share the work; say --run-dir
    there, because torchrun itself takes --run for an option of its own.

    Args:
        recipe: A name that `nestruct recipes` lists, or a TOML file of your own.
        overrides: Changes to the recipe, like estimator.sigma=0.1 training.batch_size=64.
        run: The new run folder.
        continue_: Begin the run, or go on where its folder already holds it.
        resume: A run folder to continue.
        seed: The seed of every draw, instead of the recipe's.
        max_steps: How many steps to train, instead of the recipe's.
        device: auto, cpu, cuda or cuda:1.
        init_from: A run whose best parameters to start from.
        tensorboard: Also write TensorBoard's files, into the run folder.
        collective_timeout: Seconds after which a process that the others wait for is taken for
            hanging, under torchrun; 600 unless said.
    """
    stop_when_orphaned()
    trusted = trust or typed_names(overrides)
    if resume is not None:
        if recipe is not None or overrides or run or continue_ or init_from or seed is not None:
            raise InputError(
                "--resume continues a run as it began: beside it only --max-steps, --device, "
                "--tensorboard, --trust and --collective-timeout may stand."
            )
        tables, folder = _read_run(resume, trust), resume
        if max_steps is not None:
            _check_schedule(tables, max_steps)
    elif recipe is None:
        raise InputError("Say which recipe to train (see `nestruct recipes`), or --resume DIR.")
    elif run is None:
        raise InputError(f"Say where to: nestruct train {recipe} --run DIR.")
    else:
        tables, folder = read_recipe(recipe, overrides), run
    if seed is not None:
        tables["seed"] = seed
    if max_steps is not None:
        apply_override(tables, f"training.max_steps={max_steps}")
    if device is not None:
        tables["device"] = device
    timeout = COLLECTIVE_TIMEOUT if collective_timeout is None else collective_timeout
    with join_processes(tables.get("device", "auto"), timeout=timeout) as tables["device"]:
        if continue_:
            _keep_length(tables, folder, trusted)
        resolved = Recipe.from_tables(tables, trust=trusted)
        result = train_recipe(
            resolved,
            folder,
            resume=continue_ or resume is not None,
            init_from=init_from,
            tensorboard=tensorboard,
        )
        if my_rank() == 0 and result.reason != "interrupted":
            _say(result, folder, resolved.training.metric)
    return 130 if result.reason == "interrupted" else 0


def _read_run(folder: Path, trust: Trusted) -> dict[str, Any]:
    """The settings that a run began with."""
    tables = read_config(folder)
    if "recipe" not in tables:
        raise InputError(
            f"{folder} was made by fit() in a program: run that again with resume=True."
        )
    # Raises where the file, which may be a stranger's, is not as it was written.
    recipe = Recipe.from_tables(tables | {"device": "cpu"}, trust=trust)
    if my_rank() == 0:
        recipe.warn_of_other_code(tables)
    return tables


def _keep_length(tables: dict[str, Any], folder: Path, trust: Trusted) -> None:
    """Keeps what the length of a run decided when it began, where the folder holds one.

    Rank 0 looks, and no other: a file may be seen on one node and not yet on another.
    """
    if not first_rank_decides(
        float(is_run(folder)), torch.device(resolve_device(tables["device"]))
    ):
        return
    before = _read_run(folder, trust)
    for table, names in _LENGTHS.items():
        old, new = before.get(table), tables.get(table)
        if isinstance(old, dict) and isinstance(new, dict) and old.get("name") == new.get("name"):
            unsaid = [name for name in names if new.get(name, "none") == "none"]
            tables[table] = new | {name: old[name] for name in unsaid if name in old}
    resolved = Recipe.from_tables(tables, trust=trust)
    compare_configs(before, resolved.to_config())
    _check_schedule(before, resolved.training.max_steps)


def _say(result: FitResult, folder: Path, metric: str) -> None:
    """How it ended: what got better, what it cost, where to look."""
    print(
        f"{result.reason.capitalize()} after {result.step} step{'s' * (result.step != 1)}, "
        f"{duration(result.seconds)} and {result.evaluations:,} evaluations of a member's loss."
    )
    if result.initial is not None and result.best is not None:
        print(f"Kept: step {result.best_step}, the best {metric} on validation data.")
        for name, first in result.initial.items():
            test = (result.test or {}).get(name)
            tested = "" if test is None else f", test {number(test)}"
            if name in result.best:
                kept = number(result.best[name])
                print(f"  {name}: {number(first)} at first, {kept} kept{tested}")
    where = shlex.quote(str(folder))
    print(f"The run is in {folder}; see it with: nestruct report {where} -o page.html")


def _check_schedule(tables: dict[str, Any], max_steps: int) -> None:
    """Says what becomes of the learning rate where a run goes on after the end of its schedule."""
    scheduler, before = tables.get("scheduler", {}), tables["training"].get("max_steps", 0)
    length = scheduler.get("total_steps")
    if length is not None and max_steps > length:
        raise InputError(
            f"{scheduler['name']} ends at step {length}, so this run cannot go on to {max_steps}: "
            "start another one from it with --init-from DIR."
        )
    if scheduler.get("T_max") == before < max_steps and my_rank() == 0:
        print(
            f"The learning rate rises again after step {before}: {scheduler['name']} keeps its "
            "scheduler.T_max, the steps that the run was to have at first.",
            flush=True,
        )
