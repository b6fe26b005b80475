"""The instances of a padded batch: each cut to its own size, and their answers put together again.

Along every axis of parts that may vary, an instance ends at its last part that counts. Context is
cut with it: an axis as long as that axis of the padded scores is one entry per part, or per row or
column of parts. So a function sees an instance as though it were alone.
"""

import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from nestruct.errors import InputError

Instance = tuple[Any, dict[str, Any]]  # scores and context, in the solver's own kind of array
Sizes = tuple[int, ...]


def own_sizes(mask: Bool[Tensor, "rows ..."], varies: Sequence[bool]) -> list[Sizes]:
    """The size of each instance: up to its last part that counts, along the axes that vary.

    Example:
        >>> import torch
        >>> own_sizes(torch.tensor([[True, False, False], [True, False, True]]), [True])
        [(1,), (3,)]
    """
    columns = [[size] * len(mask) for size in mask.shape[1:]]
    for axis, may_vary in enumerate(varies):
        if may_vary:
            used = mask.movedim(axis + 1, 1).reshape(*mask.shape[:1], mask.shape[axis + 1], -1)
            place = torch.arange(1, mask.shape[axis + 1] + 1, device=mask.device)
            columns[axis] = (used.any(2) * place).amax(1).tolist()
    return list(zip(*columns, strict=True))


class Cutter:
    """Cuts instances out of padded arrays, and remembers which context it cut.

    Args:
        owner: Whose instances these are, for error messages.
        varies: Which axes of parts may vary.
        whole: The names of context that is never cut.
    """

    def __init__(self, owner: str, varies: Sequence[bool], whole: Collection[str]) -> None:
        self.owner, self.varies, self.whole = owner, tuple(varies), frozenset(whole)
        self._seen: dict[str, bool] = {}  # whether context was cut

    def cut(self, rows: Any, context: dict[str, Any], sizes: Sequence[Sizes]) -> list[Instance]:
        """The instances of ``rows`` and ``context``, arrays that they may share memory with."""
        parts = tuple(rows.shape[1:])
        if all(own == parts for own in sizes):
            names = list(context)
            each = zip(*context.values(), strict=True) if names else [()] * len(rows)
            named = [dict(zip(names, values, strict=True)) for values in each]
            return list(zip(rows, named, strict=True))
        axes = {name: self._axes(name, tuple(v.shape[1:]), parts) for name, v in context.items()}
        return [
            (
                _slice(rows[row], own),
                {
                    name: _slice(value[row], self._ends(name, value.shape[1:], axes[name], own))
                    for name, value in context.items()
                },
            )
            for row, own in enumerate(sizes)
        ]

    def _axes(self, name: str, shape: Sizes, parts: Sizes) -> list[Sizes]:
        """For each axis of a context tensor, the axes of parts that it is cut with."""
        if name in self.whole:
            return [()] * len(shape)
        varying = [place for place, varies in enumerate(self.varies) if varies]
        found = [tuple(p for p in varying if parts[p] == size) for size in shape]
        if shape[: len(parts)] == parts:  # one entry per part: each axis has its own place
            found[: len(parts)] = [(p,) if p in varying else () for p in range(len(parts))]
        is_cut = any(found)
        if self._seen.setdefault(name, is_cut) != is_cut:
            raise InputError(
                f"{self.owner}: an axis of the context {name!r} is as long as the padded scores in "
                f"some batches only (here it is {list(shape)}, scores are {list(parts)}); pad it "
                f"as the scores, or say whole=({name!r},)."
            )
        return found

    def _ends(self, name: str, shape: Any, axes: list[Sizes], own: Sizes) -> Sizes:
        """Where an instance ends in a context tensor."""
        ends = []
        for size, places in zip(shape, axes, strict=True):
            sizes = {own[place] for place in places}
            if len(sizes) > 1:
                raise InputError(
                    f"{self.owner}: the context {name!r} has an axis of {size}, as more than one "
                    f"axis of the padded scores has, so it is not known which of {list(own)} to "
                    f"cut it to; give it one entry per part, in the shape of the scores, or say "
                    f"whole=({name!r},)."
                )
            ends.append(sizes.pop() if sizes else size)
        return tuple(ends)


def put_together(answers: Sequence[Tensor], parts: Sizes) -> Tensor:
    """The answers of all instances, ``[rows, *parts]``, zeros where one is smaller."""
    dtype = functools.reduce(torch.promote_types, (answer.dtype for answer in answers))
    device = answers[0].device
    if all(tuple(answer.shape) == parts for answer in answers):
        return torch.stack([answer.to(device, dtype) for answer in answers])
    result = torch.zeros(len(answers), *parts, dtype=dtype, device=device)
    for row, answer in zip(result, answers, strict=True):
        row[tuple(slice(size) for size in answer.shape)] = answer
    return result


def _slice(array: Any, ends: Sizes) -> Any:
    """The first entries along each axis, in memory of their own where they are not in one piece."""
    if not ends:
        return array
    part = array[tuple(map(slice, ends))]
    return part.contiguous() if isinstance(part, Tensor) else np.ascontiguousarray(part)
