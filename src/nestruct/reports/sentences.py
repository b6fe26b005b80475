"""A sentence with its dependency tree as a drawing: words in a row, arcs with relations above."""

import html
import math
from collections.abc import Sequence

_ROW, _BASE = 15, 14  # pixels: between arcs above each other, and of the lowest


def draw_sentence(words: Sequence[str], heads: Sequence[int], labels: Sequence[str]) -> str:
    """An SVG element.

    Args:
        words: The words.
        heads: The head of each, from 1 on; 0 for the root.
        labels: The relation of each.
    """
    arcs = [(head, word) for word, head in enumerate(heads, 1)]
    levels = _levels(arcs)
    names = ["root", *words]
    room = [0, *map(len, labels)]
    widths = [max(32, 7 * len(w) + 9, 6 * n + 8) for w, n in zip(names, room, strict=True)]
    xs = [sum(widths[:k]) + width / 2 for k, width in enumerate(widths)]
    top = _BASE + _ROW * max(levels, default=0) + 14
    parts = []
    for (head, word), label, level in zip(arcs, labels, levels, strict=True):
        side = math.copysign(1, word - head)
        a, b = xs[head] + 6 * side, xs[word]
        high, bend = top - _BASE - _ROW * level, min(8, abs(b - a) / 2) * side
        line = (
            f"M{a:g} {top:g}V{high + 8:g}Q{a:g} {high:g} {a + bend:g} {high:g}"
            f"H{b - bend:g}Q{b:g} {high:g} {b:g} {high + 8:g}V{top - 5:g}"
        )
        tip = f'<path class="tip" d="M{b:g} {top:g}l-3-6h6z"/>'
        text = f'<text class="relation halo" x="{(a + b) / 2:g}" y="{high + 3:g}">'
        text += f"{html.escape(label)}</text>"
        parts.append(
            f'<g class="part plain"><path class="edge" fill="none" d="{line}"/>{tip}{text}</g>'
        )
    for x, name in zip(xs, names, strict=True):
        parts.append(f'<text class="word" x="{x:g}" y="{top + 15:g}">{html.escape(name)}</text>')
    width, height = sum(widths), top + 22
    return (
        f'<svg class="structure arc" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" aria-hidden="true">{"".join(parts)}</svg>'
    )


def _levels(arcs: Sequence[tuple[int, int]]) -> list[int]:
    """How high each arc is drawn: above all shorter ones that it spans or crosses."""
    levels = [0] * len(arcs)
    highest: dict[int, int] = {}  # the first free level above each gap between words
    for k in sorted(range(len(arcs)), key=lambda k: abs(arcs[k][0] - arcs[k][1])):
        gaps = range(min(arcs[k]), max(arcs[k]))
        levels[k] = max(highest.get(gap, 0) for gap in gaps)
        highest |= dict.fromkeys(gaps, levels[k] + 1)
    return levels
