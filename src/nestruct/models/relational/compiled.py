"""Functions of tensors for `torch.compile`, and for one call with all members of a population."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_UNROLLED = 32  # sums of fewer terms
MAX_HIDDEN = 256  # a row of a product is in registers


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled when it is first called with tensors of some shape."""
    # Sums over nodes are short; unrolled they are part of the pass that makes their terms.
    options: dict[str, Any] = {"unroll_reductions_threshold": _UNROLLED}
    return torch.compile(function, dynamic=False, fullgraph=True, options=options)


def members_first(info: Any, tensors: Sequence[Tensor], dims: Sequence[int | None]) -> list[Tensor]:
    """What a vmap rule gets, with the axis of members first in every tensor."""
    return [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=True)
    ]


def takes_kernels(tensors: Sequence[Tensor], hidden: int) -> bool:
    """Whether the Triton kernels take this width of layers, these numbers and their device."""
    is_float = all(tensor.is_cuda and tensor.dtype == torch.float32 for tensor in tensors)
    return is_float and 16 <= hidden <= MAX_HIDDEN and hidden.bit_count() == 1
