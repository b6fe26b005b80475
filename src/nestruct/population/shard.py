"""Sharing a population over processes: each rank evaluates its own pairs."""

import torch.distributed as dist
from torch import Tensor


def my_pairs(num_pairs: int) -> tuple[int, int]:
    """The first pair of this rank and the first of the next; all pairs in a single process."""
    if not _is_distributed():
        return 0, num_pairs
    rank, world = dist.get_rank(), dist.get_world_size()
    return num_pairs * rank // world, num_pairs * (rank + 1) // world


def add_over_ranks(tensor: Tensor) -> Tensor:
    """Sums a tensor over all ranks in place; every rank gets the same bits."""
    if _is_distributed():
        dist.all_reduce(tensor)
    return tensor


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
