"""Runs in the form of the paper's Table 3: the same model in several sizes, by two methods.

Beside the paper's form of the ELBO, which decodes the most likely category, stands the true one;
below, what each cell cost, and runs of the same sizes with other settings.
"""

from collections.abc import Sequence

from nestruct.reports.groups import Group
from nestruct.reports.paper.comparison import (
    NOT_RUN,
    NOT_TESTED,
    chosen,
    cost_table,
    difference,
    variants,
)
from nestruct.reports.paper.published import PublishedTable, Row
from nestruct.reports.summary import count_repeats
from nestruct.reports.tables import Cell, Table, spread

LOSS, TRUE_LOSS = "loss_mode", "loss"  # the paper's form, and what is selected by


def size_tables(table: PublishedTable, groups: Sequence[Group]) -> list[Table]:
    """A published table about sizes of a model, what it cost, and runs with other settings."""
    lines = [
        (name, [_at(table, groups, row, column) for row in table.rows])
        for column, name in table.columns.items()
    ]
    costs = cost_table(table, _head(table), [row.method for row in table.rows], lines)
    return [_numbers(table, groups), costs, *_variants(table, groups)]


def elbo(group: Group | None, loss: str = LOSS) -> Cell:
    """A loss on test data with its sign turned: mean and deviation over seeds, and of how many."""
    if group is None:
        return NOT_RUN
    values = [-value for run in group.runs if (value := run.value("test", loss)) is not None]
    if not values:
        return NOT_TESTED
    cell = spread(values)
    return Cell(f"{cell.text} ({len(values)})", cell.value, cell.spread)


def _numbers(table: PublishedTable, groups: Sequence[Group]) -> Table:
    columns = [("", _head(table))]
    for row in table.rows:
        columns += [(row.method, "N")] * _has_population(row)
        columns += [(row.method, which) for which in table.beside]
        columns += [(row.method, "true ELBO")]
    lines = []
    for column, name in table.columns.items():
        line = [Cell(name)]
        for row in table.rows:
            group, printed = _at(table, groups, row, column), row.numbers[column]["elbo"]
            cell = elbo(group)
            line += [_population(group)] * _has_population(row)
            paper, less = Cell(f"{printed[0]:.1f}", printed[0]), difference(cell, printed, digits=1)
            line += [*[paper, cell, less][: len(table.beside)], elbo(group, TRUE_LOSS)]
        lines.append(line)
    notes = [
        *table.notes,
        "Test data at the step that was best on validation data: mean ± standard deviation over "
        "seeds (how many). ELBO as published: at the most likely category, with the categorical "
        "KL, which is no ELBO of the model; the true one is the expectation over all categories. "
        "N: the population.",
        "Difference: ours less the paper's, so more is better." * (not table.is_tiny),
        f"Paper: {table.source}; it does not say how many seeds.",
    ]
    return Table(table.title, columns, lines, list(filter(None, notes)))


def _variants(table: PublishedTable, groups: Sequence[Group]) -> list[Table]:
    """Runs of the table's sizes with other settings, beside the cell."""
    names = (_head(table), "method", "setting", "runs", "ELBO", "difference to the cell")
    lines = []
    for column, row, setting, group in variants(table, groups, TRUE_LOSS):
        found, start = elbo(group), elbo(_at(table, groups, row, column)).value
        to_cell = Cell() if start is None else difference(found, (start, None), digits=1)
        runs = Cell(count_repeats(group), len(group.runs))
        head = [table.columns[column], row.method, setting]
        lines.append([*map(Cell, head), runs, found, to_cell])
    note = "The cell: the same method and size with the paper's settings. ELBO as in the table."
    title = f"{table.name}: other settings"
    return [Table(title, [("", name) for name in names], lines, [note])] if lines else []


def _head(table: PublishedTable) -> str:
    """What stands over the sizes: tiny models have other numbers of parameters."""
    return "model" if table.is_tiny else "parameters"


def _at(table: PublishedTable, groups: Sequence[Group], row: Row, column: str) -> Group | None:
    return chosen(table, groups, row, column, metric=TRUE_LOSS)


def _has_population(row: Row) -> bool:
    return row.estimator["name"] == "NES"


def _population(group: Group | None) -> Cell:
    size = None if group is None else group.runs[0].option("estimator.population_size")
    return Cell(str(size), size) if isinstance(size, int) else Cell()
