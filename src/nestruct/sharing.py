"""Sharing a batch over processes: each rank has examples of its own, and sums are over all of them.

What a mean over the batch is made of crosses ranks: losses and which of them count, the sums of
batch normalisation, the gradient. Draws belong to examples, so a rank draws what a single process
would draw for the same ones.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nestruct.data import device_of, select_rows
from nestruct.noise import Noise, Purpose, derive_seed, forked_generators
from nestruct.processes import add_over_ranks, my_part, my_rank, world_size


@dataclass(frozen=True)
class Share:
    """Which examples of a batch are this rank's: from ``first`` to before ``last``.

    Where there are more ranks than examples some have none. Such a rank goes along with an example
    that does not count, because it takes part in every collective.

    Args:
        total: Examples of the whole batch.
        first: The first of this rank's.
        last: The first that is not this rank's any more.
    """

    total: int
    first: int
    last: int

    @classmethod
    def of(cls, total: int) -> "Share | None":
        """This rank's share; None in a single process."""
        return cls(total, *my_part(total)) if world_size() > 1 else None

    @property
    def counts(self) -> bool:
        """Whether this rank's examples count: False where it goes along with a spare one."""
        return self.first < self.last

    def rows(self, device: torch.device) -> Tensor:
        """The places of this rank's examples in the whole batch."""
        last = self.last if self.counts else self.first + 1
        return torch.arange(self.first, last, device=device) % self.total

    def take(self, batch: Any) -> Any:
        """This rank's examples."""
        return select_rows(batch, self.rows(device_of(batch)))

    def whole(self, values: Float[Tensor, "... mine"]) -> Float[Tensor, "... total"]:
        """The values of all examples, on every rank; not differentiable. A collective."""
        return self.whole_and_sums(values, ())[0]

    def whole_and_sums(
        self, values: Float[Tensor, "... mine"], numbers: Sequence[int]
    ) -> tuple[Float[Tensor, "... total"], Float[Tensor, " numbers"]]:
        """As `whole`, and the sums over ranks of numbers besides, in the same collective."""
        shape = (*values.shape[:-1], self.total)
        every = values.new_zeros(math.prod(shape) + len(numbers), dtype=torch.float64)
        whole, sums = every.split([math.prod(shape), len(numbers)])
        for place, number in enumerate(numbers):
            sums[place] = number
        if self.counts:
            whole.view(shape)[..., self.first : self.last] = values.detach()
        add_over_ranks(every)
        return whole.view(shape).to(values.dtype), sums


_current: ContextVar[Share | None] = ContextVar("share", default=None)


def current_share() -> Share | None:
    """Which part of a larger batch the batch at hand is; None if it is whole."""
    return _current.get()


def sum_over_ranks(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Each gradient's sum over all ranks, in one collective."""
    if world_size() == 1:
        return list(gradients)
    flat = add_over_ranks(torch.cat([gradient.flatten() for gradient in gradients]))
    pieces = flat.split([gradient.numel() for gradient in gradients])
    return [piece.view_as(old).to(old) for piece, old in zip(pieces, gradients, strict=True)]


@contextmanager
def shared_batch(share: Share | None, noise: Noise, device: torch.device) -> Iterator[None]:
    """Within this context batch normalisation is over the examples of all ranks.

    Dropout draws from torch's own generator, which knows no examples: each rank seeds its own.
    """
    if share is None:
        yield
        return
    token = _current.set(share)
    try:
        with _SharedNormalisation(share.counts), forked_generators(device):
            torch.manual_seed(derive_seed(noise.seed, Purpose.STEP, int(noise.step), my_rank()))
            yield
    finally:
        _current.reset(token)


class _SharedNormalisation(TorchFunctionMode):
    """Takes the place of `torch.nn.functional.batch_norm`, which every such layer calls.

    (torch's own SyncBatchNorm is another layer, and refuses tensors on the CPU.)
    """

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, function, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if function is nn.functional.batch_norm and kwargs.get("training"):
            return _batch_norm(*args, **kwargs, counts=self.counts)
        return function(*args, **kwargs)


def _batch_norm(
    x: Float[Tensor, "rows channels *rest"],
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    counts: bool,
) -> Tensor:
    """Batch normalisation over all ranks: one collective forward, and one backward.

    Sums are of distances from the running mean, which all ranks know: of the values themselves they
    would lose digits.
    """
    channels, axes = x.shape[1], (0, *range(2, x.dim()))
    shape = (1, channels, *[1] * (x.dim() - 2))
    near = x.new_zeros(channels) if running_mean is None else running_mean.to(x.dtype).clone()
    distance = (x - near.view(shape)).double()
    if not counts:  # stays a function of x, so that its derivative takes part in the collective
        distance = torch.where(torch.zeros_like(distance, dtype=torch.bool), distance, 0.0)
    number = distance.new_full((1,), x.numel() // channels * counts)
    sums = _AddOverRanks.apply(torch.cat([distance.sum(axes), distance.square().sum(axes), number]))
    number = sums[-1].detach()
    if number.is_cpu and number < 2:  # as torch says of one process; a GPU would have to wait
        raise ValueError("Expected more than 1 value per channel when training, on all processes")
    mean = sums[:channels] / number
    variance = sums[channels:-1] / number - mean.square()
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            unbiased = variance * number / (number - 1).clamp(min=1)
            running_mean.lerp_((mean + near).to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    scale = (variance + eps).rsqrt()
    result = (x - near.view(shape) - mean.to(x.dtype).view(shape)) * scale.to(x.dtype).view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    return result if bias is None else result + bias.view(shape)


class _AddOverRanks(torch.autograd.Function):
    """The sum over ranks, as a differentiable function of every rank's tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return add_over_ranks(tensor.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return add_over_ranks(gradients[0].contiguous().clone())
