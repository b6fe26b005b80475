"""Whether an optimizer can train a model, and the estimator's own parameters with it."""

import torch
from torch import nn

from nestruct.errors import InputError
from nestruct.estimators import Estimator


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raises where an optimizer could not train the model."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("LBFGS evaluates the loss itself, which an estimator replaces; use Adam.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"The optimizer must be a torch optimizer, got {optimizer!r}.")
    own = {id(parameter) for parameter in model.parameters()}
    if own and not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise InputError("The optimizer holds none of the model's parameters: make it from them.")


def check_estimator(estimator: Estimator) -> None:
    """Raises where something else is given for an estimator."""
    if not isinstance(estimator, Estimator):
        raise InputError(
            "The estimator must be one of nestruct's, or derive from "
            f"nestruct.estimators.Estimator; got {estimator!r}."
        )
    if not isinstance(getattr(type(estimator), "kind", None), str):
        raise InputError(
            f"{type(estimator).__name__} does not say of which kind it is: set kind on the class, "
            "like kind = 'gradient-free'."
        )


def join_parameters(estimator: Estimator, optimizer: torch.optim.Optimizer) -> None:
    """Adds an estimator's own parameters to the first group, which a scheduler knows."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = [p for p in estimator.parameters() if id(p) not in known]
    if own and isinstance(optimizer, torch.optim.Adagrad):
        raise InputError(
            "Adagrad takes on no parameters after it is made, and the estimator has some: use Adam."
        )
    optimizer.param_groups[0]["params"] += own
