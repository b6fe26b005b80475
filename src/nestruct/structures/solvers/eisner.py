"""Best projective dependency tree: Eisner's algorithm in O(n^3).

J. Eisner, "Three new probabilistic models for dependency parsing", 1996. ``scores[h, m]`` is the
arc from head h to dependent m, node 0 the root. Spans i <= j come in four kinds: complete (all of
i..j below one end) and incomplete (an arc joins i and j), each headed at its left end (``right``,
pointing right) or its right end (``left``):

    inner(i, j)     = max over i <= k < j of  right(i, k) + left(k+1, j)

    arc_right(i, j) = inner(i, j) + scores[i, j]

    arc_left(i, j)  = inner(i, j) + scores[j, i]

    right(i, j)     = max over i < k <= j of  arc_right(i, k) + right(k, j)

    left(i, j)      = max over i <= k < j of  left(i, k) + arc_left(k, j)

With a single root the chart covers the words only, and the root picks the word m with the best
``left(1, m) + right(m, n) + scores[0, m]``. Without, it is an ordinary left end: ``right(0, n)``.
"""

import numpy as np
import torch
from torch import Tensor

from nestruct.kernels import LANES, jit
from nestruct.structures.rows import BAD_LENGTH, NO_MEMBER, NOT_FINITE, OK

RIGHT, LEFT, ARC_RIGHT, ARC_LEFT = 0, 1, 2, 3


@jit
def eisner_kernel(rows, lengths, single_root, z, codes):
    """CPU kernel: ``rows [count, n+1, n+1]`` to 0/1 ``z``, one code per row.

    ``LANES`` sentences are filled side by side, so the inner loop has no branch and no dependency
    from one step to the next. The chart keeps maxima only. Back-pointers are found again on the way
    down, for the 2n spans of the best tree instead of all n^2: that leaves the O(n^3) loop without
    a comparison to remember.
    """
    count, size = rows.shape[0], rows.shape[1]
    first = 1 if single_root else 0
    scores = np.empty((size, size, LANES))
    right = np.empty((size, size, LANES))
    left = np.empty((size, size, LANES))
    arc_right = np.empty((size, size, LANES))
    arc_left = np.empty((size, size, LANES))
    column = np.empty((3, size, LANES))
    stack = np.empty((3 * size + 3, 3), np.int64)
    order = np.argsort(lengths)  # sentences of like length share a chart
    for start in range(0, count, LANES):
        lanes = min(LANES, count - start)
        longest = 0
        for lane in range(LANES):
            row = order[start + min(lane, lanes - 1)]
            codes[row] = _load(rows[row], lengths[row], scores, lane, z[row])
            if codes[row] != BAD_LENGTH:
                longest = max(longest, lengths[row])
        _fill(scores, right, left, arc_right, arc_left, column, first, longest)
        for lane in range(lanes):
            row = order[start + lane]
            if codes[row] == OK:
                codes[row] = _trace(
                    scores[:, :, lane],
                    right[:, :, lane],
                    left[:, :, lane],
                    arc_right[:, :, lane],
                    arc_left[:, :, lane],
                    stack,
                    lengths[row],
                    single_root,
                    z[row],
                )


@jit
def _load(source, length, scores, lane, z):
    """Copies one sentence into its lane; what does not count becomes 0, arcs into the root -inf."""
    size = source.shape[0]
    for h in range(size):
        for m in range(size):
            z[h, m] = 0
    if length < 0 or length >= size:
        for h in range(size):
            for m in range(size):
                scores[h, m, lane] = 0.0
        return BAD_LENGTH
    code = OK
    for h in range(size):
        for m in range(size):
            value = 0.0
            if h <= length and 0 < m <= length and h != m:
                value = source[h, m]
                if not value < np.inf:
                    code = NOT_FINITE
                    value = 0.0
            elif m == 0:
                value = -np.inf
            scores[h, m, lane] = value
    return code


@jit
def _fill(scores, right, left, arc_right, arc_left, column, first, longest):
    """Fills the charts; ``column`` holds left, right and arc_left of the current j."""
    best = np.empty(LANES)
    for j in range(first, longest + 1):
        for lane in range(LANES):
            right[j, j, lane] = 0.0
            left[j, j, lane] = 0.0
            column[0, j, lane] = 0.0
            column[1, j, lane] = 0.0
        for i in range(j - 1, first - 1, -1):
            for lane in range(LANES):
                best[lane] = -np.inf
            for k in range(i, j):
                for lane in range(LANES):
                    value = right[i, k, lane] + column[0, k + 1, lane]
                    best[lane] = value if value > best[lane] else best[lane]
            for lane in range(LANES):
                arc_right[i, j, lane] = best[lane] + scores[i, j, lane]
                value = best[lane] + scores[j, i, lane]
                arc_left[i, j, lane] = value
                column[2, i, lane] = value
                best[lane] = -np.inf
            for k in range(i + 1, j + 1):
                for lane in range(LANES):
                    value = arc_right[i, k, lane] + column[1, k, lane]
                    best[lane] = value if value > best[lane] else best[lane]
            for lane in range(LANES):
                right[i, j, lane] = best[lane]
                column[1, i, lane] = best[lane]
                best[lane] = -np.inf
            for k in range(i, j):
                for lane in range(LANES):
                    value = left[i, k, lane] + column[2, k, lane]
                    best[lane] = value if value > best[lane] else best[lane]
            for lane in range(LANES):
                left[i, j, lane] = best[lane]
                column[0, i, lane] = best[lane]


@jit
def _trace(scores, right, left, arc_right, arc_left, stack, length, single_root, z):
    """Walks one sentence's chart down from its best whole span and marks the arcs."""
    if length == 0:
        return OK
    depth = 0
    if single_root:
        top, child = -np.inf, 0
        for m in range(1, length + 1):
            value = scores[0, m] + left[1, m] + right[m, length]
            if value > top:
                top, child = value, m
        if top == -np.inf:
            return NO_MEMBER
        z[0, child] = 1
        stack[0, 0], stack[0, 1], stack[0, 2] = LEFT, 1, child
        stack[1, 0], stack[1, 1], stack[1, 2] = RIGHT, child, length
        depth = 2
    else:
        if right[0, length] == -np.inf:
            return NO_MEMBER
        stack[0, 0], stack[0, 1], stack[0, 2] = RIGHT, 0, length
        depth = 1
    while depth > 0:
        depth -= 1
        kind, i, j = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        if i == j:
            continue
        top, split = -np.inf, i
        if kind == RIGHT:
            for k in range(i + 1, j + 1):
                value = arc_right[i, k] + right[k, j]
                if value > top:
                    top, split = value, k
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = ARC_RIGHT, i, split
            stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = RIGHT, split, j
        elif kind == LEFT:
            for k in range(i, j):
                value = left[i, k] + arc_left[k, j]
                if value > top:
                    top, split = value, k
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = LEFT, i, split
            stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = ARC_LEFT, split, j
        else:
            if kind == ARC_RIGHT:
                z[i, j] = 1
            else:
                z[j, i] = 1
            for k in range(i, j):
                value = right[i, k] + left[k + 1, j]
                if value > top:
                    top, split = value, k
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = RIGHT, i, split
            stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = LEFT, split + 1, j
        depth += 2
    return OK


def eisner_batched(rows: Tensor, lengths: Tensor | None, single_root: int) -> tuple[Tensor, Tensor]:
    """Every device, no host synchronisation; on CUDA by a kernel, else by `fill_by_width`."""
    count, size = rows.shape[0], rows.shape[1]
    device = rows.device
    node = torch.arange(size, device=device)
    if lengths is None:
        lengths = torch.full((count,), size - 1, device=device)
    bad_length = (lengths < 0) | (lengths >= size)
    lengths = lengths.clamp(0, size - 1)
    real = node <= lengths[:, None]
    counts = real[:, :, None] & real[:, None, :] & (node[:, None] != node) & (node > 0)
    scores = torch.where(counts, rows, 0.0)
    not_finite = ~(scores < torch.inf).flatten(1).all(1)
    scores = torch.where(not_finite[:, None, None], 0.0, scores)
    if size == 1:
        return torch.zeros_like(rows), torch.where(bad_length, BAD_LENGTH, OK)
    scores[:, :, 0] = -torch.inf
    if rows.is_cuda:
        from nestruct.structures.solvers.eisner_cuda import eisner_cuda

        heads, best = eisner_cuda(scores.contiguous(), lengths, single_root)
        z = torch.zeros_like(rows).scatter_(1, heads[:, None, :], 1.0)
        z *= (real & (node > 0))[:, None, :]
    else:
        z, best = fill_by_width(scores, lengths, single_root)
    codes = torch.where((best > -torch.inf) | (lengths == 0), OK, NO_MEMBER)
    codes = torch.where(not_finite, NOT_FINITE, codes)
    return z, torch.where(bad_length, BAD_LENGTH, codes)


def fill_by_width(scores: Tensor, lengths: Tensor, single_root: int) -> tuple[Tensor, Tensor]:
    """The best tree and its score, all spans of one width at once.

    Tables are indexed by a span's start (or end) and its width; those indexed by end run backwards
    in width, so that both factors of every split are plain slices.

    Args:
        scores: ``[row, head, dependent]``, -inf where an arc is not allowed.
        lengths: Words of each row.
        single_root: Whether exactly one word hangs from the root.
    """
    count, device = scores.shape[0], scores.device
    z = torch.zeros_like(scores)
    root = scores[:, 0, 1:]
    chart_scores = scores[:, 1:, 1:] if single_root else scores
    m = chart_scores.shape[-1]
    last = lengths - 1 if single_root else lengths  # the sentence's last node in the chart

    def table() -> Tensor:
        return torch.full((count, m, m), -torch.inf, dtype=scores.dtype, device=device)

    right, right_by_end, left, left_by_end = table(), table(), table(), table()
    arc_right, arc_left_by_end = table(), table()
    for complete in (right, left):
        complete[:, :, 0] = 0.0
    for complete in (right_by_end, left_by_end):
        complete[:, :, m - 1] = 0.0
    # Back-pointers of arcs, right and left spans, by start and width.
    splits = torch.zeros(3, count, m, m, dtype=torch.long, device=device)
    for width in range(1, m):
        starts, ends, back = slice(0, m - width), slice(width, m), m - 1 - width
        best, split = (right[:, starts, :width] + left_by_end[:, ends, back + 1 :]).max(-1)
        splits[0, :, starts, width] = split
        arc_right[:, starts, width] = best + chart_scores.diagonal(width, 1, 2)
        arc_left_by_end[:, ends, back] = best + chart_scores.diagonal(-width, 1, 2)
        best, split = (arc_right[:, starts, 1 : width + 1] + right_by_end[:, ends, back + 1 :]).max(
            -1
        )
        splits[1, :, starts, width] = split + 1
        right[:, starts, width] = best
        right_by_end[:, ends, back] = best
        best, split = (left[:, starts, :width] + arc_left_by_end[:, ends, back : m - 1]).max(-1)
        splits[2, :, starts, width] = split
        left[:, starts, width] = best
        left_by_end[:, ends, back] = best

    # Spans of the best tree, marked from the widest down; an unmarked span adds nothing to its
    # parts.
    marked = torch.zeros(4, count, m * m, dtype=scores.dtype, device=device)
    if single_root:
        reach = last[:, None] - torch.arange(m, device=device)  # width from each word to the last
        outer = right.gather(2, reach.clamp(min=0)[:, :, None])[:, :, 0]
        total = torch.where(reach >= 0, root + left[:, 0] + outer, -torch.inf)
        best, child = total.max(-1, keepdim=True)
        one = (lengths > 0)[:, None].to(scores.dtype)
        z[:, 0, 1:].scatter_(1, child, one)
        marked[LEFT].scatter_(1, child, one)
        marked[RIGHT].scatter_(1, child * m + (last[:, None] - child).clamp(min=0), one)
    else:
        best = right[:, 0].gather(1, last[:, None])
        marked[RIGHT].scatter_(1, last[:, None], 1.0)
    view = marked.view(4, count, m, m)
    tree = z[:, 1:, 1:] if single_root else z
    for width in range(m - 1, 0, -1):
        start = torch.arange(m - width, device=device)
        on, split = view[RIGHT, :, : m - width, width].clone(), splits[1, :, : m - width, width]
        marked[ARC_RIGHT].scatter_add_(1, start * m + split, on)
        marked[RIGHT].scatter_add_(1, (start + split) * m + width - split, on)
        on, split = view[LEFT, :, : m - width, width].clone(), splits[2, :, : m - width, width]
        marked[LEFT].scatter_add_(1, start * m + split, on)
        marked[ARC_LEFT].scatter_add_(1, (start + split) * m + width - split, on)
        to_right, to_left = (
            view[ARC_RIGHT, :, : m - width, width],
            view[ARC_LEFT, :, : m - width, width],
        )
        tree.diagonal(width, 1, 2).copy_(to_right)
        tree.diagonal(-width, 1, 2).copy_(to_left)
        on, split = to_right + to_left, splits[0, :, : m - width, width]
        marked[RIGHT].scatter_add_(1, start * m + split, on)
        marked[LEFT].scatter_add_(1, (start + split + 1) * m + width - split - 1, on)

    return z, best[:, 0]


def eisner_plain(scores: np.ndarray, length: int, single_root: bool) -> np.ndarray:
    """The twin: the module docstring's recurrences with back-pointers, sentence by sentence."""
    z = np.zeros_like(scores)
    if length == 0:
        return z
    first = 1 if single_root else 0
    chart: dict[tuple[int, int, int], float] = {}
    split: dict[tuple[int, int, int], int] = {}
    for i in range(first, length + 1):
        chart[RIGHT, i, i] = chart[LEFT, i, i] = 0.0
    for width in range(1, length + 1 - first):
        for i in range(first, length + 1 - width):
            j = i + width
            inner = {k: chart[RIGHT, i, k] + chart[LEFT, k + 1, j] for k in range(i, j)}
            split[ARC_RIGHT, i, j] = split[ARC_LEFT, i, j] = k = max(inner, key=inner.__getitem__)
            chart[ARC_RIGHT, i, j] = inner[k] + scores[i, j]
            chart[ARC_LEFT, i, j] = inner[k] + scores[j, i] if i > 0 else -np.inf
            outer = {k: chart[ARC_RIGHT, i, k] + chart[RIGHT, k, j] for k in range(i + 1, j + 1)}
            split[RIGHT, i, j] = max(outer, key=outer.__getitem__)
            chart[RIGHT, i, j] = outer[split[RIGHT, i, j]]
            outer = {k: chart[LEFT, i, k] + chart[ARC_LEFT, k, j] for k in range(i, j)}
            split[LEFT, i, j] = max(outer, key=outer.__getitem__)
            chart[LEFT, i, j] = outer[split[LEFT, i, j]]
    if single_root:
        total = {
            m: scores[0, m] + chart[LEFT, 1, m] + chart[RIGHT, m, length]
            for m in range(1, length + 1)
        }
        child = max(total, key=total.__getitem__)
        z[0, child] = 1
        spans = [(LEFT, 1, child), (RIGHT, child, length)]
    else:
        spans = [(RIGHT, 0, length)]
    while spans:
        kind, i, j = spans.pop()
        if i == j:
            continue
        k = split[kind, i, j]
        if kind == RIGHT:
            spans += [(ARC_RIGHT, i, k), (RIGHT, k, j)]
        elif kind == LEFT:
            spans += [(LEFT, i, k), (ARC_LEFT, k, j)]
        else:
            z[(i, j) if kind == ARC_RIGHT else (j, i)] = 1
            spans += [(RIGHT, i, k), (LEFT, k + 1, j)]
    return z
