"""Scores as SVG: a row for each method, a dot for each number, a bar for their mean.

The first chart of a page and `nestruct.plots.scores` are both drawn here.
"""

import html
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean

from nestruct.reports.charts import COLOURS, scale, ticks
from nestruct.wording import number

WIDTH = 420  # of the part that has the numbers
STACKED_WIDTH = 330  # of all of it, where names stand above their rows
LONGEST = 44  # characters of a name
_ROW, _LETTER = 26.0, 6.8  # pixels


def draw_scores(
    values: Mapping[str, Sequence[float]],
    label: str,
    marks: Mapping[str, float],
    *,
    colours: Sequence[int] | None = None,
    stacked: bool = False,
) -> str:
    """A drawing of numbers by method: an SVG element.

    Args:
        values: At least one number for each method.
        label: What the numbers are.
        marks: Numbers beside them, as dotted lines over all rows.
        colours: The number of each row's colour; one after the other when None.
        stacked: Whether names stand above their rows, for narrow screens.
    """
    names = {name: name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in values}
    left, width = 16 + _LETTER * max(map(len, names.values())), float(WIDTH)
    if stacked:
        left, width = 10.0, STACKED_WIDTH - 20.0
    every = [value for some in values.values() for value in some]
    place = scale([*every, *marks.values()], left, left + width)
    written = _written([place(value) for value in marks.values()], [*marks], left + width)
    row, top = (
        _ROW + 14 * stacked,
        14.0 * (1 + max((level for _, level in written), default=-1)) + 6,
    )
    bottom = top + row * len(values) + 4
    parts = []
    shown = ticks(place.low, place.high)
    for tick in shown if not stacked else shown[:: 1 + len(shown) // 6]:
        x = place(tick)
        parts.append(f'<line class="grid" x1="{x:g}" x2="{x:g}" y1="{top:g}" y2="{bottom:g}"/>')
        parts.append(_text(x, bottom + 16, "middle", f"{tick:g}"))
    for (name, value), (anchor, level) in zip(marks.items(), written, strict=True):
        at, high = place(value), 14 * level + 11
        parts.append(
            f'<line class="reference" x1="{at:g}" x2="{at:g}" y1="{high + 3:g}" y2="{bottom:g}"/>'
        )
        parts.append(_text(at, high, anchor, name))
    for k, (name, some) in enumerate(values.items()):
        look = k if colours is None else colours[k]
        y, colour = top + row * (k + 1) - _ROW / 2, f"var(--c{look % COLOURS})"
        title = f"<title>{html.escape(name)}</title>" if names[name] != name else ""
        spot = (left, y - 14, "start") if stacked else (left - 12, y + 4, "end")
        parts.append(f"<g>{title}{_text(*spot, names[name], 'word halo')}</g>")
        mean = place(fmean(some))
        line = f'x1="{mean:g}" x2="{mean:g}" y1="{y - 9:g}" y2="{y + 9:g}"'
        parts.append(f'<line {line} stroke="{colour}" stroke-width="4"/>')
        parts += [
            f'<circle cx="{place(value):g}" cy="{y:g}" r="4" fill="{colour}" opacity="0.6"/>'
            for value in some
        ]
        # The mean in digits, at the end of its row.
        end = (left + width, y - 14) if stacked else (left + width + 58, y + 4)
        parts.append(_text(*end, "end", number(fmean(some))))
    wide = left + width + (10 if stacked else 66)
    lines = textwrap.wrap(label, int((wide - 20) / _LETTER))
    for k, line in enumerate(lines):
        parts.append(
            _text(wide / 2 if stacked else left + width / 2, bottom + 36 + 15 * k, "middle", line)
        )
    tall = bottom + 29 + 15 * len(lines)
    return (
        f'<svg viewBox="0 0 {wide:g} {tall:g}" width="{wide:g}" height="{tall:g}" role="img" '
        f'aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )


def _written(xs: Sequence[float], names: Sequence[str], right: float) -> list[tuple[str, int]]:
    """For each mark the side its name stands on, and the level: names do not overlap there."""
    found, taken = {}, list[list[tuple[float, float]]]()
    for k in sorted(range(len(xs)), key=lambda k: xs[k]):
        width = _LETTER * len(names[k])
        anchor = "start" if xs[k] + width <= right + 10 else "end"
        low, high = (xs[k], xs[k] + width) if anchor == "start" else (xs[k] - width, xs[k])
        free = (all(b < low or high < a for a, b in level) for level in taken)
        level = next((number for number, is_free in enumerate(free) if is_free), len(taken))
        taken += [[]] * (level == len(taken))
        taken[level] = [*taken[level], (low, high)]
        found[k] = (anchor, level)
    return [found[k] for k in range(len(xs))]


def _text(x: float, y: float, anchor: str, content: str, kind: str = "axis") -> str:
    safe = html.escape(content)
    style = f' style="text-anchor:{anchor}"'  # a word's own rule says middle
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{style}>{safe}</text>'
