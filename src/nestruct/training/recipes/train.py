"""``train``: a recipe in a run folder."""

from functools import partial
from pathlib import Path

import torch

from nestruct.data.hooks import HasBaselines, HasDrawing
from nestruct.errors import InputError
from nestruct.models.hooks import HasNeedsStart
from nestruct.processes import first_rank_decides, my_rank
from nestruct.training.fit import FitResult, fit
from nestruct.training.loggers import TensorBoard
from nestruct.training.recipes.build import build, read_splits
from nestruct.training.recipes.gap import WithSmoothingGap
from nestruct.training.recipes.recipe import Recipe
from nestruct.training.recipes.starts import try_starts
from nestruct.training.run import (
    check_is_free,
    check_source,
    fill_model,
    find_checkpoint,
    is_run,
    read_config,
)
from nestruct.training.run.restore import newest_checkpoint


def train(
    recipe: Recipe,
    run: str | Path,
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
    tensorboard: bool = False,
    progress: bool = True,
) -> FitResult:
    """Trains a recipe in a run folder; see `fit`.

    Args:
        recipe: What to train.
        run: The run folder.
        resume: Whether to continue what is there; a folder without a run starts one.
        init_from: Another run, whose best parameters are the first ones of this.
        tensorboard: Whether to write TensorBoard's files into the run folder too.
        progress: Whether to show progress.
    """
    settings = recipe.training
    there = resume and is_run(Path(run))
    begins = not first_rank_decides(float(there), torch.device(recipe.device))
    if begins and my_rank() == 0:
        check_is_free(Path(run))  # before the data are made
    if init_from is not None and settings.num_starts > 1:
        raise InputError("--init-from gives the first parameters: say training.num_starts=1.")
    experiment = build(recipe)
    model, data = experiment.model, experiment.data
    start = None
    if init_from is not None and not begins and newest_checkpoint(Path(run))[0]:
        check_source(Path(run), init_from)  # the run has what it began with
        init_from = None
    if init_from is not None:
        start = read_config(Path(init_from)).get("model", {})
        fill_model(model, find_checkpoint(init_from, "best")[1].model, init_from)
    if progress and begins and my_rank() == 0 and isinstance(model, HasNeedsStart):
        missing = model.needs_start(start)
        if missing is not None:
            print(missing, flush=True)
    metrics = None
    if settings.smoothing_gap:
        metrics = {"validation": WithSmoothingGap(experiment.estimator, settings.smoothing_gap)}
    splits = read_splits(recipe, data)
    first = None
    if settings.num_starts > 1:
        first = partial(try_starts, recipe, model, splits)
    return fit(
        model,
        experiment.estimator,
        experiment.optimizer,
        splits["train"],
        validation=splits.get("validation"),
        test=splits.get("test"),
        scheduler=experiment.scheduler,
        seed=recipe.seed,
        run=run,
        resume=resume,
        metrics=metrics,
        describe=data.drawing if isinstance(data, HasDrawing) else None,
        baselines=data.baselines if isinstance(data, HasBaselines) else None,
        loggers=[TensorBoard(run)] if tensorboard else [],
        config=recipe.to_config(),
        progress=progress,
        first=first,
        init_from=init_from,
        **settings.fit_options,
    )
