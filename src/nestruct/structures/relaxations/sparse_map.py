"""SparseMAP: the point of the convex hull of all members that is nearest to the scores.

V. Niculae et al., "SparseMAP: Differentiable Sparse Structured Inference", 2018:

    z  =  argmax over mixtures z of members of  scores . z - |z|^2 / 2,

a mixture of few members, found by an active-set method that needs nothing but the structure's
argmax. With A the members in the mixture (one per row), the best weights p that sum to 1 are

    p = H^-1 A scores - y (1 . H^-1 A scores - 1) / (1 . y),    H = A A^T + 1 1^T,    y = H^-1 1

(adding 1 1^T to the quadratic form changes nothing where the sum is fixed, and makes it positive
definite). Weights that would be negative leave the mixture one by one; then the argmax at
``scores - z`` is the member that improves the objective most, or none does and z is exact. As long
as the same members stay in the mixture, the derivative is ``A^T S A``, with ``S = H^-1 - y y^T / (1
. y)``.
"""

from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from nestruct.errors import InputError
from nestruct.structures.context import Context

# A gain of no more than this, beside the scores it is the difference of, is rounding.
_TOLERANCE = 1e-12
_ROUNDING = 1e-6  # of weights, whose sum is 1


class Solvable(Protocol):
    """What is needed of a structure: its argmax, and how its scores are laid out."""

    part_axes: int
    binary: bool
    forced_by_scores: bool

    def argmax(self, scores: Tensor, **context: Tensor) -> Tensor:
        """The best member."""
        ...

    def centred(self, scores: Tensor, **context: Tensor) -> Tensor:
        """Scores without what all members have in common."""
        ...


def sparse_map(
    structure: Solvable,
    scores: Tensor,
    *,
    max_iterations: int = 10,
    **context: Tensor,
) -> Float[Tensor, "..."]:
    """The nearest mixture of members to each row of scores; differentiable once.

    Args:
        structure: Any structure: only its argmax is used.
        scores: ``[batch, *parts]``; over a temperature below 1 the mixture is sparser.
        max_iterations: How many members may be added to the first one: solver calls less one. Where
            they do not suffice, the result is the best mixture of those found.
        **context: What else the solver sees of each row.

    Returns:
        Shaped as ``scores``, between 0 and 1.

    Raises:
        InputError: Scores are not float32 or float64 or have no batch axis, members have other
            numbers than 0 and 1, or no iteration is left.
    """
    _check(structure, scores, max_iterations)
    given = {name: value for name, value in context.items() if value is not None}
    return _SparseMAP.apply(scores, structure, given, max_iterations)


def _check(structure: Solvable, scores: Tensor, max_iterations: int) -> None:
    found = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
    if found not in (torch.float32, torch.float64):
        raise InputError(f"sparse_map: scores must be a float32 or float64 tensor, got {found}.")
    if not structure.binary:
        raise InputError(f"sparse_map: members must be 0 and 1; {structure!r} has other numbers.")
    if not structure.forced_by_scores:
        raise InputError(
            f"sparse_map: a positive score counts as 0 in {structure!r}, so its argmax is not "
            "linear in the scores; use a structure of which that is true, such as monotone paths."
        )
    if scores.dim() <= structure.part_axes:
        raise InputError(
            f"sparse_map: scores must be [batch, *parts], got {tuple(scores.shape)} for "
            f"{structure!r}; give one instance as scores[None]."
        )
    if not isinstance(max_iterations, int) or max_iterations < 1:
        raise InputError(
            f"sparse_map: max_iterations must be a whole number of at least 1, got "
            f"{max_iterations!r}."
        )


class _SparseMAP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, structure: Any, context: Any, max_iterations: int) -> Tensor:
        mixture = _Mixture(structure, scores.detach(), context)
        for _ in range(max_iterations):
            if not mixture.improve():
                break
        ctx.save_for_backward(mixture.members, mixture.slope.to(scores.dtype))
        return mixture.z().to(scores.dtype).view(scores.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, slope: Tensor) -> tuple[Tensor, None, None, None]:
        members, by_scores = ctx.saved_tensors
        given = _with_spare(slope.flatten(1))
        by_totals = (by_scores @ _totals(members, given)[:, :, None])[:, :, 0]
        result = _mix(members, by_totals, given.shape[1])[:, :-1]
        return result.reshape(slope.shape), None, None, None


class _Mixture:
    """The mixtures of all rows: members, by the numbers of their parts, and their weights.

    Rows of parts have a spare one at the end, always 0: ``members [batch, slots, ones]`` are filled
    up with its number. A slot without a member is not ``active`` and has weight 0.
    """

    def __init__(self, structure: Solvable, scores: Tensor, context: Context) -> None:
        self.structure, self.shape = structure, scores.shape[1:]
        self.context = {k: v if v.dim() else v.expand(len(scores)) for k, v in context.items()}
        every = torch.arange(len(scores), device=scores.device)
        wide = scores.double()
        z, answered = self._solve(_with_spare(wide.flatten(1)), every)
        # Large offsets would take the digits that count.
        self.scores = _with_spare(structure.centred(wide, **self.context).flatten(1))
        self.failed, self.open = ~answered, answered  # open: what may still improve
        self.members = _parts(z)[:, None]
        self.active = torch.ones(len(z), 1, dtype=torch.bool, device=z.device)
        self.weights = self.scores.new_ones(len(z), 1)
        self.overlaps = _totals(self.members, z)[:, :, None]
        self.totals = _totals(self.members, self.scores)
        self.slope = torch.zeros_like(self.overlaps)

    def z(self) -> Float[Tensor, "batch parts"]:
        """The mixtures; NaN where the solver had no answer."""
        z = _mix(self.members, self.weights, self.scores.shape[1])[:, :-1]
        return torch.where(self.failed[:, None], torch.nan, z)

    def improve(self) -> bool:
        """Adds the best member to each mixture that it improves; whether there is any."""
        rows = self.open.nonzero()[:, 0]
        if not len(rows):
            return False
        members, weights = self.members[rows], self.weights[rows]
        moved = _mix(members, weights, self.scores.shape[1])
        torch.sub(self.scores[rows], moved, out=moved)
        moved[:, -1] = 0.0
        z, answered = self._solve(moved, rows)
        parts = _parts(z)
        values = moved.gather(1, parts)
        gain = values.sum(1) - (weights * _totals(members, moved)).sum(1)
        better = answered & (gain > _TOLERANCE * (1 + values.abs().sum(1)))
        self.open[rows[~better]] = False
        self._add(rows[better], z[better], parts[better])
        self._reweigh(rows[better])
        return bool(better.any())

    def _solve(self, scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The best members, 0 where there is no answer; and which rows have one."""
        context = {name: value[rows] for name, value in self.context.items()}
        each = scores[:, :-1].reshape(len(rows), *self.shape)
        z = self.structure.argmax(each, **context).flatten(1)
        answered = ~z.sum(1).isnan()
        return _with_spare(torch.where(answered[:, None], z, 0.0)), answered

    def _add(self, rows: Tensor, z: Tensor, parts: Tensor) -> None:
        """Puts a member into the first slot that is free, with weight 0."""
        spare = z.shape[1] - 1
        if self.active[rows].all(1).any():
            self.active, self.weights, self.totals = (
                pad(slots, (0, 1)) for slots in (self.active, self.weights, self.totals)
            )
            self.overlaps, self.slope = (pad(m, (0, 1, 0, 1)) for m in (self.overlaps, self.slope))
            self.members = pad(self.members, (0, 0, 0, 1), value=spare)
        slot = (~self.active[rows]).int().argmax(1)
        ones = max(parts.shape[1], self.members.shape[2])
        self.members = pad(self.members, (0, ones - self.members.shape[2]), value=spare)
        self.members[rows, slot] = pad(parts, (0, ones - parts.shape[1]), value=spare)
        overlap = _totals(self.members[rows], z)
        self.overlaps[rows, slot] = overlap
        self.overlaps[rows, :, slot] = overlap
        self.totals[rows, slot] = self.scores[rows].gather(1, parts).sum(1)
        self.active[rows, slot] = True

    def _reweigh(self, rows: Tensor) -> None:
        """The best weights of the members; those that would be negative leave."""
        while len(rows):
            active, weights = self.active[rows], self.weights[rows]
            both = active[:, :, None] & active[:, None, :]
            identity = torch.eye(both.shape[1], dtype=weights.dtype, device=weights.device)
            form = torch.where(both, self.overlaps[rows] + 1, identity)
            root, info = torch.linalg.cholesky_ex(form)
            # On a CPU the inverse of what has none is an error, for all rows.
            root = torch.where((info == 0)[:, None, None], root, identity)
            inverse = torch.where(both, torch.cholesky_inverse(root), 0.0)
            ones = inverse.sum(-1, keepdim=True)
            even = ones / ones.sum(1, keepdim=True)
            slope = inverse - ones * even.mT
            best = (slope @ self.totals[rows][:, :, None] + even)[:, :, 0]
            # Scores so large that rounding chose a member that depends on the others: the mixture
            # stays as it was.
            known = (info == 0) & ((best.sum(1) - 1).abs() < _ROUNDING)
            best = torch.where(known[:, None], best, weights)
            self.open[rows[~known]] = False
            # How far all weights can go before the first of them is 0.
            steps = torch.where(active & (best < 0), weights / (weights - best), torch.inf)
            step, slot = steps.min(1)
            blocked = step < 1
            self.weights[rows] = torch.lerp(weights, best, step.clamp(max=1)[:, None]).clamp(min=0)
            self.slope[rows] = torch.where(known[:, None, None], slope, self.slope[rows])
            rows, slot = rows[blocked], slot[blocked]
            self.active[rows, slot] = False
            self.weights[rows, slot] = 0.0


def _with_spare(rows: Float[Tensor, "batch parts"]) -> Float[Tensor, "batch parts_and_one"]:
    return pad(rows, (0, 1))


def _parts(z: Float[Tensor, "batch parts"]) -> Int[Tensor, "batch ones"]:
    """The numbers of the parts that are 1, filled up with the number of the last."""
    rows, parts = z.nonzero(as_tuple=True)
    count = torch.bincount(rows, minlength=len(z))
    place = torch.arange(len(rows), device=z.device) - (count.cumsum(0) - count)[rows]
    most = int(count.max()) if len(z) else 0
    result = torch.full((len(z), most), z.shape[1] - 1, device=z.device)
    result[rows, place] = parts
    return result


def _totals(
    members: Int[Tensor, "batch slots ones"], values: Float[Tensor, "batch parts"]
) -> Float[Tensor, "batch slots"]:
    """The sum of values over the parts of each member."""
    return values.gather(1, members.flatten(1)).view(members.shape).sum(-1)


def _mix(
    members: Int[Tensor, "batch slots ones"], weights: Float[Tensor, "batch slots"], size: int
) -> Float[Tensor, "batch parts"]:
    """The weighted sum of the members: one after the other, so that it has the same bits again."""
    result = weights.new_zeros(len(members), size)
    for slot in range(members.shape[1]):
        parts = members[:, slot]
        result.scatter_add_(1, parts, weights[:, slot, None].expand(parts.shape))
    return result
