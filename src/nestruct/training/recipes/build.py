"""From a recipe to what it describes: data, model, estimator, optimizer, scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nestruct.data.hooks import DataSet
from nestruct.errors import InputError
from nestruct.estimators import Estimator
from nestruct.models.hooks import HasGivenBy
from nestruct.noise import Purpose, derive_seed, forked_generators
from nestruct.training.recipes.names import WANTED, WORDS, describe_failure
from nestruct.training.recipes.recipe import Recipe, Section


@dataclass
class Experiment:
    """What a recipe describes, built."""

    data: Any  # a DataSet, and what its models are built from
    model: nn.Module
    estimator: Estimator
    optimizer: torch.optim.Optimizer
    scheduler: Any


def build(recipe: Recipe, start: int = 0) -> Experiment:
    """Builds everything but the data's examples, which take time."""
    data = build_data(recipe)
    model = build_model(recipe, data, start).to(recipe.device)
    estimator = _make("estimator", recipe.estimator)
    _rehearse(recipe)
    optimizer = _make("optimizer", recipe.optimizer, list(model.parameters()))
    scheduler = None
    if recipe.scheduler is not None:
        scheduler = _make("scheduler", recipe.scheduler, optimizer)
    return Experiment(data, model, estimator, optimizer, scheduler)


def build_data(recipe: Recipe) -> DataSet:
    """The data set, before it has read or made its examples."""
    return _make("data", recipe.data)


def read_splits(recipe: Recipe, data: DataSet) -> Mapping[str, Any]:
    """The examples of a data set, by split."""
    splits = data.splits()
    if not isinstance(splits, Mapping) or "train" not in splits:
        raise InputError(
            f"splits() of the data set {recipe.data.name} must give a dictionary with train in it, "
            "and with validation and test where there are such."
        )
    return splits


def build_model(recipe: Recipe, data: Any, start: int = 0) -> nn.Module:
    """The untrained model; its first parameters depend on the recipe's seed and the start alone."""
    given = _structure(recipe)
    for name in recipe.model.part.given:
        if name in given:
            continue
        if hasattr(data, name):
            given[name] = getattr(data, name)
        else:
            raise InputError(
                f"model.{name} is missing: the recipe must give it, or the data set "
                f"{recipe.data.name} have an attribute of that name."
            )
    stream = (Purpose.PARAMETERS, start) if start else (Purpose.PARAMETERS,)
    with forked_generators():
        torch.manual_seed(derive_seed(recipe.seed, *stream))
        return _make("model", recipe.model, **given)


def rebuild_model(recipe: Recipe, state: dict[str, Any]) -> nn.Module:
    """The model of a checkpoint, without its data where its state knows what they decided."""
    make = recipe.model.part.make
    if not isinstance(make, HasGivenBy):
        return build_model(recipe, build_data(recipe))
    try:
        given = make.given_by(state)
    except KeyError as error:
        raise InputError(f"The checkpoint has no {error}, so it is none of this model.") from None
    return _make("model", recipe.model, **given, **_structure(recipe))


def _structure(recipe: Recipe) -> dict[str, Any]:
    """The structure that a recipe names in a table of its own."""
    return {} if recipe.structure is None else {"structure": _make("structure", recipe.structure)}


def _rehearse(recipe: Recipe) -> None:
    """One step of optimizer and scheduler on a dummy: torch checks some options only there."""
    dummy = nn.Parameter(torch.zeros(2, 2, device=recipe.device))
    dummy.grad = torch.ones_like(dummy)
    part, scheduler = recipe.optimizer, None
    optimizer = _make("optimizer", part, [dummy])
    if recipe.scheduler is not None:
        scheduler = _make("scheduler", recipe.scheduler, optimizer)
    try:
        optimizer.step()
        if recipe.scheduler is not None and scheduler is not None:
            part = recipe.scheduler
            scheduler.step(*[0.0] * isinstance(scheduler, ReduceLROnPlateau))
    except Exception as error:
        raise InputError(f"{part.name} cannot take a step with these options: {error}.") from None


def _make(key: str, section: Section, *given: Any, **more: Any) -> Any:
    try:
        made = section.part.make(*given, **more, **section.options)
    except InputError:
        raise
    except Exception as error:  # torch's own checks of an option, or a mistake in somebody's code
        said = describe_failure(error) if section.part.origin else error
        raise InputError(f"[{key}] {section.name}: {said}") from error
    if section.part.origin and not isinstance(made, WANTED[key][0]):
        raise InputError(
            f"The {WORDS.get(key, key)} {section.name!r} made {made!r}, which is not "
            f"{WANTED[key][1]}."
        )
    return made
