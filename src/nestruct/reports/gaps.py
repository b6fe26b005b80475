"""The figure of smoothing gaps as a table: how far each sigma's smoothed loss is from the loss."""

from collections.abc import Sequence

from nestruct.reports.groups import Group
from nestruct.reports.summary import count_repeats
from nestruct.reports.tables import Cell, Table, spread

METRIC = "smoothing_gap"


def gap_tables(groups: Sequence[Group], *, tiny: str | None = None) -> list[Table]:
    """One table, of the runs that measured the gap; none where no run did."""
    measured = [g for g in groups if any(METRIC in r for run in g.runs for r in run.validation)]
    if not measured:
        return []
    moments = {"at first": "first", "at the step kept": "best", "at last": "last"}
    rows = []
    for group in sorted(measured, key=lambda group: group.runs[0].option("estimator.sigma")):
        gaps = [
            spread([run.value(moment, METRIC) for run in group.runs]) for moment in moments.values()
        ]
        runs = Cell(count_repeats(group), len(group.runs))
        rows.append([Cell(group.label), runs, *gaps])
    return [
        Table(
            "Smoothing gap" + (" (tiny: not comparable)" if tiny else ""),
            [("", "method"), ("", "runs"), *(("validation data", name) for name in moments)],
            rows,
            ["Mean of |g - k| in nats: k is the loss, g the loss smoothed by sigma."],
        )
    ]
