"""From a recipe to a trained model, and from a run folder back to the model.

`recipe.py` reads and checks the file, `parts.py` says what it can name, `names.py` finds what is
not ours, `build.py` makes that, `train.py` trains it. What only recipes have is here too: several
starts, smoothing gaps, plans.
"""

from nestruct.training.recipes.build import Experiment, build, read_splits
from nestruct.training.recipes.recipe import (
    Recipe,
    apply_override,
    names_in,
    read_recipe,
    recipe_names,
    recipe_text,
    resolve_device,
    typed_names,
)
from nestruct.training.recipes.train import train
from nestruct.training.recipes.trained import evaluate_file, evaluate_run, load

__all__ = [
    "Experiment",
    "Recipe",
    "apply_override",
    "build",
    "evaluate_file",
    "evaluate_run",
    "load",
    "names_in",
    "read_recipe",
    "read_splits",
    "recipe_names",
    "recipe_text",
    "resolve_device",
    "train",
    "typed_names",
]
