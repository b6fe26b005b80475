"""Small instances of every structure, and their oracle: all members, listed."""

import functools
from typing import Any, NamedTuple

import scipy.stats
import torch
from torch import Tensor

from nestruct.structures.base import Enumerable, Gibbs, KBest, Samplable, Structure
from nestruct.structures.dependency_tree import DependencyTree
from nestruct.structures.registry import STRUCTURES


class Case(NamedTuple):
    """A structure and, for dependency trees, a number of words."""

    structure: Any
    size: int | None

    @property
    def is_tree(self) -> bool:
        return self.size is not None

    @property
    def shape(self) -> tuple[int, ...]:
        return (
            (self.size + 1, self.size + 1) if self.size is not None else self.structure.part_shape
        )

    @property
    def num_parts(self) -> int:
        return torch.Size(self.shape).numel()

    def counted(self, scores: Tensor) -> Tensor:
        """Scores as the solver counts them: those of paths with four or eight moves are costs."""
        return scores if self.structure.forced_by_scores else scores.clamp(max=0)

    def members(self, length: int | None = None) -> Tensor:
        """All members, float64; those of a shorter sentence padded to this case's size."""
        return _members(self.structure, self.size, self.size if length is None else length)

    def __repr__(self) -> str:
        return repr(self.structure) + (f" over {self.size} words" if self.is_tree else "")


@functools.cache
def _members(structure: Any, size: int | None, length: int | None) -> Tensor:
    members = structure.enumerate(length).double()
    if size is not None and length is not None:
        padding = size - length
        members = torch.nn.functional.pad(members, (0, padding, 0, padding))
    return members


def _small_cases() -> list[Case]:
    cases = []
    for entry in STRUCTURES.values():
        for options in entry.small:
            structure: Structure = entry.structure(**options)
            sizes = (1, 2, 3, 4) if isinstance(structure, DependencyTree) else (None,)
            cases += [Case(structure, size) for size in sizes]
    return cases


CASES = _small_cases()
GIBBS_CASES = [case for case in CASES if isinstance(case.structure, Gibbs)]
KBEST_CASES = [case for case in CASES if isinstance(case.structure, KBest)]
SAMPLE_CASES = [case for case in CASES if isinstance(case.structure, Samplable)]
TREE_CASES = [case for case in CASES if case.is_tree]
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
