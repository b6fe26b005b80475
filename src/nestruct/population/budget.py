"""How many pairs fit into memory at once."""

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nestruct.models.compiled import uncompiled
from nestruct.noise import Noise, forked_generators
from nestruct.structures import nan_rows


def default_budget(device: torch.device) -> int:
    """A quarter of what is free, in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 4
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def pairs_within(
    budget: int, size: int, element_size: int, activation_bytes: int, mirrored: bool
) -> int:
    """Pairs whose directions, members and activations fit into half of a budget, at least one.

    The other half is for directions that are kept for the gradient (see `keeps_directions`).
    """
    members = 2 if mirrored else 1
    each = (1 + members) * size * element_size + members * activation_bytes
    return max(1, budget // 2 // each)


def keeps_directions(budget: int, pairs: int, size: int, element_size: int) -> bool:
    """Whether all directions may stay in memory; else they are drawn a second time."""
    return pairs * size * element_size <= budget // 2


def activation_bytes(model: nn.Module, batch: Any, noise: Noise) -> int:
    """What a forward at the centre allocates, plus the buffers: a bound on what a member takes."""
    counter = _Counter()
    copies = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        device = next(model.parameters()).device
        with torch.no_grad(), nan_rows(), forked_generators(device), uncompiled(model), counter:
            model.loss(batch, noise)  # type: ignore[operator]
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(copies[name])
    return counter.total + sum(copy.nbytes for copy in copies.values())


class _Counter(TorchDispatchMode):
    """Adds up the bytes of every operation's new results; a view of an argument takes none."""

    total = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        results = function(*arguments, **(keywords or {}))
        given = {_memory(leaf) for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)}
        for result in results if isinstance(results, tuple | list) else (results,):
            if isinstance(result, Tensor) and _memory(result) not in given:
                self.total += result.nbytes
        return results


def _memory(tensor: Tensor) -> int:
    """Where a tensor's numbers lie. (``_base`` is not set inside of a dispatch mode.)"""
    return tensor.untyped_storage().data_ptr()
