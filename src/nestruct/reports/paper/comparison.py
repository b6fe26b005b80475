"""Our runs in the form of a published table, its numbers beside ours, and what each cell cost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nestruct.reports.groups import Group
from nestruct.reports.methods import COST_NAMES, cost_cell, untrained
from nestruct.reports.paper.published import Baseline, PublishedTable, Row
from nestruct.reports.runs import Run
from nestruct.reports.summary import references
from nestruct.reports.tables import Cell, Table, spread
from nestruct.reports.tasks import best_of

SETTINGS = {
    "model.freeze_decoder False": "decoder trained too",
    "model.public_code True": "the authors' decoder",
    "model.divergence gibbs": "with the Gibbs KL",
    "model.single_root False": "several roots",
    "data.words all": "words of all splits",
}
# For each metric of the table what it is called, the digits of differences, and the metric of runs.
COMPARED = {"elbo": ("ELBO", 0, "elbo"), "f1": ("F1 (%)", 1, "f1_sample")}
NOT_RUN = Cell("not run")
NOT_TESTED = Cell("not tested yet")
COST_LABELS = ("seeds", *COST_NAMES)
COSTS_NOTE = (
    "Mean over seeds, of one run, beside whatever else the device did. A decoder evaluation is one "
    "example decoded once for training (backward passes are not counted); time includes the "
    "evaluations on validation data."
)


def structure_tables(table: PublishedTable, groups: Sequence[Group]) -> list[Table]:
    """A published table over structures: numbers, then cost."""
    lines = [
        (row.method, [chosen(table, groups, row, column) for column in table.columns])
        for row in table.rows
    ]
    costs = cost_table(table, "method", table.columns.values(), lines)
    return [_numbers(table, groups), costs]


def chosen(
    table: PublishedTable,
    groups: Sequence[Group],
    row: Row,
    column: str,
    *,
    metric: str = "elbo",
    differing: Mapping[str, Any] = MappingProxyType({}),
) -> Group | None:
    """The configuration that stands in a cell: most tested seeds, then best on validation data.

    Where that is equal, the smallest learning rate.
    Test data have no say in it.

    Args:
        table: The published table.
        groups: Runs.
        row: The cell's row.
        column: Its column's value.
        metric: What is best on validation data.
        differing: What the cell's runs have instead of the table's settings.
    """
    found = [
        group
        for group in groups
        if table.row(group.runs[0]) is row
        and table.place(group.runs[0]) == column
        and table.differing(group.runs[0]) == differing
    ]
    return best_of(found, metric)


def variants(
    table: PublishedTable, groups: Sequence[Group], metric: str
) -> Iterator[tuple[str, Row, str, Group]]:
    """Runs of a table's cells with other settings: column, row, the settings in words, the runs."""
    for column in table.columns:
        for row in table.rows:
            found: list[dict[str, Any]] = []
            for run in (group.runs[0] for group in groups):
                if table.row(run) is row and table.place(run) == column:
                    differing = table.differing(run)
                    found += [differing] if differing and differing not in found else []
            for differing in found:
                group = chosen(table, groups, row, column, metric=metric, differing=differing)
                if group is not None:
                    yield column, row, _say_settings(differing), group


def _say_settings(differing: Mapping[str, Any]) -> str:
    """Settings in words."""
    return ", ".join(
        SETTINGS.get(f"{key} {value}", f"{key.rpartition('.')[2]} {value}")
        for key, value in differing.items()
    )


def difference(ours: Cell, printed: tuple[float, float | None] | None, digits: int = 2) -> Cell:
    """Ours less the paper's; empty where one of them is not there."""
    if ours.value is None or printed is None:
        return Cell()
    value = ours.value - printed[0]
    return Cell(f"{value:+,.{digits}f}", value)


def _numbers(table: PublishedTable, groups: Sequence[Group]) -> Table:
    columns = [("", "method")]
    for name in table.columns.values():
        for label, *_ in COMPARED.values():
            columns += [(name, f"{label}, {which}") for which in table.beside]
    rows = []
    for row in table.rows:
        cells = [Cell(row.method)]
        for structure in table.columns:
            group = chosen(table, groups, row, structure)
            for metric, (_, digits, _) in COMPARED.items():
                ours, printed = _ours(group, metric), row.numbers.get(structure, {}).get(metric)
                less = difference(ours, printed, digits)
                cells += [_paper(printed), ours, less][: len(table.beside)]
        rows.append(cells)
    runs = [run for group in groups for run in group.runs]
    rows += [_baseline(table, baseline, runs) for baseline in table.baselines]
    rows.append(_untrained(table, runs))
    notes = [
        *table.notes,
        "Test data at the step that was best on validation data: mean ± standard deviation over "
        "seeds (how many). ELBO as published: per node, predicted one step ahead at one sampled "
        "structure, Gumbel KL over directed edges, no constant. F1 of that sampled structure.",
        "Difference: ours less the paper's, so more is better." * (not table.is_tiny),
        "Without learning: on validation data.",
        f"Paper: {table.source}.",
    ]
    exchanged = [
        f"{row.method}, {name} {other_reading(f1, nodes):.1f}"
        for row in table.rows
        for structure, name in table.columns.items()
        if (group := chosen(table, groups, row, structure)) is not None
        and (nodes := group.runs[0].option("data.num_nodes"))
        and (f1 := _ours(group, "f1").value) is not None
        and f1 < 200 / nodes
    ]
    if exchanged:
        notes.insert(
            -2,
            "As many edges are found as there are, so F1 is precision and recall too. The "
            "published code reads the pairs that were left out as the edges where that has the "
            f"higher precision; by that rule: {'; '.join(exchanged)}.",
        )
    if _has_choice(table, groups):
        notes.insert(
            -2,
            "Where a method ran in several configurations, the one with the most seeds, then with "
            "the best ELBO on validation data, is shown; the table of methods has all.",
        )
    return Table(table.title, columns, rows, list(filter(None, notes)))


def other_reading(f1: float, num_nodes: int) -> float:
    """F1 in percent when all pairs but the ``n - 1`` chosen ones are read as the edges.

    Example:
        >>> other_reading(0.0, num_nodes=10)
        40.0
    """
    return 4 / num_nodes * (100 - f1)


def cost_table(
    table: PublishedTable,
    corner: str,
    heads: Iterable[str],
    lines: Iterable[tuple[str, Sequence[Group | None]]],
) -> Table:
    """What the runs of each cell cost.

    Args:
        table: The published table.
        corner: What stands over the names of lines.
        heads: What stands over the cells of a line.
        lines: The name of each line, and the runs in its cells.
    """
    columns = [("", corner), *((head, label) for head in heads for label in COST_LABELS)]
    rows = [
        [Cell(name), *(cell for group in groups for cell in _cost_cells(group))]
        for name, groups in lines
    ]
    return Table(f"{table.name}: what each cell cost", columns, rows, [COSTS_NOTE])


def _cost_cells(group: Group | None) -> list[Cell]:
    """Under ``COST_LABELS``, what the runs of a cell cost."""
    if group is None:
        return [NOT_RUN, *[Cell()] * len(COST_NAMES)]
    seeds = len(group.runs)
    return [Cell(str(seeds), seeds), *(cost_cell(group, name) for name in COST_NAMES)]


def _paper(printed: tuple[float, float | None] | None) -> Cell:
    if printed is None:
        return Cell()
    mean, deviation = printed
    return Cell(
        f"{mean:,g}" + (f" ± {deviation:g}" if deviation is not None else ""), mean, deviation
    )


def _ours(group: Group | None, metric: str) -> Cell:
    if group is None:
        return NOT_RUN
    values = [run.value("test", COMPARED[metric][2]) for run in group.runs]
    known = [value for value in values if value is not None]
    if not known:
        return NOT_TESTED
    cell = _percent(known) if metric == "f1" else spread(known)
    return Cell(f"{cell.text} ({len(known)})", cell.value, cell.spread)


def _percent(values: Sequence[float]) -> Cell:
    return spread([100 * value for value in values], lambda value: f"{value:.1f}")


def _baseline(table: PublishedTable, baseline: Baseline, runs: Sequence[Run]) -> list[Cell]:
    cells = [Cell(baseline.method)]
    values = [references(run, "f1").get(baseline.reference) for run in runs]
    f1 = next((_percent([value]) for value in values if value is not None), NOT_RUN)
    for structure in table.columns:
        for metric in COMPARED:
            known = metric == "f1" and structure in baseline.structures
            cells += _alone(table, f1 if known else Cell())
    return cells


def _untrained(table: PublishedTable, runs: Sequence[Run]) -> list[Cell]:
    cells = [Cell("no learning: untrained model")]
    for structure in table.columns:
        starts = untrained([run for run in runs if run.option("model.structure") == structure])
        for metric in COMPARED:
            found = [run.value("first", COMPARED[metric][2]) for run in starts]
            values = [value for value in found if value is not None]
            cell = (_percent(values) if metric == "f1" else spread(values)) if values else NOT_RUN
            text = f"{cell.text} ({len(values)})" if values else cell.text
            cells += _alone(table, Cell(text, cell.value, cell.spread))
    return cells


def _alone(table: PublishedTable, cell: Cell) -> list[Cell]:
    """A cell of ours, with nothing of the paper's beside it."""
    return [cell if which == table.beside[1] else Cell() for which in table.beside]


def _has_choice(table: PublishedTable, groups: Sequence[Group]) -> bool:
    places = [
        (row.method, table.place(group.runs[0]))
        for group in groups
        if (row := table.row(group.runs[0])) is not None
    ]
    return len(set(places)) < len(places)
