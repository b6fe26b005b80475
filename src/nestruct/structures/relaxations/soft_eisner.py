"""Sums over projective dependency trees: Eisner with logsumexp in place of max, O(n^3).

The spans and the recurrences are those of ``solvers/eisner.py``. All spans of one width are
computed at once. A table holds, for each start (or end) node, the spans found so far by width;
nothing is edited in place, so both derivatives come from autograd. Its gradient is the marginals of
the Gibbs law; what differentiable perturb-and-parse decodes is `soft_parse`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nestruct.structures.relaxations.log_domain import FORBIDDEN


def log_projective_trees(
    scores: Float[Tensor, "*batch nodes nodes"],
    lengths: Int[Tensor, "*batch"] | None,
    *,
    single_root: bool,
) -> Float[Tensor, "*batch"]:
    """Log of the sum over projective trees below node 0 of ``exp(sum of arc scores)``."""
    size = scores.shape[-1]
    if lengths is None:
        lengths = torch.full(scores.shape[:-2], size - 1, device=scores.device)
    if size == 1:
        return scores.new_zeros(scores.shape[:-2])
    if not single_root:
        right, _ = _inside(scores)
        return right[..., 0, :].gather(-1, lengths.clamp(0, size - 1)[..., None])[..., 0]
    right, left = _inside(scores[..., 1:, 1:])
    word = torch.arange(size - 1, device=scores.device)
    width = lengths[..., None] - 1 - word
    outer = right.gather(-1, width.clamp(0, size - 2)[..., None])[..., 0]
    total = torch.where(
        width >= 0, scores[..., 0, 1:] + left[..., 0, :] + outer, FORBIDDEN
    ).logsumexp(-1)
    return torch.where(lengths == 0, 0.0, total)


def _inside(scores: Float[Tensor, "*batch nodes nodes"]) -> tuple[Tensor, Tensor]:
    """Complete spans headed at their left and right end, each ``[..., start, width]``."""
    nodes = scores.shape[-1]
    zero = scores.new_zeros(*scores.shape[:-2], nodes, 1)
    right = right_by_end = left = left_by_end = zero
    arc_right = arc_left_by_end = zero[..., :0]
    for width in range(1, nodes):
        starts, ends = slice(0, nodes - width), slice(width, nodes)
        inner = (right[..., starts, :] + left_by_end[..., ends, :].flip(-1)).logsumexp(-1)
        arc_right = _append(arc_right, inner + scores.diagonal(width, -2, -1), by_start=True)
        arc_left_by_end = _append(
            arc_left_by_end, inner + scores.diagonal(-width, -2, -1), by_start=False
        )
        span = (arc_right[..., starts, :] + right_by_end[..., ends, :].flip(-1)).logsumexp(-1)
        left_span = (left[..., starts, :] + arc_left_by_end[..., ends, :].flip(-1)).logsumexp(-1)
        right, right_by_end = (
            _append(right, span, by_start=True),
            _append(right_by_end, span, by_start=False),
        )
        left, left_by_end = (
            _append(left, left_span, by_start=True),
            _append(left_by_end, left_span, by_start=False),
        )
    return right, left


def _append(table: Tensor, spans: Tensor, *, by_start: bool) -> Tensor:
    """Adds the spans of the next width as a column; nodes without one get `FORBIDDEN`."""
    missing = table.shape[-2] - spans.shape[-1]
    column = torch.nn.functional.pad(
        spans, (0, missing) if by_start else (missing, 0), value=FORBIDDEN
    )
    return torch.cat([table, column[..., None]], -1)
