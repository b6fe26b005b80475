"""Charts as SVG: means over runs with their bands.

This is the only code that draws them. A chart is drawn once against each axis and, where both make
sense, on a linear and a logarithmic scale; the page's script chooses which drawing is shown.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nestruct.reports.curves import POINTS, Axis, Chart, Series, series
from nestruct.reports.groups import Group
from nestruct.wording import count, number

WIDTH, HEIGHT = 540, 300
LEFT, RIGHT, TOP, BOTTOM = 58, WIDTH - 20, 12, HEIGHT - 42
ALL_POINTS, LEAST = 40_000, 12  # of all lines of a page, and of one line at least
DECADES = 8  # that a logarithmic axis names
DASHES = ("", "8 4", "2 3", "10 3 2 3")
COLOURS = 7  # that page.css has
SEVERAL = (
    "Line: mean of the runs, up to the last step that all have. Band: smallest to largest of them."
)
ALONE = "{}: ± one standard deviation, as the run noted it ({})."


def draw_charts(
    charts: Sequence[Chart],
    groups: Sequence[Group],
    axes: Sequence[Axis],
    looks: Sequence[int],
    shown: Sequence[int],
) -> list[str]:
    """Every chart as a figure: a heading, its drawings with the first one shown, a sentence.

    A figure is hidden where its first choice has nothing to draw, and empty where none has.

    Args:
        charts: What is drawn.
        groups: The runs.
        axes: What they are drawn against, the first choice first.
        looks: A look for each group.
        shown: The groups that are shown at first.
    """
    num_lines = sum(3 * len(chart.groups) * len(_forms(chart, axes)) for chart in charts)
    limit = max(LEAST, min(POINTS, ALL_POINTS // max(1, num_lines)))
    found = []
    for chart in charts:
        content, first = "", False
        for axis, log in _forms(chart, axes):
            every = {k: series(groups[k], chart, axis, log=log, limit=limit) for k in chart.groups}
            lines = {k: line for k, line in every.items() if line is not None}
            if lines:
                names = {k: groups[k].label for k in lines}
                is_first = (axis, log) == _forms(chart, axes)[0]
                first |= is_first
                attributes = " data-suits" * (log == chart.log) + " hidden" * (not is_first)
                content += (
                    f'<svg data-x="{axis.key}" data-y="{"log" if log else "linear"}"{attributes}'
                    f"{draw_lines(chart, axis, log, lines, names, looks, shown)}</svg>"
                )
        own = [groups[k] for k in chart.groups]
        head, caption = html.escape(chart.label), html.escape(_caption(chart, own))
        whole = (
            f'<figure class="chart" data-chart="{chart.split}-{chart.metric}"'
            f"{' hidden' * (not first)}><h3>{head}</h3>{content}<figcaption>{caption}</figcaption>"
            "</figure>"
        )
        found.append(whole if content else "")
    return found


def draw_lines(
    chart: Chart,
    axis: Axis,
    log: bool,
    lines: Mapping[int, Series],
    names: Mapping[int, str],
    looks: Sequence[int],
    shown: Sequence[int],
) -> str:
    """The lines of a chart: the rest of an SVG element, attributes, then what is drawn.

    Args:
        chart: What is drawn.
        axis: Against what.
        log: Whether values are on a logarithmic scale.
        lines: By the number of the group.
        names: What each group is called.
        looks: A look for each group of the page.
        shown: The groups that are not hidden.
    """
    marks = {
        label: value
        for k in lines
        for label, value in chart.references[k].items()
        if not log or value * chart.sign > 0
    }
    xs = [x for line in lines.values() for x in line.xs]
    ys = [y for line in lines.values() for y in (*line.low, *line.high)]
    x_scale = scale(xs if axis.log else [0.0, *xs], LEFT, RIGHT, log=axis.log, room=0.0)
    y_scale = scale([*ys, *marks.values()], BOTTOM, TOP, log=log, sign=chart.sign)
    unit, name = _unit(axis, max(xs))
    parts = _levels(y_scale, ticks(y_scale.low, y_scale.high, log=log, sign=chart.sign))
    at = ticks(x_scale.low / unit, x_scale.high / unit, log=axis.log)
    for tick in at[:: math.ceil(len(at) / 8)]:
        parts.append(_text(x_scale(tick * unit), BOTTOM + 17, "middle", _label(tick)))
    below = name + (" (log)" if axis.log else "")
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 36, "middle", below))
    for value in marks.values():
        parts.append(_line("reference", y_scale(value)))
    for k, line in lines.items():
        hidden = "" if k in shown else " hidden"
        told = html.escape(f"{names[k]}: {number(line.mean[0])} to {number(line.mean[-1])}")
        drawn = _series(line, looks[k], x_scale, y_scale)
        parts.append(f'<g data-group="{k}"{hidden}><title>{told}</title>{drawn}</g>')
    above = -math.inf
    for label, value in sorted(marks.items(), key=lambda mark: y_scale(mark[1])):
        y = y_scale(value)
        # Above its line, or below it where the one above is too near.
        parts.append(_text(RIGHT, y + 12 if y - above < 14 else y - 5, "end", label, "axis halo"))
        above = y
    label = html.escape(f"{chart.label} against {name}")
    box = f' viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    return box + "".join(parts)


def draw_buckets(title: str, name: str, labels: Sequence[str], lines: Mapping[int, Series]) -> str:
    """A chart over a few kinds of things, like lengths.

    Args:
        title: What is drawn.
        name: What the kinds are.
        labels: What each kind is called.
        lines: By look; positions are numbers of kinds.
    """
    ys = [y for line in lines.values() for y in (*line.low, *line.high)]
    x_scale = scale([0.0, len(labels) - 1.0], LEFT, RIGHT, room=0.06)
    y_scale = scale(ys, BOTTOM, TOP)
    parts = _levels(y_scale, ticks(y_scale.low, y_scale.high))
    for k, label in enumerate(labels):
        parts.append(_text(x_scale(k), BOTTOM + 17, "middle", label))
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 36, "middle", name))
    parts += [_series(line, look, x_scale, y_scale) for look, line in lines.items()]
    return (
        f'<figure class="chart"><h3>{html.escape(title)}</h3><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{html.escape(title)}">{"".join(parts)}</svg></figure>'
    )


def swatch(look: int) -> str:
    """A short line as a curve is drawn."""
    return (
        '<svg class="swatch" viewBox="0 0 30 12" aria-hidden="true"><line x1="1" x2="29" y1="6" '
        f'y2="6" stroke-width="2.5"{_stroke(look)}/></svg>'
    )


class Scale(NamedTuple):
    """From values to pixels.

    Attributes:
        place: Gives the pixel of a value.
        low: The value at the start; ``high``: at the end.
    """

    place: Callable[[float], float]
    low: float
    high: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        return self.place(value)


def scale(
    values: Sequence[float],
    start: float,
    stop: float,
    *,
    log: bool = False,
    sign: int = 1,
    room: float = 0.05,
) -> Scale:
    """A scale that has all values on it.

    A logarithmic scale of negative values is that of their sizes, turned round.
    """

    def warp(value: float) -> float:
        return sign * math.log(sign * value) if log else value

    low, high = warp(min(values)), warp(max(values))
    more = (high - low) * room if high > low else abs(low) * 0.1 or 1.0
    low, high = low - more, high + more

    def place(value: float) -> float:
        return round(start + (warp(value) - low) / (high - low) * (stop - start), 1)

    ends = [sign * math.exp(sign * end) if log else end for end in (low, high)]
    return Scale(place, *ends)


def ticks(low: float, high: float, *, log: bool = False, sign: int = 1) -> list[float]:
    """Round values between two ends, few enough to be read.

    Example:
        >>> ticks(0, 100), ticks(1, 5000, log=True), ticks(-900, -80, log=True, sign=-1)
        ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [1.0, 10.0, 100.0, 1000.0], [-500.0, -200.0, -100.0])
        >>> ticks(1, 2e27, log=True)
        [1.0, 10000.0, 100000000.0, 1000000000000.0, 1e+16, 1e+20, 1e+24]
    """
    if log and sign < 0:
        return [-tick for tick in reversed(ticks(-high, -low, log=True))]
    if log:
        first, last = (math.floor(math.log10(end)) for end in (low, high))
        inside = (1,) if last - first > 2 else (1, 2, 5)
        every = math.ceil((last - first + 1) / DECADES)
        whole = [k for k in range(first, last + 1) if k % every == 0]
        marks = [float(f"{m}e{k}") for k in whole for m in inside]
        seen = [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
        if len(seen) > 2:
            return seen
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _forms(chart: Chart, axes: Sequence[Axis]) -> list[tuple[Axis, bool]]:
    """The axes and scales that a chart is drawn with, the first choice first.

    A chart that is folded away has one, with its steps.
    """
    if not chart.main:
        return [(axis, chart.log) for axis in axes if axis.key == "step"]
    scales = [chart.log, not chart.log] if chart.both else [chart.log]
    return [(axis, log) for axis in axes for log in scales]


def _caption(chart: Chart, groups: Sequence[Group]) -> str:
    several = any(len(group.runs) > 1 for group in groups)
    alone = chart.spread is not None and any(len(group.runs) == 1 for group in groups)
    who = "One run alone, band" if several else "Band"
    words = [SEVERAL if several else "", chart.note]
    return " ".join(filter(None, [*words, ALONE.format(who, chart.spread) if alone else ""]))


def _unit(axis: Axis, longest: float) -> tuple[float, str]:
    if axis.key == "seconds" and longest > 180:
        return (3600.0, "hours") if longest > 7200 else (60.0, "minutes")
    return 1.0, axis.name


def _levels(y_scale: Scale, at: Sequence[float]) -> list[str]:
    """Lines across, with their values."""
    parts = []
    for tick in at:
        parts.append(_line("grid", y_scale(tick)))
        parts.append(_text(LEFT - 8, y_scale(tick) + 4, "end", _label(tick)))
    return parts


def _series(line: Series, look: int, x_scale: Scale, y_scale: Scale) -> str:
    def path(ys: Sequence[float], xs: Sequence[float], to: str = "L") -> str:
        return to.join(f"{x_scale(x):g} {y_scale(y):g}" for x, y in zip(xs, ys, strict=True))

    colour = f"var(--c{look % COLOURS})"
    band = ""
    if line.low != line.high:
        back = path(line.high[::-1], line.xs[::-1])
        band = f'<path class="band" fill="{colour}" d="M{path(line.low, line.xs)}L{back}Z"/>'
    dots = ""
    if len(line.xs) <= 25:
        dots = f'<path class="dots" stroke="{colour}" d="M{path(line.mean, line.xs, "h0M")}h0"/>'
    return f'{band}<path class="mean"{_stroke(look)} d="M{path(line.mean, line.xs)}"/>{dots}'


def _stroke(look: int) -> str:
    dash = DASHES[look % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f' stroke="var(--c{look % COLOURS})"{dashed}'


def _line(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{LEFT}" x2="{RIGHT}" y1="{y:g}" y2="{y:g}"/>'


def _text(x: float, y: float, anchor: str, content: str, kind: str = "axis") -> str:
    safe = html.escape(content)
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{safe}</text>'


def _label(value: float) -> str:
    size = abs(value)
    if size >= 1e12:
        return f"{value:.3g}".replace("e+", "e")
    if size >= 1000:
        return ("-" if value < 0 else "") + count(size)
    return f"{value:g}" if size == 0 or size >= 1e-3 else number(value)
