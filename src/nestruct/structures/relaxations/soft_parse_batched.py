"""The soft parse of `soft_parse` in plain torch, for every device: all spans of one width at once.

A chart has two tables for each kind of span that is split: its first halves, by their first node
and width, and its second halves, by their last node and width, the widest first. So the halves of a
span, one pair for each split, are two plain slices. A finished span is written wherever it can
become a half: right spans are first halves of an arc's inside and second halves of right spans,
left spans are first halves of left spans and second halves of an arc's inside, arcs to the right
are first halves of right spans, arcs to the left are second halves of left spans.
"""

import torch
from torch import Tensor

from nestruct.structures.relaxations.log_domain import FORBIDDEN

FIRST, SECOND = 0, 1
RIGHT, LEFT, INNER = 0, 1, 2
# By how much the first halves of a span from i begin after i; and how much the second ones do.
FIRST_FROM = (1, 0, 0)
SECOND_FROM = (1, 0, 1)
# Where a finished span is among first and second halves; INNER: the arcs to the right and left.
PLACES = ((INNER, RIGHT), (LEFT, INNER), (RIGHT, LEFT))


def parse_batched(
    scores: Tensor, lengths: Tensor, single_root: bool, slope: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The soft parse and its value; with ``slope``, g, the derivative by scores instead.

    Reads nothing on the host.
    """
    out, value = torch.zeros_like(scores), scores.new_zeros(len(scores))
    arcs, root = (scores[:, 1:, 1:], scores[:, 0, 1:]) if single_root else (scores, None)
    nodes = arcs.shape[-1]
    if nodes == 0:
        return out, value
    last = (lengths - 1 if single_root else lengths).clamp(0, nodes - 1)[:, None]
    node = torch.arange(nodes, device=scores.device)
    # Where a table by first node and width, flat, has the spans from each node to the last.
    to_last = node * nodes + (last - node).clamp(min=0)
    empty = (lengths == 0)[:, None]

    def whole(sums: Tensor, root: Tensor) -> Tensor:
        """The parts of a whole sentence: the root's arc and what is on either side of its word."""
        after = sums[FIRST, INNER].flatten(1).gather(1, to_last)
        return torch.where(node <= last, root + sums[FIRST, LEFT][:, 0] + after, FORBIDDEN)

    def seed(parts: Tensor) -> Tensor:
        table = arcs.new_zeros(2, 3, *arcs.shape)
        table[FIRST, LEFT][:, 0] = parts
        table[FIRST, INNER].flatten(1).scatter_add_(1, to_last, parts)
        return table

    chart, cells = _up_batched(arcs, arcs, None)
    if root is None:
        value = chart[FIRST, INNER][:, 0].gather(1, last)[:, 0]
        shares = arcs.new_zeros(2, 3, *arcs.shape)
        shares[FIRST, INNER][:, 0].scatter_(1, last, 1.0)
    else:
        parts = whole(chart, root)
        chances = torch.where(empty, 0.0, parts.softmax(-1))
        value = (chances * parts).sum(-1)
        shares = seed(chances)
        out[:, 0, 1:] = chances
    _down_batched(chart, shares, shares, None)
    found = shares
    if slope is not None:
        slopes, root = (slope[:, 1:, 1:], slope[:, 0, 1:]) if single_root else (slope, None)
        means = _up_batched(arcs, slopes, chart)
        found = arcs.new_zeros(2, 3, *arcs.shape)
        if root is not None:
            parts = torch.where(node <= last, whole(means[0], root), 0.0)
            change = chances * (parts - (chances * parts).sum(-1, keepdim=True))
            found = seed(change)
            out[:, 0, 1:] = change
        _down_batched(chart, shares, found, (cells, *means))
    tree = out[:, 1:, 1:] if single_root else out
    for width in range(1, nodes):
        starts, ends, back = slice(0, nodes - width), slice(width, nodes), nodes - 1 - width
        tree.diagonal(width, 1, 2).copy_(found[FIRST, RIGHT][:, starts, width])
        tree.diagonal(-width, 1, 2).copy_(found[SECOND, LEFT][:, ends, back])
    return out, value


def _halves(table: Tensor, kind: int, width: int) -> tuple[Tensor, Tensor]:
    """First and second halves ``[batch, starts, splits]`` of all spans of one width."""
    nodes = table.shape[-1]
    first, second = FIRST_FROM[kind], nodes - width - 1 + SECOND_FROM[kind]
    return (
        table[FIRST, kind][:, : nodes - width, first : first + width],
        table[SECOND, kind][:, width:, second : second + width],
    )


def _up_batched(like: Tensor, arcs: Tensor, chart: Tensor | None) -> tuple[Tensor, Tensor]:
    """`_go_up`: expected sums of arcs with the weights of ``chart``, or with their own."""
    nodes = like.shape[-1]
    sums = like.new_zeros(2, 3, *like.shape)
    cells = like.new_zeros(3, *like.shape)
    chart = sums if chart is None else chart
    for width in range(1, nodes):
        starts, ends, back = slice(0, nodes - width), slice(width, nodes), nodes - 1 - width
        for kind in (INNER, RIGHT, LEFT):
            a, b = _halves(chart, kind, width)
            weights = (a + b).softmax(-1)
            a, b = _halves(sums, kind, width)
            cell = (weights * (a + b)).sum(-1)
            cells[kind][:, starts, width] = cell
            to_right = arcs.diagonal(width, 1, 2) if kind == INNER else 0.0
            to_left = arcs.diagonal(-width, 1, 2) if kind == INNER else 0.0
            first, second = PLACES[kind]
            sums[FIRST, first][:, starts, width] = cell + to_right
            sums[SECOND, second][:, ends, back] = cell + to_left
    return sums, cells


def _down_batched(
    chart: Tensor, shares: Tensor, out: Tensor, given: tuple[Tensor, Tensor, Tensor] | None
) -> None:
    """`_go_down`, in place; ``given`` for derivatives: values of spans, means, means of spans."""
    nodes = chart.shape[-1]

    def collect(table: Tensor, kind: int, width: int) -> Tensor:
        starts, ends, back = slice(0, nodes - width), slice(width, nodes), nodes - 1 - width
        first, second = PLACES[kind]
        total = table[FIRST, first][:, starts, width] + table[SECOND, second][:, ends, back]
        return total[..., None]

    for width in range(nodes - 1, 0, -1):
        for kind in (RIGHT, LEFT, INNER):
            a, b = _halves(chart, kind, width)
            parts = a + b
            weights, share = parts.softmax(-1), collect(shares, kind, width)
            if given is None:
                change = share * weights
            else:
                values, means, mean = given
                value, average = (
                    cells[kind][:, : nodes - width, width, None] for cells in (values, mean)
                )
                pull = collect(out, kind, width)
                a, b = _halves(means, kind, width)
                change = pull * (1 + parts - value) + share * (a + b - average)
                change = change * weights
            for half in _halves(out, kind, width):
                half += change
