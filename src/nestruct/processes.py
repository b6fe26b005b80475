"""Many processes: who this one is, and what they do together. All of it also works alone."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def my_part(count: int) -> tuple[int, int]:
    """The first of so many things that is this rank's and the first of the next rank's."""
    rank, world = my_rank(), world_size()
    return count * rank // world, count * (rank + 1) // world


def add_over_ranks(tensor: Tensor) -> Tensor:
    """Sums a tensor over all ranks in place; every rank gets the same bits."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def my_rank() -> int:
    """This process's number; 0 in a single process."""
    return dist.get_rank() if world_size() > 1 else 0


def world_size() -> int:
    """How many processes share the work."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_launched() -> bool:
    """Whether torchrun or the like started this process, be it the only one that is left."""
    return dist.is_available() and dist.is_initialized()


def is_lost_process(error: BaseException) -> bool:
    """Whether an error says that another process could not be reached; gloo's are RuntimeErrors."""
    is_gloo = isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    return is_gloo or isinstance(error, dist.DistError)


def first_rank_decides(value: float, device: torch.device) -> float:
    """Rank 0's value, on every rank: a decision that all must take alike."""
    if world_size() == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    dist.broadcast(tensor, src=0)
    return float(tensor)


def wait_for_all() -> None:
    """Returns once every rank is here."""
    if world_size() > 1:
        dist.barrier()


def any_rank(value: bool, device: torch.device) -> bool:
    """True if the flag is set on at least one rank."""
    if world_size() == 1:
        return value
    return bool(add_over_ranks(torch.tensor(float(value), device=device)))


def share_model(model: nn.Module) -> None:
    """Gives every rank the parameters and buffers of rank 0."""
    if world_size() > 1:
        for tensor in model.state_dict().values():
            if isinstance(tensor, Tensor):
                dist.broadcast(tensor, src=0)
