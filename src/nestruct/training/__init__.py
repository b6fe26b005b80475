"""From estimator to trained model: the loop, checkpoints, run folders, recipes.

`fit` is the entry, `loop.py` the loop; a run folder is all that is left of a training, and all that
`load`, reports and a resumed training read.
"""

from nestruct.training.callbacks import Event
from nestruct.training.evaluate import evaluate
from nestruct.training.fit import FitResult, fit
from nestruct.training.join import LostProcessError, join_processes
from nestruct.training.loggers import CSVLogger, Logger, TensorBoard, WandB
from nestruct.training.options import Training
from nestruct.training.recipes import (
    Experiment,
    Recipe,
    build,
    evaluate_file,
    evaluate_run,
    load,
    read_recipe,
    recipe_names,
    recipe_text,
    train,
)
from nestruct.training.run import CheckpointError, read_config

__all__ = [
    "CSVLogger",
    "CheckpointError",
    "Event",
    "Experiment",
    "FitResult",
    "Logger",
    "LostProcessError",
    "Recipe",
    "TensorBoard",
    "Training",
    "WandB",
    "build",
    "evaluate",
    "evaluate_file",
    "evaluate_run",
    "fit",
    "join_processes",
    "load",
    "read_config",
    "read_recipe",
    "recipe_names",
    "recipe_text",
    "train",
]
