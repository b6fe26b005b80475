"""The scoreboard: what every method needs to reach a target on validation data."""

import math
from collections.abc import Callable, Sequence
from statistics import median

from nestruct.reports.groups import Group
from nestruct.reports.metrics import METRICS, find_metric
from nestruct.reports.names import structure_name
from nestruct.reports.runs import Record, Run, is_number
from nestruct.reports.summary import count_repeats
from nestruct.reports.tables import Cell, Table
from nestruct.wording import count, duration


def reaches_targets(groups: Sequence[Group]) -> bool:
    """True if some run reaches one of the targets of its metrics."""
    return any(
        first_reached(run, metric, target) is not None
        for metric in _metrics(groups)
        for target in METRICS[metric].targets
        for group in groups
        for run in group.runs
    )


def scoreboard(groups: Sequence[Group]) -> list[Table]:
    """Two tables, of decoder evaluations and of seconds, for the metrics that have targets."""
    rows = [group for group in groups if any(run.validation for run in group.runs)]
    targets = [(m, target) for m in _metrics(groups) for target in METRICS[m].targets]
    spaces = any(structure_name(group.runs[0]) for group in rows)
    columns = [("", "method"), *[("", "latent space")] * spaces, ("", "runs")]
    columns += [(_head(m), f"{target:g}") for m, target in targets]
    tables = []
    for title, spent, say in _COSTS:
        body = [
            [
                Cell(group.label),
                *[Cell(structure_name(group.runs[0]) or "")] * spaces,
                Cell(count_repeats(group), len(group.runs)),
                *(_cell(group, metric, target, spent, say) for metric, target in targets),
            ]
            for group in rows
        ]
        tables.append(Table(title, columns, body))
    note = (
        "Up to the first evaluation on validation data that reaches the target: the median over "
        "runs, those that never reached it counted as infinite. In brackets, how many reached it "
        "where not all did."
    )
    told = {m: find_metric(m).say("structure") for m in _metrics(groups)}
    notes = [note, *(f"{_brief(m)}: {text}." for m, text in told.items() if text != _brief(m))]
    return [*tables[:-1], Table(tables[-1].title, columns, tables[-1].rows, notes)]


def first_reached(run: Run, metric: str, target: float) -> Record | None:
    """The first validation record whose metric is as good as the target."""
    reaches = find_metric(metric).reaches
    for record in run.validation:
        if is_number(record.get(metric)) and reaches(record[metric], target):
            return record
    return None


def _metrics(groups: Sequence[Group]) -> list[str]:
    return [name for name in METRICS if any(_has_target(group, name) for group in groups)]


def _head(name: str) -> str:
    """What stands over the targets of a metric."""
    bound = "at least" if find_metric(name).better == "higher" else "at most"
    return f"{_brief(name)} {bound}"


def _brief(name: str) -> str:
    metric = find_metric(name)
    return (metric.short or metric.say("structure")).partition(",")[0]


def _has_target(group: Group, metric: str) -> bool:
    """True if a group has a metric whose targets mean something for it."""
    measured = (record.get(metric) for run in group.runs for record in run.validation)
    known = METRICS[metric]
    return bool(known.targets) and any(map(is_number, measured)) and known.is_target(group.runs[0])


def _cell(
    group: Group,
    metric: str,
    target: float,
    spent: Callable[[Run, Record], float | None],
    say: Callable[[float], str],
) -> Cell:
    if not _has_target(group, metric):
        return Cell()
    records = [first_reached(run, metric, target) for run in group.runs]
    reached = sum(record is not None for record in records)
    some = f" ({reached} of {len(records)})" if 0 < reached < len(records) else ""
    costs = [
        math.inf if record is None else spent(run, record)
        for run, record in zip(group.runs, records, strict=True)
    ]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return Cell("reached, cost not noted")
    middle = median(known)
    if math.isinf(middle):
        return Cell(f"not reached{some}", math.inf)
    return Cell(f"{say(middle)}{some}", middle)


_COSTS: tuple[tuple[str, Callable[[Run, Record], float | None], Callable[[float], str]], ...] = (
    (
        "Cost to target: decoder evaluations",
        lambda run, record: run.decoded(record),
        count,
    ),
    (
        "Cost to target: time on the device",
        lambda run, record: record["timing"].get("seconds"),
        duration,
    ),
)
