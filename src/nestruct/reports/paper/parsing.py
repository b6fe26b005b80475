"""Runs in the form of the paper's Table 2: a parser adapted to a treebank without its trees.

What the paper does not have is beside it: the parser that all start from (source only), paired
intervals against it and against the baseline, the last epoch instead of the one that was kept, what
each cell cost, and runs with other settings.
"""

from collections.abc import Callable, Sequence

from nestruct.reports.groups import Group
from nestruct.reports.methods import cost_cell
from nestruct.reports.paper.attachment import compare, say_difference
from nestruct.reports.paper.bootstrap import RESAMPLES
from nestruct.reports.paper.comparison import (
    NOT_RUN,
    NOT_TESTED,
    chosen,
    difference,
    variants,
)
from nestruct.reports.paper.published import PublishedTable, Row, pair_name
from nestruct.reports.runs import Run
from nestruct.reports.summary import count_repeats
from nestruct.reports.tables import Cell, Table, spread

NOT_COUNTED = Cell("not counted")


def parsing_tables(table: PublishedTable, groups: Sequence[Group]) -> list[Table]:
    """A published table about parsers, and what the paper does not have."""
    cells = _Cells(table, groups)
    found = [_numbers(cells), _differences(cells), _last(cells), _costs(cells), *_variants(cells)]
    return [table for table in found if table.rows]


class _Cells:
    """The configuration that stands in each cell of a table."""

    def __init__(self, table: PublishedTable, groups: Sequence[Group]) -> None:
        self.table, self.groups = table, groups
        self.name = table.name
        self.chosen = {
            (id(row), column): chosen(table, groups, row, column, metric="uas")
            for row in table.rows
            for column in table.columns
        }

    def at(self, row: Row | None, column: str) -> Group | None:
        return self.chosen.get((id(row), column))

    def others(self, row: Row) -> dict[str, Row]:
        """What a row is compared with, by what it is called there."""
        same = {
            other.role: other
            for other in self.table.rows
            if other.role and other.model.get("structure") == row.model.get("structure")
        }
        if row.role == "source":
            return {}
        roles = ("source",) if row.role == "baseline" else ("source", "baseline")
        return {same[role].method: same[role] for role in roles if role in same}

    def body(
        self, say: Callable[[Row, str, Group], Cell], rows: Sequence[Row] | None = None
    ) -> list[list[Cell]]:
        """A line for each row, a cell for each column."""
        lines = []
        for row in self.table.rows if rows is None else rows:
            line = [Cell(row.method), Cell(trees(row))]
            for column in self.table.columns:
                group = self.at(row, column)
                line.append(NOT_RUN if group is None else say(row, column, group))
            lines.append(line)
        return lines

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [("", "method"), ("", "trees"), *(("", n) for n in self.table.columns.values())]


def trees(row: Row) -> str:
    """What trees a row's runs have."""
    return str(row.model.get("structure", ""))


def uas(runs: Sequence[Run], when: str = "test") -> Cell:
    """The attachment score in per cent: mean and deviation over runs, and of how many."""
    values = [value for run in runs if (value := run.value(when, "uas")) is not None]
    if not values:
        return NOT_TESTED
    cell = spread([100 * value for value in values], lambda value: f"{value:.2f}")
    return Cell(f"{cell.text} ({len(values)})", cell.value, cell.spread)


def _numbers(cells: _Cells) -> Table:
    table = cells.table
    columns = [("", "method"), ("", "trees")]
    for name in table.columns.values():
        columns += [(name, which) for which in table.beside]
    rows = []
    for row in table.rows:
        line = [Cell(row.method), Cell(trees(row))]
        for column in table.columns:
            printed = row.numbers.get(column, {}).get("uas")
            paper = Cell(f"{printed[0]:.2f}", printed[0]) if printed else Cell()
            group = cells.at(row, column)
            cell = NOT_RUN if group is None else uas(group.runs)
            line += [paper, cell, difference(cell, printed)][: len(table.beside)]
        rows.append(line)
    notes = [
        *table.notes,
        "A column is a target treebank; the source is the other one of its language. Unlabelled "
        "attachment score on the target's test sentences, without punctuation, of the best tree at "
        "the epoch that was best on the source's dev sentences: mean ± standard deviation over "
        "seeds (how many).",
        "Of several learning rates the one with the most seeds, then the best on the source's dev, "
        "is shown; test data choose nothing.",
        "All methods train the parser alone: the decoder is frozen. No KL term.",
        "Source only: the parser that all of them start from. Non-projective, it is the same "
        "parser, whose best tree may cross.",
        f"Paper: {table.source}; its treebanks and word vectors are not quite these, so compare "
        "rows, not columns with the paper.",
    ]
    return Table(table.title, columns, rows, notes)


def _differences(cells: _Cells) -> Table:
    """Each method against what it starts from, and against the baseline over the same trees."""
    columns = [*cells.columns[:2], ("", "against"), *cells.columns[2:]]
    columns += [("targets where it is", name) for name in ("better", "even", "worse")]
    rows = []
    for row in cells.table.rows:
        for name, other in cells.others(row).items():
            line, tally = [], [0, 0, 0]
            for column in cells.table.columns:
                ours, theirs = cells.at(row, column), cells.at(other, column)
                if ours is None or theirs is None:
                    line.append(NOT_RUN)
                    continue
                cell = _against(ours, theirs)
                line.append(cell)
                if cell.value is not None:
                    low, high = cell.extra["from"], cell.extra["to"]
                    tally[0 if low > 0 else 2 if high < 0 else 1] += 1
            counts = [Cell(str(number), number) for number in tally]
            if any(cell is not NOT_RUN for cell in line):
                rows.append([Cell(row.method), Cell(trees(row)), Cell(name), *line, *counts])
    notes = [
        "Difference of UAS in points, seeds averaged, and in brackets its 95 % interval by a "
        f"paired bootstrap over test sentences ({RESAMPLES:,} resamples); then the share of "
        "resamples in which the method is better, ties counted half. Better and worse: the "
        "interval has no 0.",
        "Not counted: a run has no attachment.json; `nestruct evaluate RUN` makes it.",
    ]
    return Table(f"{cells.name}: differences", columns, rows, notes)


def _last(cells: _Cells) -> Table:
    """What training itself did: the last epoch, whatever the source's dev says."""

    def say(row: Row, column: str, group: Group) -> Cell:
        source = cells.others(row)
        start = cells.at(next(iter(source.values()), None), column)
        return _against(group, start, which="last")

    rows = cells.body(say, [row for row in cells.table.rows if row.role != "source"])
    notes = [
        "UAS after the last epoch less that of source only, with its interval as above: what "
        "adapting does to the parser where nothing is selected. The epoch that the source's dev "
        "would keep may be one before any step."
    ]
    return Table(
        f"{cells.name}: after the last epoch, against source only", cells.columns, rows, notes
    )


def _costs(cells: _Cells) -> Table:
    def say(row: Row, column: str, group: Group) -> Cell:
        clock, rate = cost_cell(group, "wall-clock"), group.runs[0].option("optimizer.lr")
        extra = {"seconds": clock.value} if clock.value is not None else {}
        parts = [clock.text]
        if isinstance(rate, int | float) and group.runs[0].max_steps:
            extra["rate"] = rate
            parts.append(f"rate {rate:g}")
        return Cell(", ".join(filter(None, [*parts, kept_epochs(group)])), extra=extra)

    notes = [
        "Wall-clock of one run, mean over seeds, evaluations on dev included; the learning rate; "
        "the epoch whose parameters were kept, of each seed (0: those it started with)."
    ]
    title = f"{cells.name}: what each cell cost"
    return Table(title, cells.columns, cells.body(say), notes)


def kept_epochs(group: Group) -> str:
    """At which epoch the kept parameters of each run are; empty where nothing was trained."""
    found, last = [], 0
    for run in group.runs:
        epochs, steps = run.option("training.max_epochs"), run.max_steps
        if isinstance(epochs, int) and steps and run.best_step is not None:
            found.append(f"{run.best_step * epochs / steps:.2g}")
            last = epochs
    return f"epoch {', '.join(found)} of {last}" if found else ""


def _variants(cells: _Cells) -> list[Table]:
    """Runs of the table's task with other settings, beside the cell and source only."""
    table = cells.table
    columns = [
        ("", name) for name in ("method", "trees", "treebanks", "setting", "runs", "UAS (%)")
    ]
    columns += [("difference to", name) for name in ("the cell", "source only")]
    rows = []
    for column, row, setting, group in variants(table, cells.groups, "uas"):
        source = next(iter(cells.others(row).values()), None)
        beside = [cells.at(row, column), cells.at(source, column)]
        cell, start = (_against(group, other) for other in beside)
        head = [row.method, trees(row), pair_name(group.runs[0]), setting]
        runs = Cell(count_repeats(group), len(group.runs))
        rows.append([*map(Cell, head), runs, uas(group.runs), cell, start])
    if not rows:
        return []
    notes = [
        "The cell: the same method and treebanks with the table's own settings. Intervals as "
        "above, where both were counted on the same sentences."
    ]
    return [Table(f"{cells.name}: other settings", columns, rows, notes)]


def _against(group: Group, other: Group | None, which: str = "best") -> Cell:
    """The difference, or why there is none."""
    if other is None:
        return NOT_RUN
    if any(all("test" not in run.records for run in side.runs) for side in (group, other)):
        return NOT_TESTED
    found = compare(group, other, which=which)
    return NOT_COUNTED if found is None else say_difference(found)
