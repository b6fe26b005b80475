"""What people hold as a batch of tensors: numpy arrays, mappings, and lists become one."""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestruct.data.batch import map_tensors
from nestruct.data.hooks import HasSelectRows
from nestruct.errors import InputError
from nestruct.processes import any_rank, first_rank_decides, world_size


def as_batch(value: Any, *, dtype: torch.dtype | None = None, name: str = "the batch") -> Any:
    """The same fields as tensors; what is a batch already stays as it is.

    A list becomes a tuple, and a mapping that is no dictionary becomes one.

    Args:
        value: Tensors, numpy arrays, and tuples, lists, mappings or dataclasses of them.
        dtype: What numpy's floating-point numbers become; they stay what they are when None.
        name: What an error calls it.

    Raises:
        InputError: A field is none of these; the message names it.
    """
    if value is None or isinstance(value, Tensor | HasSelectRows):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _from_numpy(np.asarray(value), dtype, name)
    if isinstance(value, Mapping):
        kind = type(value) if isinstance(value, dict) else dict
        return kind((k, as_batch(v, dtype=dtype, name=f"{name}[{k!r}]")) for k, v in value.items())
    if isinstance(value, tuple | list):
        items = [as_batch(v, dtype=dtype, name=f"{name}[{i}]") for i, v in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        new = {k: as_batch(v, dtype=dtype, name=f"{name}.{k}") for k, v in own.items()}
        return dataclasses.replace(value, **new)
    raise InputError(
        f"{_capital(name)} is a {type(value).__name__}, and a batch holds tensors or numpy arrays: "
        "leave it out, or make a tensor of it."
    )


def _from_numpy(array: np.ndarray, dtype: torch.dtype | None, name: str) -> Tensor:
    try:
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError):
        raise InputError(
            f"{_capital(name)} is a numpy array of {array.dtype}, which torch has no tensors of: "
            "make numbers of one type and one length of it, or leave it out."
        ) from None
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)


def fields(batch: Any, name: str = "") -> Iterator[tuple[str, Tensor | None]]:
    """Every tensor of a batch with its place in it; nothing of a type of its own."""
    if batch is None or isinstance(batch, Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from fields(value, f"{name}[{key!r}]")
    elif isinstance(batch, Sequence) and not isinstance(batch, HasSelectRows):
        for place, value in enumerate(batch):
            yield from fields(value, f"{name}[{place}]")
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, HasSelectRows):
        for field in dataclasses.fields(batch):
            yield from fields(getattr(batch, field.name), f"{name}.{field.name}")


def describe(batch: Any) -> str:
    """The structure of a batch in words: all batches of a training have the same."""
    words = [f"{name} {_kind(tensor)}".strip() for name, tensor in fields(batch)]
    return f"{type(batch).__name__}({', '.join(words)})"


def concatenate(batches: Sequence[Any]) -> Any:
    """Batches of one structure as one batch; None where their examples differ in shape."""
    if len(batches) == 1:
        return batches[0]
    columns = list(zip(*([tensor for _, tensor in fields(b)] for b in batches), strict=True))
    tensors = [[t for t in column if t is not None] for column in columns if column[0] is not None]
    if not tensors or any(len({t.shape[1:] for t in column}) > 1 for column in tensors):
        return None
    joined = iter([torch.cat(column) for column in tensors])
    return map_tensors(batches[0], lambda _: next(joined))


def check_same_on_all_ranks(batch: Any, device: torch.device) -> None:
    """Raises, on every rank, unless all processes were given the same batch. A collective.

    Ranks share a batch by its rows, so another batch on one of them would be wrong in silence. Of a
    type of its own nothing is known but how it is called.
    """
    if world_size() == 1:
        return
    mine = zlib.crc32(describe(batch).encode())
    for _, tensor in fields(batch):
        if tensor is not None:
            flat = tensor.detach().cpu().contiguous().flatten()
            mine = zlib.crc32(flat.view(torch.uint8).numpy().tobytes(), mine)
    if any_rank(mine != int(first_rank_decides(float(mine), device)), device):
        raise InputError(
            "The processes were given different batches: each takes its rows of the same batch, so "
            "seed the data alike in all of them, and use no DistributedSampler."
        )


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "None"
    axes = f"{tensor.dim()} {'axis' if tensor.dim() == 1 else 'axes'}"
    return f"{str(tensor.dtype).removeprefix('torch.')} of {axes}"


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]
