"""What every estimator returns, and the state that those without any have."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nestruct.data import batch_size
from nestruct.errors import InputError


@dataclass(frozen=True)
class StepReport:
    """What happened in one step: 0-dim tensors, so that reading them is what synchronises.

    Args:
        loss: The mean loss (for a population: over members of surviving pairs).
        loss_std: Its standard deviation over members.
        grad_norm: The norm of the estimated gradient.
        num_evaluations: How often a member's loss was evaluated (members x samples).
        num_failed: Members whose loss was not finite.
        solver_seconds: Time spent in CPU solvers; None where unknown.
    """

    loss: Tensor
    loss_std: Tensor
    grad_norm: Tensor
    num_evaluations: Tensor
    num_failed: Tensor
    solver_seconds: Tensor | None = None


class Stateless:
    """The state methods of an estimator that keeps nothing between steps."""

    def parameters(self) -> list[nn.Parameter]:
        """What joins the optimizer: nothing."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""


def check_examples(owner: str, batch: Any) -> None:
    """Raises unless a batch is one, and has examples."""
    if batch_size(batch) == 0:
        raise InputError(f"{owner}: the batch has no examples; give it at least one.")
