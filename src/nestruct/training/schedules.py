"""Schedules of the learning rate that torch does not have."""

import math

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nestruct.errors import InputError


class LateCosineLR(LRScheduler):
    """Keeps the learning rate, and lets it fall to zero along a cosine at the end of training.

    Args:
        optimizer: Whose learning rates.
        total_steps: The step at which they are zero.
        start: The step at which they begin to fall; two thirds of ``total_steps`` when None.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        start: int | None = None,
    ) -> None:
        start = total_steps * 2 // 3 if start is None else start
        if not 0 <= start < total_steps:
            raise InputError(
                f"LateCosineLR: start must be from 0 to less than total_steps ({total_steps}), got "
                f"{start}."
            )
        self.total_steps, self.start = total_steps, start
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """The learning rates of the present step."""
        share = (self.last_epoch - self.start) / (self.total_steps - self.start)
        factor = (1 + math.cos(math.pi * min(1.0, max(0.0, share)))) / 2
        return [rate * factor for rate in self.base_lrs]
