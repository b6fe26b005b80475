"""What a recipe can name: data sets, models, estimators, optimizers, schedulers.

Each folder registers its own (``registry.py`` of data, models and estimators); optimizers are
torch's, and so are schedulers but one. Options are the keyword arguments of the class, checked by
name and type before anything is built or written.
"""

import contextlib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import optim
from torch.optim import lr_scheduler

from nestruct.checks import check_name, check_value
from nestruct.data.registry import DATASETS
from nestruct.errors import InputError
from nestruct.estimators.registry import ESTIMATORS
from nestruct.models.registry import MODELS
from nestruct.training.schedules import LateCosineLR


@dataclass(frozen=True)
class RecipePart:
    """Something a recipe can name.

    Args:
        make: The class.
        given: Arguments that the recipe does not set, because others decide them.
    """

    make: Callable[..., Any]
    given: tuple[str, ...] = ()

    def parameters(self) -> dict[str, inspect.Parameter]:
        """What a recipe can set."""
        every = inspect.signature(self.make).parameters
        return {name: every[name] for name in every if name not in self.given}

    def options(self, where: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with defaults filled in; raises where a name or a value is wrong."""
        parameters = self.parameters()
        hints = _hints(self.make)
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
PARTS: dict[str, dict[str, RecipePart]] = {
    "data": {name: RecipePart(make) for name, make in DATASETS.items()},
    "model": {name: RecipePart(model.make, model.given) for name, model in MODELS.items()},
    "estimator": {name: RecipePart(make) for name, make in ESTIMATORS.items()},
    "optimizer": OPTIMIZERS,
    "scheduler": SCHEDULERS,
}


def _is_plain(value: Any) -> bool:
    """True if TOML can write the value."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    target = make.__init__ if inspect.isclass(make) else make
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError):  # annotations that only a type checker can read
        return {}
