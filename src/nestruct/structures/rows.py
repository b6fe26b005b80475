"""What happens to a row that has no answer: an error that names it, or NaN.

Every solver and every partition function gives each row (one instance of a batch) a code. Called
directly, a row that is not ``OK`` raises and is named. Inside ``torch.vmap``, inside a CUDA graph
capture and inside `nan_rows` nothing raises: the row comes back NaN, so that the population member
it belongs to loses its pair and is counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from nestruct.errors import InputError

OK, NOT_FINITE, NO_MEMBER, BAD_LENGTH, BAD_ENDS, TIMED_OUT, CRASHED, NO_ANSWER = range(8)
REASONS = {
    NOT_FINITE: "holds NaN or +inf where it counts: check what produced it (-inf forbids a part)",
    NO_MEMBER: "leaves no legal member: allow more parts (-inf forbids a part)",
    BAD_LENGTH: "has a length that does not fit its scores (of a tree: words, without the root)",
    TIMED_OUT: "took longer than the timeout: allow more seconds, or an easier instance",
    NO_ANSWER: "has no answer: the solver returned NaN for it",
    CRASHED: "crashed the solver's process twice: look for a fault of memory in the solver",
    BAD_ENDS: "has a start or goal that is no cell: cells are numbered row by row, from 0",
}

_strict: ContextVar[bool] = ContextVar("nestruct_strict_rows", default=True)


@contextmanager
def nan_rows() -> Iterator[None]:
    """Within this context a row without an answer comes back NaN instead of raising.

    What `torch.vmap` gives by itself; for code that evaluates a population member by member.

    Example:
        >>> import torch, nestruct
        >>> with nestruct.nan_rows():
        ...     nestruct.Categorical(2).argmax(torch.tensor([[0.0, 1.0], [0.0, torch.nan]]))
        tensor([[0., 1.],
                [nan, nan]])
    """
    token = _strict.set(False)
    try:
        yield
    finally:
        _strict.reset(token)


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured, where nothing may read a tensor on the host."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def may_raise(tensor: Tensor) -> bool:
    """Whether a bad row raises here: neither in a capture nor within `nan_rows`."""
    return _strict.get() and not is_capturing(tensor)


def raise_bad_rows(codes: Tensor, owner: str) -> None:
    """Raises for the first row that is not ``OK``, named by its index in the leading axes."""
    bad = codes.nonzero()
    if not len(bad):
        return
    index = tuple(bad[0].tolist())
    where = f" row {index[0] if len(index) == 1 else index}" if index else ""
    more = f" ({len(bad)} such rows)" if len(bad) > 1 else ""
    raise InputError(f"{owner}: scores{where} {REASONS[int(codes[index])]}{more}.")


def check_rows(codes: Tensor, owner: str) -> Tensor:
    """Raises for bad rows where that is allowed; returns the codes."""
    return _check_rows(codes, owner, True)


@torch.library.custom_op("nestruct::check_rows", mutates_args=())
def _check_rows(codes: Tensor, owner: str, strict: bool) -> Tensor:
    if strict and may_raise(codes):
        raise_bad_rows(codes, owner)
    return codes.clone()


@_check_rows.register_fake
def _(codes, owner, strict):
    return torch.empty_like(codes)


@_check_rows.register_vmap
def _(info, in_dims, codes, owner, strict):
    return _check_rows(codes.movedim(in_dims[0], 0), owner, False), 0
