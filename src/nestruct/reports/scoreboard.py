"""The scoreboard: what every method needs to reach a target on validation data."""

import math
from collections.abc import Callable, Sequence
from statistics import median

from nestruct.reports.groups import Group
from nestruct.reports.published import published_tables, structure_name
from nestruct.reports.runs import Record, Run, is_number
from nestruct.reports.summary import count_repeats
from nestruct.reports.tables import Cell, Table
from nestruct.wording import count, duration

TARGETS = {"f1_sample": (0.80, 0.90, 0.95), "elbo": (-1500.0, -1080.0, -500.0)}
NAMES = {"f1_sample": "F1", "elbo": "ELBO"}


def scoreboard(groups: Sequence[Group]) -> list[Table]:
    """Two tables, of decoder evaluations and of seconds; none where no run has such metrics."""
    metrics = [metric for metric in TARGETS if any(_has_target(group, metric) for group in groups)]
    if not metrics:
        return []
    rows = [group for group in groups if any(run.validation for run in group.runs)]
    targets = [(metric, target) for metric in metrics for target in TARGETS[metric]]
    spaces = any(structure_name(group.runs[0]) for group in rows)
    columns = [("", "method"), *[("", "latent space")] * spaces, ("", "runs")]
    columns += [(f"{NAMES[m]} at least", f"{target:g}") for m, target in targets]
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
        "where not all did. F1 of one sampled structure."
    )
    return [*tables[:-1], Table(tables[-1].title, columns, tables[-1].rows, [note])]


def first_reached(run: Run, metric: str, target: float) -> Record | None:
    """The first validation record whose metric is at least the target."""
    for record in run.validation:
        if is_number(record.get(metric)) and record[metric] >= target:
            return record
    return None


def _has_target(group: Group, metric: str) -> bool:
    """Whether runs have a metric whose targets mean something: those of the ELBO, in Table 1."""
    if not any(is_number(record.get(metric)) for run in group.runs for record in run.validation):
        return False
    tables = (table for table in published_tables() if table.key == "table1")
    return metric != "elbo" or any(table.row(group.runs[0]) is not None for table in tables)


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
