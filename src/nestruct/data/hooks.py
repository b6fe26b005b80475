"""What a batch or a data set may define: one Protocol per hook, called ``Has`` and its name.

Each says who calls the hook, when, and what happens without it. Callers ask for a hook with
``isinstance(batch, HasSlices)``; a type defines it by having the method, and derives from nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class HasSelectRows(Protocol):
    """``select_rows``: a batch that is no tensor, nor a container of tensors.

    `nestruct.select_rows` calls it, for minibatches among others; such a batch needs ``__len__``
    too. Without it, a batch is a tensor, or a tuple, dict or dataclass of tensors.
    """

    def select_rows(self, index: Tensor) -> Any:
        """The examples at ``index``, as a batch of the same type."""
        ...


@runtime_checkable
class HasSlices(Protocol):
    """``slices``: a batch that decides how it is cut where every example is needed once.

    Evaluations call it. Without it, examples come in their order, ``size`` at a time.
    """

    def slices(self, size: int) -> Iterator[tuple[Tensor, Any]]:
        """Rows and their batch, at most ``size`` examples at a time, each example once."""
        ...


@runtime_checkable
class HasTo(Protocol):
    """``to``: a batch that moves itself to a device.

    `nestruct.fit` calls it once for each data set. Without it, its tensors are moved.
    """

    def to(self, device: torch.device) -> Any:
        """The batch on a device."""
        ...


@runtime_checkable
class HasMinibatches(Protocol):
    """``minibatches``: training data that decide which examples a step sees.

    `nestruct.fit` calls it once. Without it, `nestruct.data.Minibatches` draws them.
    """

    def minibatches(self, size: int | None, seed: int) -> Callable[[int], Any]:
        """A function that gives a step's batch; it depends on seed and step alone."""
        ...


@runtime_checkable
class HasStepsPerEpoch(Protocol):
    """``steps_per_epoch``: a function of the step that knows how long a pass over the data is.

    `nestruct.fit` asks for it where ``max_epochs`` says how long to train. Without it, that option
    is refused.
    """

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the data."""
        ...


@runtime_checkable
class DataSet(Protocol):
    """What a recipe names under ``[data]``: all of it is in ``splits``.

    A data set may also have what a model is built from (``num_inputs``, ``vocabulary``); see
    `nestruct.models.registry`.
    """

    def splits(self) -> Mapping[str, Any]:
        """``train`` and, where there are such, ``validation`` and ``test``: a batch each."""
        ...


@runtime_checkable
class HasDrawing(Protocol):
    """``drawing``: what examples look like.

    `nestruct.training.train` hands it to `fit` as ``describe``, which calls it once, with the first
    validation examples. Without it, a page draws structures without words, pictures or places.
    """

    def drawing(self, batch: Any) -> dict[str, Any]:
        """Plain JSON: ``words`` (and ``roots``), ``images`` or ``paths`` of each example."""
        ...


@runtime_checkable
class HasBaselines(Protocol):
    """``baselines``: structures found without learning.

    `nestruct.training.train` hands it to `fit`, which compares them once with the validation set's
    true structures. Without it, chance alone is compared with.
    """

    def baselines(self, batch: Any) -> dict[str, Tensor]:
        """By name, a structure for each example."""
        ...


@runtime_checkable
class HasHidden(Protocol):
    """``hidden``: splits whose true structures are not told.

    ``nestruct evaluate`` refuses to compare with these. Without it, any split may be compared with.
    """

    @property
    def hidden(self) -> tuple[str, ...]:
        """Names of splits."""
        ...
