"""What a recipe can name: data sets, structures, models, estimators, optimizers, schedulers.

Each folder registers its own (``registry.py``); optimizers are torch's, and so are schedulers but
one. Others come by ``module:Class`` or from installed packages (`nestruct.training.recipes.names`).
Options are the keyword arguments of the class, checked by name and type before anything is built or
written.
"""

import contextlib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import optim
from torch.optim import lr_scheduler

from nestruct.checks import check_name, check_value, unknown_name
from nestruct.data.registry import DATASETS
from nestruct.errors import InputError
from nestruct.estimators.registry import ESTIMATORS
from nestruct.models.registry import MODELS
from nestruct.structures.registry import STRUCTURES
from nestruct.training.recipes.names import (
    GROUPS,
    WORDS,
    Trust,
    entry_points,
    find_own,
)
from nestruct.training.schedules import LateCosineLR


@dataclass(frozen=True)
class RecipePart:
    """Something a recipe can name.

    Args:
        make: The class.
        given: Arguments that the recipe does not set, because others decide them.
        origin: The module and version of a part that is not ours.
    """

    make: Callable[..., Any]
    given: tuple[str, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)

    def parameters(self) -> dict[str, inspect.Parameter]:
        """What a recipe can set."""
        return {
            name: parameter
            for name, parameter in inspect.signature(self.make).parameters.items()
            if name not in self.given and parameter.kind in _NAMED
        }

    def needs(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Arguments without a default that are not among the options."""
        return tuple(
            name
            for name, parameter in self.parameters().items()
            if parameter.default is parameter.empty and name not in options
        )

    def hints(self) -> dict[str, Any]:
        """The types of the arguments, where annotations say them."""
        target = self.make.__init__ if inspect.isclass(self.make) else self.make
        try:
            return typing.get_type_hints(target)
        except (NameError, TypeError):  # annotations that only a type checker can read
            return {}

    def options(self, where: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with defaults filled in; raises where a name or a value is wrong."""
        parameters = self.parameters()
        hints = self.hints()
        resolved = {}
        renamed = vars(self.make).get("renamed_options", {}) if inspect.isclass(self.make) else {}
        for name, value in options.items():
            if name in renamed:
                raise InputError(f"{where}: the option {name} is called {renamed[name]} now.")
            check_name(f"{where}: the option", name, parameters)
            resolved[name] = check_value(f"{where}.{name}", value, hints.get(name, Any))
        for name, parameter in parameters.items():
            if name in resolved:
                continue
            if parameter.default is parameter.empty:
                raise InputError(f"{where}.{name} is missing: the recipe must give it.")
            if _is_plain(parameter.default):  # 0 where a number is meant becomes 0.0, as if given
                with contextlib.suppress(InputError):
                    hint = hints.get(name, Any)
                    resolved[name] = check_value(name, parameter.default, hint)
        return resolved


OPTIMIZERS = {
    name: RecipePart(value, given=("params",))
    for name, value in vars(optim).items()
    if inspect.isclass(value)
    and issubclass(value, optim.Optimizer)
    # Those left out need a closure, sparse gradients, or nothing but matrices.
    and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
}
SCHEDULERS = {
    name: RecipePart(getattr(lr_scheduler, name), given=("optimizer",))
    for name in (
        "ConstantLR",
        "CosineAnnealingLR",
        "CosineAnnealingWarmRestarts",
        "CyclicLR",
        "ExponentialLR",
        "LinearLR",
        "MultiStepLR",
        "OneCycleLR",
        "PolynomialLR",
        "ReduceLROnPlateau",
        "StepLR",
    )
} | {"LateCosineLR": RecipePart(LateCosineLR, given=("optimizer",))}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
PARTS: dict[str, dict[str, RecipePart]] = {
    "data": {name: RecipePart(make) for name, make in DATASETS.items()},
    "structure": {
        name.replace("_", "-"): RecipePart(known.structure) for name, known in STRUCTURES.items()
    },
    "model": {name: RecipePart(model.make, model.given) for name, model in MODELS.items()},
    "estimator": {name: RecipePart(make) for name, make in ESTIMATORS.items()},
    "optimizer": OPTIMIZERS,
    "scheduler": SCHEDULERS,
}
LISTED = {  # what `nestruct list` calls them
    "estimators": "estimator",
    "models": "model",
    "datasets": "data",
    "structures": "structure",
}


def find_part(key: str, name: Any, *, trust: Trust = False) -> RecipePart:
    """What a name in a table of a recipe stands for.

    Args:
        key: The table.
        name: One of ours, ``module:Class``, or an entry point's.
        trust: Which names that are not ours may be imported.

    Raises:
        InputError: The name is not known, must not be imported, or is something else.
    """
    known = PARTS[key]
    if isinstance(name, str) and name in known:
        return known[name]
    if key not in GROUPS:
        check_name(f"The {key}", name, known)
    found = find_own(key, name, trust) if isinstance(name, str) else None
    if found is not None:
        return RecipePart(found[0], origin=found[1])
    plural = next(plural for plural, table in LISTED.items() if table == key)
    more = f" `nestruct list {plural}` shows all; one of your own is written module:Class."
    raise InputError(
        unknown_name(f"The {WORDS.get(key, key)}", name, [*known, *entry_points(key)]) + more
    )


def _is_plain(value: Any) -> bool:
    """True if TOML can write the value."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
