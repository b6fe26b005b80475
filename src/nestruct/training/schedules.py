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
        T_max: The step at which they are zero.
        start: The step at which they begin to fall; two thirds of ``T_max`` when None.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,  # noqa: N803 (as torch's other cosines call it)
        start: int | None = None,
    ) -> None:
        start = T_max * 2 // 3 if start is None else start
        if not 0 <= start < T_max:
            raise InputError(
                f"LateCosineLR: start must be from 0 to less than T_max ({T_max}), got {start}."
            )
        self.T_max, self.start = T_max, start
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """The learning rates of the present step."""
        share = (self.last_epoch - self.start) / (self.T_max - self.start)
        factor = (1 + math.cos(math.pi * min(1.0, max(0.0, share)))) / 2
        return [rate * factor for rate in self.base_lrs]
