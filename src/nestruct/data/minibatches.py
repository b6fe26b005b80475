"""Which examples a step sees: a function of seed and step, so nothing has to be saved."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nestruct.data.batch import batch_size, device_of, select_rows
from nestruct.data.hooks import HasMinibatches
from nestruct.errors import InputError
from nestruct.noise import Purpose, derive_seed


def make_minibatches(data: Any, size: int | None, seed: int) -> Callable[[int], Any]:
    """Minibatches of some data; a type of its own may define ``minibatches(size, seed)``."""
    if isinstance(data, HasMinibatches):
        return data.minibatches(size, seed)
    return Minibatches(data, size=size, seed=seed)


class Minibatches:
    """Minibatches without replacement: every epoch has its own order.

    Args:
        data: All examples, as one batch.
        size: Examples per minibatch; all of them when None. What is left over at the end of an
            epoch is dropped, so that every minibatch has the same shape.
        seed: Decides the order.

    Example:
        >>> import torch
        >>> minibatches = Minibatches(torch.arange(6), size=2, seed=0)
        >>> sorted(torch.cat([minibatches(step) for step in range(3)]).tolist())
        [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, data: Any, *, size: int | None = None, seed: int = 0) -> None:
        self.data = data
        self.num_examples = batch_size(data)
        if self.num_examples == 0:
            raise InputError("There is nothing to train on: the data have no examples.")
        self.size = min(size or self.num_examples, self.num_examples)
        self.seed = seed
        self._epoch = -1
        self._order = torch.empty(0)

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches in one pass over the data."""
        return self.num_examples // self.size

    def __call__(self, step: int) -> Any:
        """The minibatch of a step."""
        if self.size == self.num_examples:
            return self.data
        return select_rows(self.data, self._rows_of(step))

    def _rows_of(self, step: int) -> Tensor:
        """Which examples a step sees."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch).to(device_of(self.data))
        return self._order[place * self.size : (place + 1) * self.size]

    def _order_of(self, epoch: int) -> Tensor:
        return self._shuffle(self.num_examples, epoch)

    def _shuffle(self, count: int, *stream: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, Purpose.ORDER, *stream))
        return torch.randperm(count, generator=generator)
