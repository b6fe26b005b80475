"""Curves as drawings that need no script: means over runs with their bands.

What a page shows before its script takes over, and all that it shows where there is none.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from nestruct.reports.curves import thin
from nestruct.wording import count, number

WIDTH, HEIGHT = 540, 300
LEFT, RIGHT, TOP, BOTTOM = 58, WIDTH - 20, 12, HEIGHT - 42
POINTS = 100  # that a line keeps
DECADES = 8  # that a logarithmic axis names
DASHES = ("", "8 4", "2 3", "10 3 2 3")
COLOURS = 7  # that page.css has
BAND = (
    "Line: mean of the runs, up to the last step that all have. Band: smallest to largest of them."
)
Points = list[tuple[int, float, float]]  # step, position, value


class Series(NamedTuple):
    """One group in one chart: positions, mean, smallest and largest value over its runs."""

    xs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def draw_chart(
    chart: dict[str, Any],
    runs: Sequence[dict[str, Any]],
    view: dict[str, Any],
    looks: Sequence[int],
) -> str:
    """One chart as HTML: a heading, a drawing, a sentence; empty where there is nothing to draw.

    Args:
        chart: As `nestruct.reports.curves.charts` describes it.
        runs: The page's runs, each with ``group`` and ``curves``.
        view: ``x``: the axis; ``logX``; ``names``: what axes are called; ``shown``: which groups.
        looks: A look for each group.
    """
    lines: dict[int, Series] = {}
    for k in chart["groups"]:
        curves = [_points(run, chart, view) for run in runs if run["group"] == k]
        found = combine([points for points in curves if points])
        if found is not None and k in view["shown"]:
            lines[k] = found
    if not lines:
        return ""
    title = f"<h3>{html.escape(chart['label'])}</h3>"
    marks = {
        label: value
        for k in lines
        for label, value in chart["references"][k].items()
        if not chart["log"] or value * chart["sign"] > 0
    }
    xs = [x for line in lines.values() for x in line.xs]
    ys = [y for line in lines.values() for y in (*line.low, *line.high)]
    log_x = view["logX"] and min(xs) > 0
    x_axis = scale(xs if log_x else [0.0, *xs], LEFT, RIGHT, log=log_x, room=0.0)
    y_axis = scale([*ys, *marks.values()], BOTTOM, TOP, log=chart["log"], sign=chart["sign"])
    unit, name = _unit(view, max(xs))
    parts = [*_axes(x_axis, y_axis, unit, name + (" (log)" if log_x else ""), log_x, chart)]
    for value in marks.values():
        parts.append(_line("reference", LEFT, RIGHT, y_axis(value), y_axis(value)))
    for k, line in lines.items():
        parts.append(_series(line, looks[k], x_axis, y_axis))
    above = -math.inf
    for label, value in sorted(marks.items(), key=lambda mark: y_axis(mark[1])):
        y = y_axis(value)
        # Above its line, or below it where the one above is too near.
        parts.append(_text(RIGHT, y + 12 if y - above < 14 else y - 5, "end", label, "axis halo"))
        above = y
    several = any(len([r for r in runs if r["group"] == k]) > 1 for k in lines)
    caption = " ".join(filter(None, [BAND if several else "", chart["note"]]))
    return (
        f'{title}<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" data-figure="curve" '
        f'aria-label="{html.escape(chart["label"])} against {html.escape(name)}">'
        f"{''.join(parts)}</svg><figcaption>{html.escape(caption)}</figcaption>"
    )


def draw_buckets(title: str, name: str, labels: Sequence[str], lines: Mapping[int, Series]) -> str:
    """A chart over a few kinds of things, like lengths.

    Args:
        title: What is drawn.
        name: What the kinds are.
        labels: What each kind is called.
        lines: By look; positions are numbers of kinds.
    """
    ys = [y for line in lines.values() for y in (*line.low, *line.high)]
    x_axis = scale([0.0, len(labels) - 1.0], LEFT, RIGHT, room=0.06)
    y_axis = scale(ys, BOTTOM, TOP)
    parts = []
    for tick in ticks(y_axis.low, y_axis.high):  # type: ignore[attr-defined]
        parts.append(_line("grid", LEFT, RIGHT, y_axis(tick), y_axis(tick)))
        parts.append(_text(LEFT - 8, y_axis(tick) + 4, "end", _label(tick)))
    for k, label in enumerate(labels):
        parts.append(_text(x_axis(k), BOTTOM + 17, "middle", label))
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 36, "middle", name))
    parts += [_series(line, look, x_axis, y_axis) for look, line in lines.items()]
    return (
        f'<figure class="chart"><h3>{html.escape(title)}</h3><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" data-figure="buckets" aria-label="{html.escape(title)}">{"".join(parts)}'
        "</svg></figure>"
    )


def swatch(look: int) -> str:
    """A short line as a curve is drawn."""
    return (
        '<svg class="swatch" viewBox="0 0 30 12" aria-hidden="true"><line x1="1" x2="29" y1="6" '
        f'y2="6" stroke-width="2.5"{_stroke(look)}/></svg>'
    )


def combine(curves: Sequence[Points]) -> Series | None:
    """Mean and range over runs of one configuration, at the steps that all of them have.

    Runs are compared step by step, whatever time a step took in each: positions are means too.
    """
    by_step = [{step: (x, y) for step, x, y in points} for points in curves]
    common = sorted(set.intersection(*map(set, by_step))) if by_step else []
    found = []
    for step in (common[k] for k in thin(len(common), POINTS)):
        xs, ys = zip(*(points[step] for points in by_step), strict=True)
        found.append((fmean(xs), fmean(ys), min(ys), max(ys)))
    return Series(*(list(column) for column in zip(*found, strict=True))) if found else None


def scale(
    values: Sequence[float],
    start: float,
    stop: float,
    *,
    log: bool = False,
    sign: int = 1,
    room: float = 0.05,
) -> Callable[[float], float]:
    """From values to pixels; ``low`` and ``high`` are the values at the ends.

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
    place.low, place.high = ends  # type: ignore[attr-defined]
    return place


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


def _points(run: dict[str, Any], chart: dict[str, Any], view: dict[str, Any]) -> Points:
    curve = run["curves"].get(chart["split"])
    if curve is None or chart["metric"] not in curve["y"]:
        return []
    axes = curve["x"]
    columns = (axes["step"], axes[view["x"]], curve["y"][chart["metric"]], axes["evaluations"])
    return [
        (step, x, y)
        for step, x, y, spent in zip(*columns, strict=True)
        if x is not None
        and y is not None
        # A logarithmic axis has no place for the untrained model.
        and (not view["logX"] or (x > 0 and spent != 0))
        and (not chart["log"] or y * chart["sign"] > 0)
    ]


def _unit(view: dict[str, Any], longest: float) -> tuple[float, str]:
    name = view["names"][view["x"]]
    if view["x"] != "seconds":
        return 1.0, name
    return (
        (3600.0, "hours") if longest > 7200 else (60.0, "minutes") if longest > 180 else (1.0, name)
    )


def _axes(
    x_axis: Any, y_axis: Any, unit: float, name: str, log_x: bool, chart: dict[str, Any]
) -> list[str]:
    parts = []
    for tick in ticks(y_axis.low, y_axis.high, log=chart["log"], sign=chart["sign"]):
        parts.append(_line("grid", LEFT, RIGHT, y_axis(tick), y_axis(tick)))
        parts.append(_text(LEFT - 8, y_axis(tick) + 4, "end", _label(tick)))
    marks = ticks(x_axis.low / unit, x_axis.high / unit, log=log_x)
    for tick in marks[:: math.ceil(len(marks) / 8)]:
        parts.append(_text(x_axis(tick * unit), BOTTOM + 17, "middle", _label(tick)))
    return [*parts, _text((LEFT + RIGHT) / 2, BOTTOM + 36, "middle", name)]


def _series(line: Series, look: int, x_axis: Callable, y_axis: Callable) -> str:
    def path(ys: Sequence[float], xs: Sequence[float]) -> str:
        return "L".join(f"{x_axis(x):g} {y_axis(y):g}" for x, y in zip(xs, ys, strict=True))

    colour = f"var(--c{look % COLOURS})"
    band = ""
    if line.low != line.high:
        back = path(line.high[::-1], line.xs[::-1])
        band = f'<path class="band" fill="{colour}" d="M{path(line.low, line.xs)}L{back}Z"/>'
    dots = ""
    if len(line.xs) <= 25:
        dots = "".join(
            f'<circle cx="{x_axis(x):g}" cy="{y_axis(y):g}" r="2.4" fill="{colour}"/>'
            for x, y in zip(line.xs, line.mean, strict=True)
        )
    return f'{band}<path class="mean"{_stroke(look)} d="M{path(line.mean, line.xs)}"/>{dots}'


def _stroke(look: int) -> str:
    dash = DASHES[look % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f' stroke="var(--c{look % COLOURS})"{dashed}'


def _line(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:g}" x2="{x2:g}" y1="{y1:g}" y2="{y2:g}"/>'


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
