"""A batch: a tensor, or a tuple, dict or dataclass of tensors with the examples first."""

import dataclasses
from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor

from nestruct.data.hooks import HasSelectRows, HasSlices, HasTo
from nestruct.errors import InputError


def select_rows(batch: Any, index: Tensor) -> Any:
    """The examples at ``index``, as a batch of the same type.

    A type of its own may define ``select_rows(index)``; that is then used.

    Example:
        >>> import torch, nestruct
        >>> nestruct.select_rows({"x": torch.arange(4), "y": torch.ones(4)}, torch.tensor([2, 0]))
        {'x': tensor([2, 0]), 'y': tensor([1., 1.])}
    """
    if isinstance(batch, Tensor):
        return batch[index]
    if isinstance(batch, HasSelectRows):
        return batch.select_rows(index)
    return _rebuild(batch, lambda item: select_rows(item, index))


def batch_size(batch: Any) -> int:
    """The number of examples; raises when the tensors of a batch disagree."""
    if isinstance(batch, HasSelectRows):
        if not isinstance(batch, Sized):
            raise InputError(f"{type(batch).__name__} has select_rows but no __len__; give it one.")
        return len(batch)
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0:
            raise InputError("A batch must have an example axis first; it holds a 0-dim tensor.")
        sizes.append(len(tensor))
        return tensor

    map_tensors(batch, note)
    if not sizes:
        raise InputError("A batch must hold at least one tensor.")
    if len(set(sizes)) > 1:
        raise InputError(f"The tensors of a batch must share their first axis, got sizes {sizes}.")
    return sizes[0]


def slices(batch: Any, size: int) -> Iterator[tuple[Tensor, Any]]:
    """All examples, at most ``size`` at a time, with their rows; for what is done once to each.

    A type of its own may define ``slices(size)`` and choose the order; that is then used.
    """
    if isinstance(batch, HasSlices):
        yield from batch.slices(size)
        return
    count, device = batch_size(batch), device_of(batch)
    for start in range(0, count, size):
        rows = torch.arange(start, min(start + size, count), device=device)
        yield rows, batch if len(rows) == count else select_rows(batch, rows)


def map_tensors(batch: Any, function: Callable[[Tensor], Any]) -> Any:
    """Applies a function to every tensor of a batch; entries that are None stay None."""
    if isinstance(batch, Tensor):
        return function(batch)
    return _rebuild(batch, lambda item: map_tensors(item, function))


def _rebuild(batch: Any, function: Callable[[Any], Any]) -> Any:
    """The same container with the function applied to each entry."""
    if batch is None:
        return None
    if isinstance(batch, dict):
        return type(batch)((key, function(value)) for key, value in batch.items())
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(function, batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map(function, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        return dataclasses.replace(batch, **{n: function(getattr(batch, n)) for n in names})
    raise InputError(
        "A batch is a tensor, or a tuple, dict or dataclass of tensors (or has a method "
        f"select_rows of its own); got {type(batch).__name__}."
    )


def device_of(batch: Any) -> torch.device:
    """Where a batch lies; the CPU where its type does not say."""
    devices: list[torch.device] = []

    def note(tensor: Tensor) -> Tensor:
        devices.append(tensor.device)
        return tensor

    if not isinstance(batch, HasSelectRows):
        map_tensors(batch, note)
    return devices[0] if devices else torch.device("cpu")


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch on a device; a type of its own may define ``to(device)``."""
    if isinstance(batch, HasTo):
        return batch.to(device)
    if isinstance(batch, HasSelectRows):
        return batch
    return map_tensors(batch, lambda tensor: tensor.to(device))
