"""The k best members, and the best member with each part, by argmax alone.

E. L. Lawler, "A procedure for computing the K best solutions to discrete optimization problems",
1972 (for assignments: K. G. Murty, 1968). Given the best member z of a set, the rest falls apart
into disjoint sets: child i holds the members that agree with z on the parts before i, in an order
that begins with the parts of z, and differ in part i. The next best member is the best of a child.
Each set is an instance of the same problem, so one batched argmax solves the children of all rows.

A part is forbidden by -inf. A part is forced in one of two ways:

- by forbidding the others of its group, where every member has exactly one part along some axes
  (`one_along`): exact to the last bit;
- else by a score that is larger than all other scores together. Greedy solvers (`KSubset`,
  `SpanningTree`) only compare scores, so that too is exact; sums in other solvers lose what
  float64 cannot hold beside it, some 16 digits below the sum of all finite scores.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.structures.base import KBest, Structure, check_floating
from nestruct.structures.rows import nan_rows

MAX_SCORES = 1 << 23  # in one call of the solver: 64 MB


class KBestStructure(Structure):
    """Gives a structure `kbest` and `max_marginals` by calls of its argmax."""

    def kbest(
        self, scores: Tensor, k: int, **context: Tensor
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """The k best members of each row, best first. See `KBest.kbest`."""
        return _kbest_by_argmax(self, scores, k, context)

    def max_marginals(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "..."]:
        """The best total of a member with each part. See `KBest.max_marginals`."""
        return _max_marginals_by_argmax(self, scores, context)


def kbest(structure: Structure, scores: Tensor, k: int, **context: Tensor) -> tuple[Tensor, Tensor]:
    """The k best members of each row, best first, of any structure with 0/1 members.

    The structure's own method where it has one, else exact partitioning by its argmax. A `BlackBox`
    must then honour -inf: a part with that score is in no answer, and a row without an answer comes
    back NaN.

    Args:
        structure: Any structure whose members are 0 and 1.
        scores: Any leading axes, then the parts of one instance.
        k: How many members.
        **context: What else the solver sees of each example, by name.

    Returns:
        Members ``[k, *scores.shape]`` and their totals ``[k, *leading axes]``. Where there are
        fewer than k members, the others are zeros with a total of -inf. Totals are differentiable.

    Raises:
        InputError: A row has no member or holds NaN, k is not positive, or members are no 0/1.

    Example:
        >>> import torch, nestruct
        >>> z, values = nestruct.structures.kbest(
        ...     nestruct.KSubset(3, 2), torch.tensor([3.0, 1.0, 2.0]), 4)
        >>> values
        tensor([5., 4., 3., -inf])
        >>> z[1]
        tensor([1., 1., 0.])
    """
    own = getattr(type(structure), "kbest", None)
    if own is not None:
        return own(structure, scores, k, **context)
    return _kbest_by_argmax(structure, scores, k, context)


def max_marginals(structure: Structure, scores: Tensor, **context: Tensor) -> Tensor:
    """The best total of a member with each part, of any structure with 0/1 members.

    The structure's own method where it has one, else a call of argmax with each part forced. The
    same is needed of a solver as for `kbest`.

    Returns:
        Shaped as ``scores``, not differentiable; -inf where no member has the part.

    Example:
        >>> import torch, nestruct
        >>> nestruct.structures.max_marginals(
        ...     nestruct.KSubset(3, 2), torch.tensor([3.0, 1.0, 2.0]))
        tensor([5., 4., 5.])
    """
    if isinstance(structure, KBest):
        return structure.max_marginals(scores, **context)
    return _max_marginals_by_argmax(structure, scores, context)


class _Subproblems:
    """Instances of the same scores with parts forced and forbidden, solved together."""

    def __init__(self, owner: str, structure: Structure, scores: Tensor, context: Mapping) -> None:
        check_floating(owner, scores)
        if not structure.binary:
            raise InputError(f"{owner}: members must be 0 and 1; {structure!r} has other numbers.")
        if not structure.forced_by_scores:
            raise InputError(
                f"{owner}: a positive score counts as 0 here, so no part can be forced into a "
                "member, and the best one with it cannot be found by argmax."
            )
        self.structure, self.axes = structure, structure.part_axes
        self.parts = tuple(range(-self.axes, 0))
        given = {name: value for name, value in context.items() if value is not None}
        structure.argmax(scores, **given)  # refuses what cannot be solved, and names the row
        self.lone = scores.dim() == self.axes  # one instance: context has no axis of examples
        if self.lone:
            scores = scores[None]
            given = {n: v[None] if isinstance(v, Tensor) else v for n, v in given.items()}
        self.scores, self.context = scores, given
        self.wide = scores.detach().double()
        counting = structure.counting(self.wide, **given)
        finite = self.wide > -torch.inf
        self.possible = finite if counting is None else finite & counting
        size = torch.where(self.possible, self.wide.abs(), 0.0).sum(self.parts, keepdim=True)
        self.force = 1.0 + 2.0 * size
        self.at_once = max(1, MAX_SCORES // max(1, scores.numel()))

    def solve(self, forced: Bool[Tensor, "..."], forbidden: Bool[Tensor, "..."]) -> tuple:
        """Best members, boolean, and their totals in float64: -inf where there is none."""
        groups = self.structure.one_along
        scores = self.wide.expand(forced.shape)
        if groups:
            forbidden = forbidden | (forced.any(groups, keepdim=True) & ~forced)
        else:
            scores = torch.where(forced, self.force, scores)
        scores = torch.where(forbidden, -torch.inf, scores)
        with nan_rows():
            z = self.structure.argmax(scores, **self.context)
        marked = z == 1
        wrong = torch.where(marked, forbidden | ~self.possible, forced | z.isnan())
        total = torch.where(marked, self.wide, 0.0).sum(self.parts)
        return marked, torch.where(wrong.any(self.parts), -torch.inf, total)

    def place(self, index: Tensor) -> Bool[Tensor, "..."]:
        """``[index, *parts]`` with axes of size 1 for the rows: where the number of a part is."""
        shape = self.scores.shape[self.scores.dim() - self.axes :]
        number = torch.arange(math.prod(shape), device=index.device).view(shape)
        rows = self.scores.dim() - self.axes
        return index.view(-1, *[1] * (rows + self.axes)) == number


def _kbest_by_argmax(
    structure: Structure, scores: Tensor, k: int, context: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    owner = f"{structure!r}.kbest"
    k = check_count(owner, "k", k, 1)
    problem = _Subproblems(owner, structure, scores, context)
    nothing = torch.zeros_like(problem.possible)[None]
    z, total = problem.solve(nothing, nothing)
    # Candidates, best first: a member, its total, and the parts forced and forbidden in its set.
    pool = (z, total, nothing, nothing | ~problem.possible)
    failed = total[0] == -torch.inf
    found = []
    for left in range(k - 1, -1, -1):
        best = tuple(entry[0] for entry in pool)
        found.append(best[:2])
        if left:
            pool = _branch(problem, best, tuple(entry[1:] for entry in pool), left)
    z = torch.stack([member for member, _ in found])
    total = torch.stack([value for _, value in found])
    axes = problem.axes
    # From the scores that were given, so that totals are differentiable; ranks are those of total.
    values = torch.where(z, problem.scores, 0.0).flatten(-axes).sum(-1, dtype=torch.float64)
    values = torch.where(total > -torch.inf, values, -torch.inf).to(scores.dtype)
    values = torch.where(failed, torch.nan, values)
    members = torch.where(failed[(...,) + (None,) * axes], torch.nan, z.to(scores.dtype))
    return (members[:, 0], values[:, 0]) if problem.lone else (members, values)


def _branch(problem: _Subproblems, best: tuple, pool: tuple, keep: int) -> tuple:
    """The best ``keep`` candidates once the set of the best one has been taken apart."""
    z, total, forced, forbidden = best
    axes = problem.axes
    flat = z.flatten(-axes).long()
    count = flat.sum(-1, keepdim=True)
    place = torch.where(flat == 1, flat.cumsum(-1) - 1, count - 1 + (1 - flat).cumsum(-1))
    place = place.view(z.shape)
    settled = torch.where(z, forced, forbidden)  # it cannot be changed in this set
    open_set = total > -torch.inf
    children = _num_children(problem)
    for start in range(0, children, problem.at_once):
        index = torch.arange(start, min(children, start + problem.at_once), device=z.device)
        index = index.view(-1, *[1] * z.dim())
        before, here = place < index, place == index
        if not problem.structure.nested:
            here = here & z
        now_forced = forced | (before & z) | (here & ~z)
        now_forbidden = forbidden | (before & ~z) | (here & z)
        new_z, new_total = problem.solve(now_forced, now_forbidden)
        legal = open_set & (here & ~settled).any(problem.parts)
        new_total = torch.where(legal, new_total, -torch.inf)
        new_z = new_z & (new_total > -torch.inf)[(...,) + (None,) * axes]
        new = (new_z, new_total, now_forced, now_forbidden)
        pool = best_of([torch.cat(pair) for pair in zip(pool, new, strict=True)], keep, axes)
    if not len(pool[0]):  # every part of the best member is settled
        empty = torch.zeros_like(z)[None]
        pool = (empty, torch.full_like(total, -torch.inf)[None], empty, empty)
    return pool


def best_of(pool: list[Tensor], keep: int, axes: int) -> tuple:
    """The best ``keep`` candidates by their totals, the second entry; parts have ``axes`` axes."""
    # Sorted, not topk: equal totals then keep their order on every device.
    order = pool[1].sort(dim=0, descending=True, stable=True).indices[:keep]
    parts = order[(...,) + (None,) * axes]
    return tuple(
        entry.gather(0, order if entry.dim() == order.dim() else parts.expand(-1, *entry.shape[1:]))
        for entry in pool
    )


def _num_children(problem: _Subproblems) -> int:
    """How many parts one after the other tell a member from all others of its set."""
    structure = problem.structure
    shape = problem.scores.shape[problem.scores.dim() - problem.axes :]
    if structure.one_along:
        return math.prod(shape) // max(1, math.prod(shape[axis] for axis in structure.one_along))
    rank = getattr(structure, "rank", None)
    return math.prod(shape) if structure.nested or rank is None else rank


def _max_marginals_by_argmax(
    structure: Structure, scores: Tensor, context: Mapping[str, Any]
) -> Tensor:
    problem = _Subproblems(f"{structure!r}.max_marginals", structure, scores, context)
    axes, possible = problem.axes, problem.possible
    failed = problem.solve(torch.zeros_like(possible), torch.zeros_like(possible))[1] == -torch.inf
    size, best = math.prod(possible.shape[possible.dim() - axes :]), []
    for start in range(0, size, problem.at_once):
        index = torch.arange(start, min(size, start + problem.at_once), device=scores.device)
        here = problem.place(index)
        forced = here.expand(-1, *possible.shape)
        _, total = problem.solve(forced, ~possible & ~forced)
        best.append(torch.where((here & possible).any(problem.parts), total, -torch.inf))
    result = (
        torch.full_like(problem.wide, -torch.inf) if not best else torch.cat(best).movedim(0, -1)
    )
    result = torch.where(failed[..., None], torch.nan, result.reshape(*failed.shape, size))
    return result.to(scores.dtype).reshape(scores.shape)
