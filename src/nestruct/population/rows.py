"""Each mirrored pair's own examples, drawn from integers."""

import torch
from jaxtyping import Int
from torch import Tensor

from nestruct.errors import InputError
from nestruct.noise import Noise

_KEYS = 1 << 22  # that are drawn at once: no budget knows of them
_ROWS_STREAM = -1  # the stream that minibatches of pairs are drawn from


def pair_rows(
    noise: Noise, start: int, stop: int, *, count: int, examples: int, device: torch.device
) -> Int[Tensor, "pairs examples"]:
    """Examples of the pairs from ``start`` to ``stop``, without repetition within a pair.

    Args:
        noise: Seed and step.
        start: The first pair.
        stop: The first pair of others.
        count: How many examples each pair sees.
        examples: How many there are.
        device: Where the numbers are wanted.
    """
    if count > examples:
        raise InputError(f"NES: pair_batch_size is {count} but the batch has {examples} examples.")
    pairs = torch.arange(start, stop, device=device)
    noise = noise.replace(stream=_ROWS_STREAM)
    if count == 1:  # one draw, where keys of all examples would be a million times the batch
        like = torch.empty(len(pairs), dtype=torch.float64, device=device)
        return (noise.replace(example=pairs).uniform(like) * examples).long()[:, None]
    rows = []
    for some in pairs.split(max(1, _KEYS // examples)):
        like = torch.empty(len(some), examples, device=device)
        rows.append(noise.replace(example=some).gumbel(like).topk(count, dim=1).indices)
    return torch.cat(rows)
