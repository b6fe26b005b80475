"""A trained model back from its run folder: to use, to evaluate."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nestruct.data import to_device
from nestruct.data.hooks import HasHidden
from nestruct.errors import InputError
from nestruct.models.compiled import unwrap
from nestruct.models.hooks import HasReadFile
from nestruct.noise import Purpose, derive_seed
from nestruct.training.details import note_details
from nestruct.training.evaluate import evaluate, matmul_precision
from nestruct.training.recipes.build import build_data, build_model, read_splits, rebuild_model
from nestruct.training.recipes.recipe import Recipe, resolve_device
from nestruct.training.run import fill_model, find_checkpoint, read_config, warn_if_changed

log = logging.getLogger("nestruct")


def load(
    run: str | Path,
    model: nn.Module | None = None,
    *,
    checkpoint: str = "best",
    device: str = "auto",
    trust: bool = False,
) -> nn.Module:
    """A trained model back from its run folder, ready to ``infer`` and ``sample``.

    Args:
        run: The run folder.
        model: For a run made by `fit`: the model, built as it was; its parameters are filled in.
        checkpoint: ``best`` (on validation) or ``last``.
        device: Where to put it.
        trust: Whether to import the modules that the run names, where its parts are not nestruct's
            own. That runs their code, so look into ``config.toml`` first.

    Raises:
        InputError: The folder is no run, has no good checkpoint, or fits another model.
    """
    return _load(run, model, checkpoint, device, trust)[1]


def _load(
    run: str | Path, model: nn.Module | None, checkpoint: str, device: str, trust: bool
) -> tuple[int, nn.Module]:
    """The step of the parameters, and the model."""
    config = read_config(Path(run))
    _, found = find_checkpoint(run, checkpoint)
    warn_if_changed(run, found)
    if model is None:
        if "recipe" not in config:
            raise InputError(
                f"{run} was made by fit(), which cannot know how the model was built: build it "
                "again and say nestruct.load(run, model)."
            )
        recipe = _read_recipe(config, device, trust)
        model = rebuild_model(recipe, found.model)
    fill_model(unwrap(model), found.model, run)
    return found.step, model.to(resolve_device(device)).eval()


def evaluate_run(
    run: str | Path,
    *,
    split: str = "test",
    checkpoint: str = "best",
    device: str = "auto",
    trust: bool = False,
) -> tuple[int, dict[str, float]]:
    """The step of a run's checkpoint, and the metrics of its model on one of its splits.

    On test data, a model that has details notes them in the run folder.
    """
    config = read_config(Path(run))
    if "recipe" not in config:
        raise InputError(
            f"{run} was made by fit() in a program, which alone has its data: call "
            "nestruct.evaluate there."
        )
    name, found = find_checkpoint(run, checkpoint)
    warn_if_changed(run, found)
    recipe = _read_recipe(config, device, trust)
    data = build_data(recipe)
    model = build_model(recipe, data)
    fill_model(model, found.model, run)
    model.to(recipe.device)
    splits = read_splits(recipe, data)
    if split not in splits:
        raise InputError(f"The data of {run} have no {split} split; there are {', '.join(splits)}.")
    hidden = data.hidden if isinstance(data, HasHidden) else ()
    if split in hidden:
        told = " or ".join(name for name in splits if name not in hidden)
        raise InputError(
            f"The {split} split of {run} does not tell its true structures, so there is nothing to "
            f"compare with; say --split {told}."
        )
    examples = to_device(splits[split], torch.device(recipe.device))
    values = measure(recipe, model, examples)
    if split == "test":
        try:
            with matmul_precision(recipe.training.matmul_precision):
                note_details(Path(run), name, found.step, model, examples)
        except OSError as error:
            log.warning("Details of the test set were not noted: %s.", error)
    return found.step, values


def evaluate_file(
    run: str | Path,
    file: str | Path,
    *,
    skip_bad: bool = False,
    max_words: int | None = None,
    checkpoint: str = "best",
    device: str = "auto",
    trust: bool = False,
) -> tuple[int, dict[str, float]]:
    """The step of a run's checkpoint, and its model's metrics on the examples of a file.

    The data of the run are not needed; the model reads the file. `max_words` is for models that
    read sentences.
    """
    step, model = _load(run, None, checkpoint, device, trust)
    if not isinstance(model, HasReadFile):
        raise InputError(
            f"{run} holds a {type(model).__name__}, which reads no files: evaluate it on one of "
            "its splits."
        )
    recipe = Recipe.from_tables(
        read_config(Path(run)) | {"device": resolve_device(device)}, trust=trust
    )
    options = {} if max_words is None else {"max_words": max_words}
    return step, measure(recipe, model, model.read_file(file, skip_bad=skip_bad, **options))


def _read_recipe(config: dict[str, Any], device: str, trust: bool) -> Recipe:
    recipe = Recipe.from_tables(config | {"device": resolve_device(device)}, trust=trust)
    recipe.warn_of_other_code(config)
    return recipe


def measure(recipe: Recipe, model: nn.Module, examples: Any) -> dict[str, float]:
    """What an evaluation of the recipe's run gives."""
    with matmul_precision(recipe.training.matmul_precision):
        return evaluate(
            model,
            to_device(examples, torch.device(recipe.device)),
            seed=derive_seed(recipe.seed, Purpose.EVALUATION),
            batch_size=recipe.training.eval_batch_size,
        )
