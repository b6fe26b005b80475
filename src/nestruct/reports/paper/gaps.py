"""The figure of smoothing gaps as a table: how far each sigma's smoothed loss is from the loss."""

from collections.abc import Sequence

from nestruct.reports.groups import Group
from nestruct.reports.summary import count_repeats
from nestruct.reports.tables import Cell, Table, spread

METRIC = "smoothing_gap"


def has_gaps(groups: Sequence[Group]) -> bool:
    """True if some run measured the gap."""
    return any(map(_is_measured, groups))


def gap_table(groups: Sequence[Group], title: str) -> Table:
    """The runs that measured the gap, by sigma."""
    moments = {"at first": "first", "at the step kept": "best", "at last": "last"}
    measured = filter(_is_measured, groups)
    rows = []
    for group in sorted(measured, key=lambda group: group.runs[0].option("estimator.sigma")):
        gaps = [
            spread([run.value(moment, METRIC) for run in group.runs]) for moment in moments.values()
        ]
        runs = Cell(count_repeats(group), len(group.runs))
        rows.append([Cell(group.label), runs, *gaps])
    columns = [("", "method"), ("", "runs"), *(("validation data", name) for name in moments)]
    note = "Mean of |g - k| in nats: k is the loss, g the loss smoothed by sigma."
    return Table(title, columns, rows, [note])


def _is_measured(group: Group) -> bool:
    return any(METRIC in record for run in group.runs for record in run.validation)
