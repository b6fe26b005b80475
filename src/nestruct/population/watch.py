"""Noticing that all of a step failed, without waiting for the device."""

import torch
from torch import Tensor

from nestruct.errors import NestructError
from nestruct.structures.solvers import num_unanswered


class Watch:
    """Raises if no member of a step was usable: at once on a CPU, later on CUDA.

    Args:
        message: What to raise.
    """

    def __init__(self, message: str) -> None:
        self.message = message
        self.event: torch.cuda.Event | None = None
        self.usable: Tensor | None = None
        self.unanswered = num_unanswered()  # when a step was last looked at

    def look(self, usable: Tensor) -> None:
        """Takes note of how many members of a step were usable."""
        if not usable.is_cuda:
            self.usable = usable
            self.raise_if_all_failed()
            return
        if self.event is None:
            self.event = torch.cuda.Event()
            self.usable = torch.ones((), dtype=usable.dtype, pin_memory=True)
        elif not self.event.query():
            return  # the last copy is still under way
        assert self.usable is not None
        self.usable.copy_(usable, non_blocking=True)
        self.event.record()

    def raise_if_all_failed(self) -> None:
        """Raises if the last step noted, and finished, left nothing."""
        if self.usable is None or (self.event is not None and not self.event.query()):
            return
        lost, self.unanswered = num_unanswered() - self.unanswered, num_unanswered()
        if self.usable > 0:
            return
        self.usable = self.event = None
        owner = self.message.partition(":")[0]
        if lost:
            raise NestructError(
                f"{owner}: no loss of this step is finite. The solver had no answer for {lost} "
                "instances of it (NaN, a timeout or a crash): look there first."
            )
        raise NestructError(self.message)
