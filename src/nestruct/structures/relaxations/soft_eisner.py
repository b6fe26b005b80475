"""Sums over projective dependency trees, and exact samples: Eisner with logsumexp, O(n^3).

The spans and the recurrences are those of ``solvers/eisner.py``. All spans of one width are
computed at once. A table holds, for each start (or end) node, the spans found so far by width;
nothing is edited in place, so both derivatives come from autograd. Its gradient is the marginals of
the Gibbs law; what differentiable perturb-and-parse decodes is `soft_parse`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nestruct.structures.draws import Draws
from nestruct.structures.relaxations.log_domain import FORBIDDEN

RIGHT, LEFT, ARC_RIGHT, ARC_LEFT = 0, 1, 2, 3


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
        right = _inside(scores).right
        return right[..., 0, :].gather(-1, lengths.clamp(0, size - 1)[..., None])[..., 0]
    total = _root_totals(scores, lengths, _inside(scores[..., 1:, 1:])).logsumexp(-1)
    return torch.where(lengths == 0, 0.0, total)


def sample_projective_trees(
    scores: Float[Tensor, "*batch nodes nodes"],
    lengths: Int[Tensor, "*batch"] | None,
    *,
    single_root: bool,
    draws: Draws,
) -> Float[Tensor, "*batch nodes nodes"]:
    """One exact draw per row: from the widest span down, each draws where it is split.

    All spans of one width draw at once. Those that are in no tree do so for nothing.
    """
    size = scores.shape[-1]
    if lengths is None:
        lengths = torch.full(scores.shape[:-2], size - 1, device=scores.device)
    if size == 1:
        return torch.zeros_like(scores)
    some = (lengths > 0)[..., None].to(scores.dtype)
    if not single_root:
        chart = _inside(scores)
        drawn = _Drawn(chart)
        drawn.mark(RIGHT, torch.zeros_like(lengths)[..., None], lengths[..., None], some)
        return drawn.arcs(draws)
    chart = _inside(scores[..., 1:, 1:])
    drawn = _Drawn(chart)
    total = _root_totals(scores, lengths, chart)
    child = (total - draws.log_exponential(total)).argmax(-1, keepdim=True)
    drawn.mark(LEFT, torch.zeros_like(child), child, some)
    drawn.mark(RIGHT, child, (lengths[..., None] - 1 - child).clamp(min=0), some)
    root = torch.zeros_like(total).scatter(-1, child, some)
    z = torch.cat([root[..., None, :], drawn.arcs(draws)], -2)
    return torch.nn.functional.pad(z, (1, 0))


class _Chart(NamedTuple):
    """Sums over spans: complete ones by start (or end) and width, arcs by that and width - 1."""

    right: Tensor
    right_by_end: Tensor
    left: Tensor
    left_by_end: Tensor
    arc_right: Tensor
    arc_left_by_end: Tensor


class _Drawn:
    """Which spans are in the tree that is drawn: ``[..., start * nodes + width]`` by kind."""

    def __init__(self, chart: _Chart) -> None:
        self.chart, self.nodes = chart, chart.right.shape[-2]
        empty = chart.right.new_zeros(*chart.right.shape[:-2], self.nodes**2)
        self.marked = [empty, empty, empty, empty]

    def mark(self, kind: int, start: Tensor, width: Tensor, on: Tensor) -> None:
        """Adds spans to the tree where ``on`` is 1."""
        place = start * self.nodes + width
        self.marked[kind] = self.marked[kind].scatter_add(-1, place, on)

    def arcs(self, draws: Draws) -> Tensor:
        """Draws all splits below what is marked; the arcs of the tree, heads x dependents."""
        chart, nodes = self.chart, self.nodes
        for width in range(nodes - 1, 0, -1):
            starts, ends = slice(0, nodes - width), slice(width, nodes)
            start = torch.arange(nodes - width, device=chart.right.device)
            halves = (
                (chart.arc_right[..., starts, :width], chart.right_by_end[..., ends, :width]),
                (chart.left[..., starts, :width], chart.arc_left_by_end[..., ends, :width]),
                (chart.right[..., starts, :width], chart.left_by_end[..., ends, :width]),
            )
            splits = []
            for first, second in halves:
                parts = first + second.flip(-1)
                splits.append((parts - draws.log_exponential(parts)).argmax(-1))
            begin = start.expand(splits[0].shape)
            on, split = self._on(RIGHT, width), splits[0]
            self.mark(ARC_RIGHT, begin, split + 1, on)
            self.mark(RIGHT, begin + split + 1, width - 1 - split, on)
            on, split = self._on(LEFT, width), splits[1]
            self.mark(LEFT, begin, split, on)
            self.mark(ARC_LEFT, begin + split, width - split, on)
            on, split = self._on(ARC_RIGHT, width) + self._on(ARC_LEFT, width), splits[2]
            self.mark(RIGHT, begin, split, on)
            self.mark(LEFT, begin + split + 1, width - 1 - split, on)
        node = torch.arange(nodes, device=chart.right.device)
        place = torch.minimum(node[:, None], node) * nodes + (node[:, None] - node).abs()
        to_right, to_left = (self.marked[kind][..., place] for kind in (ARC_RIGHT, ARC_LEFT))
        return torch.where(node[:, None] < node, to_right, to_left)

    def _on(self, kind: int, width: int) -> Tensor:
        shape = (*self.marked[kind].shape[:-1], self.nodes, self.nodes)
        return self.marked[kind].view(shape)[..., : self.nodes - width, width]


def _root_totals(scores: Tensor, lengths: Tensor, chart: _Chart) -> Tensor:
    """The sum over trees with each word as the only one below the root."""
    word = torch.arange(scores.shape[-1] - 1, device=scores.device)
    width = lengths[..., None] - 1 - word
    outer = chart.right.gather(-1, width.clamp(0, len(word) - 1)[..., None])[..., 0]
    total = scores[..., 0, 1:] + chart.left[..., 0, :] + outer
    return torch.where(width >= 0, total, FORBIDDEN)


def _inside(scores: Float[Tensor, "*batch nodes nodes"]) -> _Chart:
    """The sums over all spans."""
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
    return _Chart(right, right_by_end, left, left_by_end, arc_right, arc_left_by_end)


def _append(table: Tensor, spans: Tensor, *, by_start: bool) -> Tensor:
    """Adds the spans of the next width as a column; nodes without one get `FORBIDDEN`."""
    missing = table.shape[-2] - spans.shape[-1]
    column = torch.nn.functional.pad(
        spans, (0, missing) if by_start else (missing, 0), value=FORBIDDEN
    )
    return torch.cat([table, column[..., None]], -1)
