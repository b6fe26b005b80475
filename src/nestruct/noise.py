"""Random draws from integers: a draw depends on its seed and its own coordinates, on nothing else.

Gumbel and normal draws come from a counter-based hash (the finalizer of splitmix64, G. Steele et
al., 2014) of seed, step, stream, pair, example and a part's coordinates, in integer tensor
operations that are legal inside `torch.vmap` and inside a CUDA graph capture. So a draw does not
depend on padding, on how a population is cut into chunks, or on which process evaluates it, and the
CPU and CUDA agree.
"""

import functools
import math
import operator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nestruct.errors import InputError

_MASK = (1 << 64) - 1
# Of splitmix64.
GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
_NORMAL = 1  # what tells the key of normal draws from that of Gumbel draws


def forked_generators(device: torch.device | None = None) -> AbstractContextManager[None]:
    """A context after which torch's generators, the device's too, stand as they did before it."""
    # Named: else torch starts, and warns of, every GPU of the machine.
    return torch.random.fork_rng([device] if device is not None and device.type == "cuda" else [])


def own_generator(device: torch.device) -> torch.Generator:
    """The generator that `torch.manual_seed` seeds, of a device."""
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    place = module.current_device() if device.index is None else device.index
    return module.default_generators[place]


@dataclass(frozen=True)
class Noise:
    """Where a model's random draws come from. A model may ignore it.

    Args:
        seed: The run's seed.
        step: The training step; a tensor inside a captured graph.
        stream: Which of several independent draws (the samples of an inner expectation); numbers
            ``[samples, 1]`` give all those draws in one call, ``[samples, batch, *parts]``.
        pair: The mirrored pair, or the member, that draws; 0 when all share one draw.
        example: ``[batch]``, the position of each example in the whole minibatch; its own place
            when left out.

    Example:
        >>> import torch, nestruct
        >>> noise = nestruct.Noise(seed=0, step=3)
        >>> wide, narrow = noise.gumbel(torch.zeros(2, 5)), noise.gumbel(torch.zeros(2, 3))
        >>> bool((wide[:, :3] == narrow).all())
        True
    """

    seed: int
    step: int | Tensor = 0
    stream: int | Tensor = 0
    pair: int | Tensor = 0
    example: Tensor | None = None

    def replace(self, **changes: Any) -> "Noise":
        """A copy with some of the integers changed."""
        return replace(self, **changes)

    def gumbel(self, scores: Tensor) -> Float[Tensor, "..."]:
        """Standard Gumbel draws, one for each score ``[batch, *parts]``, in the scores' dtype.

        Padding gets draws too: whoever reads the scores ignores it there.

        Args:
            scores: Only shape, dtype and device are used; the first axis is the examples.
        """
        uniform = self._uniform(scores, derive_key(self.seed))
        return (-torch.log(-torch.log(uniform))).to(scores.dtype)

    def normal(self, scores: Tensor) -> Float[Tensor, "..."]:
        """Standard normal draws, one for each score, as `gumbel` and independent of its draws.

        Args:
            scores: Only shape, dtype and device are used; the first axis is the examples.
        """
        uniform = self._uniform(scores, derive_key(self.seed, _NORMAL))
        return (math.sqrt(2) * torch.erfinv(2 * uniform - 1)).to(scores.dtype)

    def uniform(self, scores: Tensor) -> Float[Tensor, "..."]:
        """Draws from the open interval (0, 1), one for each score; `gumbel` is made of the same.

        Args:
            scores: Only shape, dtype and device are used; the first axis is the examples.
        """
        return self._uniform(scores, derive_key(self.seed)).to(scores.dtype)

    def _uniform(self, scores: Tensor, key: int) -> Float[Tensor, "..."]:
        """23 or 52 random bits and a half, for each score: exact in the dtype, never 0, never 1."""
        if scores.dim() == 0:
            raise InputError("noise: scores need a leading axis of examples.")
        bits = self._bits(scores.shape, scores.device, key)
        dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
        digits = 52 if dtype == torch.float64 else 23
        return (_shift(bits, 64 - digits).to(dtype) + 0.5) * 2.0**-digits

    def _bits(self, shape: torch.Size, device: torch.device, key: int) -> Int[Tensor, "..."]:
        """64 bits for each score: one hash of a sum in which every coordinate has its own factor.

        What is known on the host is added there; on a GPU every operation is a launch.
        """
        example = self.example
        if example is None:
            example = torch.arange(shape[0], device=device)
        elif example.shape != shape[:1]:
            raise InputError(
                f"noise: scores of shape {tuple(shape)} do not start with the "
                f"{len(example)} examples of this noise."
            )
        total = example * _factor(3)
        for place, number in enumerate((self.stream, self.pair, self.step)):
            if isinstance(number, Tensor):
                total = total + number.long() * _factor(place)
            else:
                key += operator.index(number) * _factor(place)
        total = total + _signed(key)
        # Each axis adds a term of its own, so a part keeps its draw when others are added.
        for axis, size in enumerate(shape[1:]):
            total = total[..., None] + torch.arange(size, device=device) * _factor(4 + axis)
        return _mix(total)


@functools.cache
def _factor(place: int) -> int:
    """The odd number that a coordinate is multiplied with."""
    return _signed(derive_key(place) | 1)


def derive_key(*values: int) -> int:
    """64 well-mixed bits from integers."""
    key = 0
    for value in values:
        key = _mix_int(key + GOLDEN * (operator.index(value) + 1))
    return key


class Purpose(IntEnum):
    """What seeds are derived for: ``derive_seed(seed, Purpose.ORDER)`` meets no other's draws."""

    STEP = 1  # a training step's global generator
    EVALUATION = 2
    PARAMETERS = 3  # a model's first ones
    ORDER = 4  # of an epoch
    IMAGE_SPLIT = 5
    GIBBS_SAMPLES = 6  # of a training step
    BASELINE = 7  # the first parameters of a baseline's network
    STARTS = 8  # trial trainings
    TREEBANK_SPLIT = 9
    MADE_UP_VECTORS = 10
    STRATA = 11  # where in its stratum a direction lies


def derive_seed(*values: int) -> int:
    """A 63-bit seed for a torch generator, from integers."""
    return derive_key(*values) >> 1


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(FIRST)
    x = (x ^ _shift(x, 27)) * _signed(SECOND)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, places: int) -> Tensor:
    """Logical right shift: torch's own copies the sign."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def _mix_int(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * FIRST) & _MASK
    x = ((x ^ (x >> 27)) * SECOND) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    """The int64 with the same bits."""
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x
