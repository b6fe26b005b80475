"""Several first parameters, the best of which is trained on: ``training.num_starts``."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from nestruct.errors import InputError, NestructError
from nestruct.noise import Purpose, derive_seed
from nestruct.processes import first_rank_decides
from nestruct.training.fit import Spent, fit
from nestruct.training.recipes.build import build
from nestruct.training.recipes.recipe import Recipe
from nestruct.training.recipes.trained import measure
from nestruct.wording import number


def try_starts(
    recipe: Recipe, model: nn.Module, splits: Mapping[str, Any], say: Callable[[str], None]
) -> Spent:
    """Leaves in the model the parameters of the best of several short trainings."""
    settings, best, spent = recipe.training, None, Spent()
    steps = settings.start_steps
    short = dataclasses.replace(settings, max_steps=steps, log_interval=steps, patience=None)
    if settings.max_seconds is not None:
        seconds = settings.max_seconds / (2 * settings.num_starts)
        short = dataclasses.replace(short, max_seconds=seconds)
    for start in range(settings.num_starts):
        candidate = build(recipe, start)
        try:
            result = fit(
                candidate.model,
                candidate.estimator,
                candidate.optimizer,
                splits["train"],
                # The training itself has other minibatches and other draws.
                seed=derive_seed(recipe.seed, Purpose.STARTS),
                progress=False,
                **short.fit_options,
            )
        except InputError:
            raise
        except NestructError as error:
            say(f"Start {start + 1} of {settings.num_starts} failed. {error}")
            continue
        if result.reason == "interrupted":
            raise KeyboardInterrupt
        value = measure(recipe, candidate.model, splits["validation"])[settings.metric]
        value = first_rank_decides(value, torch.device(recipe.device))
        say(
            f"Start {start + 1} of {settings.num_starts}: validation {settings.metric} "
            f"{number(value)} after {result.step} steps."
        )
        spent = spent.plus(result)
        if settings.is_better(value, best):
            best = value
            model.load_state_dict(candidate.model.state_dict())
    if best is None:
        raise NestructError(
            f"None of {settings.num_starts} starts had a finite {settings.metric} after {steps} "
            "steps; a smaller learning rate may help."
        )
    return spent
