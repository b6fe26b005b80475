"""What curves there are: which charts a page has, and the points of each line in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from nestruct.reports.groups import Group
from nestruct.reports.metrics import find_metric, in_order, leading
from nestruct.reports.names import method_name, space_name
from nestruct.reports.runs import Record, Run, metric_names, number_in
from nestruct.reports.shapes import structure_noun
from nestruct.reports.summary import references

# Largest over smallest value from which on a chart starts with a logarithmic scale.
WIDE = 30.0
POINTS = 100  # that a line keeps
Points = list[tuple[int, float, float]]  # step, position, value


class Axis(NamedTuple):
    """What curves are drawn against.

    Attributes:
        key: ``step``, ``evaluations`` or ``seconds``.
        name: What stands below it.
        log: True if it is logarithmic.
        decoded: True if evaluations are counted in examples decoded, not in minibatches.
    """

    key: str
    name: str
    log: bool
    decoded: bool = False


class Series(NamedTuple):
    """One group in one chart: positions, mean, smallest and largest value over its runs."""

    xs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Chart:
    """A metric of some groups.

    Attributes:
        split: Of which data.
        metric: Its name in records.
        label: What stands above it.
        groups: The numbers of the groups in it.
        references: For each group of the page, what needs no learning.
        main: True if it is not folded away.
        note: A warning.
        log: True if it starts with a logarithmic scale.
        both: True if the other scale makes sense too.
        sign: Of its values, where it has a logarithmic scale: an ELBO is negative.
        spread: The metric that is its standard deviation, as a run noted it.
    """

    split: str
    metric: str
    label: str
    groups: Sequence[int]
    references: Sequence[dict[str, float]]
    main: bool
    note: str
    log: bool
    both: bool
    sign: int
    spread: str | None


def charts(groups: Sequence[Group]) -> list[Chart]:
    """Which curves are drawn: validation first, then the training loss, then how training went.

    Runs over several latent spaces get a chart for each: their numbers cannot be compared.
    """
    runs = [run for group in groups for run in group.runs]
    found = []
    splits = {split for run in runs for split in run.records} - {"test"}
    leads = leading(metric_names(record for run in runs for record in run.validation))
    spaces = dict.fromkeys(space_name(run) for run in runs)
    for split in sorted(splits, key=lambda name: (name == "train", name != "validation", name)):
        records = [record for run in runs for record in run.records.get(split, [])]
        metrics = metric_names(records)
        for metric in in_order(m for m in metrics if not _is_spread(m, metrics)):
            main = split != "train" or metric == "loss"
            main = main and (leads is None or metric in leads)
            if not main and len({number_in(record, metric) for record in records}) < 2:
                continue  # a flat line (a constant rate, no failure at all) says nothing
            for space in spaces if main else [None]:
                members = [
                    k
                    for k, group in enumerate(groups)
                    if space is None or space_name(group.runs[0]) == space
                ]
                values = [
                    value
                    for k in members
                    for run in groups[k].runs
                    for record in run.records.get(split, [])
                    if (value := number_in(record, metric)) is not None
                ]
                found.append(
                    Chart(
                        split,
                        metric,
                        _label(metric, split, runs, space if main and len(spaces) > 1 else None),
                        members,
                        [references(group.runs[0], metric) for group in groups],
                        main,
                        _note(groups, members, metric),
                        *_scale(metric, values),
                        f"{metric}_std" if f"{metric}_std" in metrics else None,
                    )
                )
    return found


def axes(groups: Sequence[Group]) -> list[Axis]:
    """What curves can be drawn against, the first choice first: methods are compared by cost."""
    runs = [run for group in groups for run in group.runs]
    decoded = all(run.counts_decoded for run in runs)
    name = "decoder evaluations (one example each)" if decoded else "forward evaluations"
    several = len(groups) > 1
    found = [
        Axis("step", "step", log=False),
        Axis("evaluations", name, log=several, decoded=decoded),
        Axis("seconds", "seconds", log=several),
    ]
    known = [a for a in found if any(_position(run, r, a) for run in runs for r in _every(run))]
    first = "evaluations" if several else "step"
    return sorted(known, key=lambda axis: axis.key != first)


def series(group: Group, chart: Chart, axis: Axis, *, log: bool, limit: int) -> Series | None:
    """The line of a group in a chart; None where there is nothing to draw.

    Several runs give their mean, and the smallest and largest value. One run alone has the standard
    deviation that it noted.

    Args:
        group: The runs.
        chart: What is drawn.
        axis: Against what.
        log: Whether values are drawn on a logarithmic scale.
        limit: Most points.
    """
    curves = [_points(run, chart, axis, log=log) for run in group.runs]
    line = combine([points for points in curves if points], limit)
    if line is None or len(group.runs) > 1 or chart.spread is None:
        return line
    (run,) = group.runs
    noted = {_position(run, r, axis): number_in(r, chart.spread) for r in run.records[chart.split]}
    low, high = [], []
    for x, y in zip(line.xs, line.mean, strict=True):
        around = noted.get(x) or 0.0
        ends = (y - around, y + around)
        good = not log or all(end * chart.sign > 0 for end in ends)
        low.append(ends[0] if good else y)
        high.append(ends[1] if good else y)
    return line._replace(low=low, high=high)


def combine(curves: Sequence[Points], limit: int = POINTS) -> Series | None:
    """Mean and range over runs of one configuration, at the steps that all of them have.

    Runs are compared step by step, whatever time a step took in each: positions are means too.
    """
    by_step = [{step: (x, y) for step, x, y in points} for points in curves]
    common = sorted(set.intersection(*map(set, by_step))) if by_step else []
    found = []
    for step in (common[k] for k in thin(len(common), limit)):
        xs, ys = zip(*(points[step] for points in by_step), strict=True)
        found.append((fmean(xs), fmean(ys), min(ys), max(ys)))
    return Series(*(list(column) for column in zip(*found, strict=True))) if found else None


def looks(groups: Sequence[Group]) -> list[int]:
    """A look (colour and dash) for each group: the same for one method in two latent spaces."""
    known: dict[tuple[str | None, int], int] = {}
    seen: dict[tuple[str | None, str | None], int] = {}
    found = []
    for group in groups:
        method, space = method_name(group.runs[0]), space_name(group.runs[0])
        nth = seen.get((method, space), 0)
        seen[method, space] = nth + 1
        found.append(known.setdefault((method, nth), len(known)))
    return found


def thin(length: int, limit: int, *, keep: int = 0) -> list[int]:
    """At most ``limit`` positions, evenly spaced: the first, the last, and one that must be kept.

    Example:
        >>> thin(9, 3), thin(9, 4, keep=7), thin(2, 3)
        ([0, 4, 8], [0, 4, 7, 8], [0, 1])
    """
    if length <= limit:
        return list(range(length))
    spaced = limit - (keep not in (0, length - 1))
    return sorted({round(k * (length - 1) / (spaced - 1)) for k in range(spaced)} | {keep})


def _points(run: Run, chart: Chart, axis: Axis, *, log: bool) -> Points:
    found = []
    for record in run.records.get(chart.split, []):
        x, y = _position(run, record, axis), number_in(record, chart.metric)
        # A logarithmic axis has no place for the untrained model.
        begun = not axis.log or (x is not None and x > 0 and record.get("evaluations") != 0)
        if x is not None and y is not None and begun and (not log or y * chart.sign > 0):
            found.append((record["step"], x, y))
    return found


def _position(run: Run, record: Record, axis: Axis) -> float | None:
    if axis.key == "evaluations":
        return run.decoded(record) if axis.decoded else number_in(record, "evaluations")
    return number_in(record["timing"], "seconds") if axis.key == "seconds" else record["step"]


def _every(run: Run) -> list[Record]:
    return [record for split, rs in run.records.items() if split != "test" for record in rs]


def _label(metric: str, split: str, runs: Sequence[Run], space: str | None) -> str:
    known = find_metric(metric)
    unit = f", {known.unit}" if known.unit else ""
    label = f"{known.say(structure_noun(runs))}{unit} ({split})"
    return f"{label}, {space}" if space else label


def _scale(metric: str, values: Sequence[float]) -> tuple[bool, bool, int]:
    """Whether a chart starts logarithmic, whether both scales make sense, its values' sign."""
    sign = -1 if values and max(values) < 0 else 1
    sizes = [sign * value for value in values]
    both = bool(sizes) and min(sizes) > 0 and not find_metric(metric).percent
    return both and max(sizes) > WIDE * min(sizes), both, sign


def _is_spread(metric: str, metrics: Sequence[str]) -> bool:
    return metric.endswith("_std") and metric.removesuffix("_std") in metrics


def _note(groups: Sequence[Group], members: Sequence[int], metric: str) -> str:
    """A warning where lines of one chart measure different things."""
    if metric not in ("loss", "grad_norm") or len(members) < 2:
        return ""
    models: list[Record] = [groups[k].runs[0].config.get("model") or {} for k in members]
    if all(model == models[0] for model in models):
        return ""
    return "The models differ, and so may what their loss measures: compare shapes, not heights."
