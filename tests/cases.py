"""Small instances of every structure, and their oracle: all members, listed."""

import functools
from typing import Any, NamedTuple

import scipy.stats
import torch
from hypothesis import strategies as st
from torch import Tensor

from nestruct.structures.alignment import Alignment
from nestruct.structures.base import Enumerable, Gibbs, KBest, Samplable, Structure
from nestruct.structures.dependency_tree import DependencyTree
from nestruct.structures.dynamic_programme import DynamicProgramme
from nestruct.structures.registry import STRUCTURES


class Case(NamedTuple):
    """A structure and, where instances differ in size, a size."""

    structure: Any
    size: int | None

    @property
    def is_sized(self) -> bool:
        return self.size is not None

    @property
    def least(self) -> int:
        """The smallest size that there is."""
        if isinstance(self.structure, DynamicProgramme):
            goals = self.structure.recurrence(*_sizes(self, 2)).goals
            return int((goals.reshape(3, -1)[:, -1] >= 0).argmax())
        return 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shape_of(self.size)

    def shape_of(self, size: int | None) -> tuple[int, ...]:
        if size is None:
            return self.structure.part_shape
        if isinstance(self.structure, DependencyTree):
            return (size + 1, size + 1)
        return self.structure.shape(*_sizes(self, size))

    def wider(self, more: int) -> tuple[int, ...]:
        """The shape of scores with padding for a size that is larger."""
        assert self.size is not None
        return self.shape_of(self.size + more)

    @property
    def num_parts(self) -> int:
        return torch.Size(self.shape).numel()

    def counted(self, scores: Tensor) -> Tensor:
        """Scores as the solver counts them: those of paths with four or eight moves are costs."""
        return scores if self.structure.forced_by_scores else scores.clamp(max=0)

    def members(self, length: int | None = None) -> Tensor:
        """All members, float64; those of a shorter instance padded to this case's size."""
        return _members(self, self.size if length is None else length)

    def lengths(self, data: Any, rows: int) -> tuple[Tensor | None, list[int | None]]:
        """Sizes of several rows, drawn by hypothesis, and as a list."""
        if self.size is None:
            return None, [None] * rows
        each = st.integers(self.least, self.size)
        drawn = data.draw(st.lists(each, min_size=rows, max_size=rows))
        return torch.tensor(drawn), drawn

    def first_part(self) -> tuple[int, ...]:
        """A part that counts in the smallest instance that has one."""
        every = self.members().any(0).nonzero()[0]
        return tuple(every.tolist())

    def __repr__(self) -> str:
        return repr(self.structure) + (f" of size {self.size}" if self.is_sized else "")


def _sizes(case: Case, size: int) -> tuple[int, ...]:
    """An alignment's number of columns is that of the case: ``lengths`` are its rows."""
    return (size, case.size or size) if isinstance(case.structure, Alignment) else (size,)


@functools.cache
def _members(case: Case, length: int | None) -> Tensor:
    if length is None or isinstance(case.structure, DependencyTree):
        members = case.structure.enumerate(length).double()
    else:
        members = case.structure.enumerate(_sizes(case, length)).double()
    return pad(members, case.shape)


def pad(parts: Tensor, shape: tuple[int, ...], value: float = 0.0) -> Tensor:
    """Parts with padding at the end of their axes, up to a shape."""
    missing = [more - size for more, size in zip(shape, parts.shape[-len(shape) :], strict=True)]
    both = [each for more in reversed(missing) for each in (0, more)]
    return torch.nn.functional.pad(parts, both, value=value)


def _small_cases() -> list[Case]:
    cases = []
    for entry in STRUCTURES.values():
        for options in entry.small:
            structure: Structure = entry.structure(**options)
            sizes: tuple[int | None, ...] = (None,)
            if isinstance(structure, DependencyTree):
                sizes = (1, 2, 3, 4)
            elif isinstance(structure, DynamicProgramme):
                sizes = (2, 3)
            cases += [Case(structure, size) for size in sizes]
    return cases


CASES = _small_cases()
GIBBS_CASES = [case for case in CASES if isinstance(case.structure, Gibbs)]
KBEST_CASES = [case for case in CASES if isinstance(case.structure, KBest)]
SAMPLE_CASES = [case for case in CASES if isinstance(case.structure, Samplable)]
SIZED_CASES = [case for case in CASES if case.is_sized]
PROGRAMME_CASES = [case for case in CASES if isinstance(case.structure, DynamicProgramme)]
assert all(isinstance(case.structure, Enumerable) for case in CASES)


def totals(members: Tensor, scores: Tensor) -> Tensor:
    """``[..., members]``: every member's score in float64, -inf where a part is forbidden."""
    axes = members.dim() - 1
    parts = torch.where(members == 1, scores.double().unsqueeze(-axes - 1), 0.0)
    return parts.flatten(-axes).sum(-1)


def total_of(z: Tensor, scores: Tensor, axes: int) -> Tensor:
    """The score of each ``z`` in float64; parts that are not in it may hold anything."""
    return torch.where(z == 1, scores.double(), 0.0).flatten(-axes).sum(-1)


def chi_square(counts: Tensor, chances: Tensor) -> float:
    """p-value of observed counts; cells expected less than five times are pooled."""
    expected = chances * counts.sum()
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    keep = expected > 0
    assert observed[~keep].sum() == 0
    if keep.sum() == 1:
        return 1.0
    return scipy.stats.chisquare(observed[keep].numpy(), expected[keep].numpy()).pvalue


def count_members(members: Tensor, z: Tensor) -> Tensor:
    """How often each member was drawn; every draw must be one."""
    same = torch.cdist(z.flatten(1).double(), members.flatten(1), p=1) == 0
    assert (same.sum(1) == 1).all()
    return same.sum(0).double()
