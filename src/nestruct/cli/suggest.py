"""``nestruct suggest``: a sigma and a learning rate to begin with, for a recipe's model."""

from typing import Any

import torch

from nestruct import estimators
from nestruct.cli.arguments import Folder, Number, Overrides, RecipeName, Trust
from nestruct.data import batch_size as num_examples
from nestruct.data import select_rows, to_device
from nestruct.errors import InputError
from nestruct.estimators import Suggestion
from nestruct.estimators.base import options_of
from nestruct.training import Recipe, build, read_recipe
from nestruct.training.recipes import read_splits, typed_names
from nestruct.training.run import fill_model, find_checkpoint


def suggest(
    recipe: RecipeName,
    overrides: Overrides = (),
    /,
    *,
    batch_size: Number = None,
    init_from: Folder = None,
    trust: Trust = False,
) -> int:
    """Propose a sigma, a number of samples and a learning rate for a recipe, from one batch.

    It measures how often structures differ, the spread of losses, and how noisy the estimate is.
    Nothing is trained, and nothing is written. The last line says how to train with what it found.

    Args:
        recipe: A name that `nestruct recipes` lists, or a TOML file of your own.
        overrides: Changes to the recipe, like estimator.population_size=200.
        batch_size: Examples, the first of the training set; as many as in training by default.
        init_from: A run whose best parameters are looked at, instead of untrained ones.
    """
    if batch_size is not None and batch_size < 1:
        raise InputError(f"--batch-size must be at least 1, got {batch_size}.")
    resolved = Recipe.from_tables(
        read_recipe(recipe, overrides), trust=trust or typed_names(overrides)
    )
    experiment = build(resolved)
    if init_from is not None:
        start = find_checkpoint(init_from, "best")[1].model
        fill_model(experiment.model, start, init_from)
    data = read_splits(resolved, experiment.data)["train"]
    every = num_examples(data)
    size = min(batch_size or resolved.training.batch_size or every, every)
    batch = to_device(select_rows(data, torch.arange(size)), torch.device(resolved.device))
    print(f"{resolved.estimator.name} on {resolved.recipe}, {size} examples ...", flush=True)
    found = estimators.suggest(experiment.model, experiment.estimator, batch, seed=resolved.seed)
    print(found.text)
    words = [recipe, *overrides, *_overrides(found, experiment.estimator), *["--trust"] * trust]
    print(f"Train with it: nestruct train {' '.join(words)} --run DIR")
    return 0


def _overrides(found: Suggestion, estimator: Any) -> list[str]:
    """What it found, as overrides; options that stay as they are left out."""
    words = []
    if found.sigma is not None:
        words.append(f"estimator.sigma={found.sigma:g}")
    if getattr(estimator, "minibatch", "shared") == "per_pair" and found.pair_batch_size:
        words.append(f"estimator.pair_batch_size={found.pair_batch_size}")
    if found.num_samples is not None and found.num_samples != estimator.num_samples:
        is_option = any(option.name == "num_samples" for option in options_of(estimator))
        name, each = ("num_samples", 1) if is_option else ("num_pairs", 2)
        words.append(f"estimator.{name}={found.num_samples // each}")
    return [*words, f"optimizer.lr={found.lr:g}"]
