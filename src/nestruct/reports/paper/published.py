"""What papers print: which of their rows a run belongs to, and the numbers to set beside it.

The numbers are in ``published.toml``. A run belongs to a row by its own configuration, so
runs need not carry them, and a row that nobody ran is known too.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from nestruct.reports.names import Naming
from nestruct.reports.runs import Run
from nestruct.reports.tables import Cell
from nestruct.wording import number

MEASURED = {"elbo": ("ELBO", 1), "f1": ("F1", 100), "uas": ("UAS", 100)}  # name, what 1 is there
TINY = "Tiny data and models: nothing here can be compared with the paper's numbers, or any."


@dataclass(frozen=True)
class Row:
    """A method in a published table.

    Attributes:
        method: What the table calls it.
        estimator: The options by which a run is of this method.
        numbers: By column and metric (``elbo``, ``f1``, ``uas``): mean and standard deviation as
            printed, None where that is not.
        model: Options of the model by which a run is of this row.
        options: By column, options of the estimator that the table has there.
        role: What it is to others over the same structure: ``source`` (what they start from) or
            ``baseline`` (what they are compared with); else empty.
    """

    method: str
    estimator: Mapping[str, Any]
    numbers: Mapping[str, Mapping[str, tuple[float, float | None]]]
    model: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    role: str = ""

    def has(self, run: Run) -> bool:
        """True if a run is of this method, on whatever data."""
        return _agrees(run, "estimator", self.estimator) and _agrees(run, "model", self.model)


@dataclass(frozen=True)
class Baseline:
    """What needs no learning.

    Attributes:
        method: What the table calls it.
        reference: What runs call it.
        structures: The values of ``model.structure`` of which its answers are members.
    """

    method: str
    reference: str
    structures: tuple[str, ...]


@dataclass(frozen=True)
class PublishedTable:
    """A published table.

    Attributes:
        key: Its name in ``published.toml``, and that of the plan that reproduces it.
        title: What it is called here.
        source: Where it was printed.
        data: The data's options that its runs have; ``model``: the model's.
        columns: What the values of the option ``column`` are called.
        rows: Its methods in order, those that only we have at the end.
        baselines: What needs no learning.
        column: The option that a run's column depends on.
        sources: For each column the treebank that its runs learn from, where there are such.
        settings: Options that runs in the table itself have; with others they are beside it.
        stand_in: The column of runs that lack the option ``column``; they are in none when None.
        is_tiny: Whether it is for the runs of ``nestruct reproduce --tiny``, whose numbers cannot
            be compared with those printed.
    """

    key: str
    title: str
    source: str
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    columns: Mapping[str, str]
    rows: tuple[Row, ...]
    baselines: tuple[Baseline, ...]
    column: str = "model.structure"
    sources: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    stand_in: str | None = None
    is_tiny: bool = False

    @property
    def name(self) -> str:
        """The title's beginning."""
        return self.title.partition(":")[0]

    @property
    def beside(self) -> list[str]:
        """The columns that each printed number has; of tiny runs there is no difference."""
        return ["paper", "tiny"] if self.is_tiny else ["paper", "ours", "difference"]

    @property
    def notes(self) -> list[str]:
        """What must stand below the table, whatever it is about."""
        return [TINY] if self.is_tiny else []

    def place(self, run: Run) -> str | None:
        """The column of a run, whatever its method."""
        value = run.option(self.column)
        column = self.stand_in if value is None else str(value)
        return column if column in self.columns else None

    def has_task(self, run: Run) -> bool:
        """True if a run has the table's data and model, whatever its method and column."""
        return _agrees(run, "data", self.data) and _agrees(run, "model", self.model)

    def row(self, run: Run) -> Row | None:
        """The row that a run belongs to; None where its task or its method is another.

        A run that ends by the clock is in none: where it ended depends on the machine.
        """
        if isinstance(run.option("training.max_seconds"), int | float):
            return None
        if not self.has_task(run):
            return None
        column = self.place(run)
        if column is None:
            return None
        if self.sources and run.option("data.source") != self.sources[column]:
            return None
        return next((row for row in self.rows if row.has(run)), None)

    def differing(self, run: Run) -> dict[str, Any]:
        """What a run has instead of the table's settings."""
        row, column = self.row(run), self.place(run)
        options = row.options.get(column, {}) if row and column else {}
        asked = {f"estimator.{key}": value for key, value in options.items()} | dict(self.settings)
        own = {key: run.option(key) for key in asked}
        return {key: value for key, value in own.items() if value != asked[key]}

    def tiny(self) -> "PublishedTable":
        """The table for tiny runs: the same methods, on data and with settings of any kind.

        Generated sentences stand for the first pair of treebanks. What the title says of the data,
        and columns of their sizes, is not true of tiny ones.
        """
        columns, first = dict(self.columns), None
        if self.sources:
            first = next(iter(columns))
            columns = {first: f"generated, for {columns[first]}"}
        elif self.column == "model.hidden_size":
            columns = {size: f"hidden size {size}" for size in columns}
        subject = self.title.removeprefix(self.name).partition(",")[0]
        return replace(
            self,
            title=f"Tiny {self.name} (not comparable){subject}",
            data={},
            columns=columns,
            rows=tuple(replace(row, options={}) for row in self.rows),
            sources={},
            settings={},
            stand_in=first,
            is_tiny=True,
        )


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Every table whose numbers are known."""
    file = resources.files("nestruct.reports.paper") / "published.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(
        PublishedTable(
            key=key,
            **{k: v for k, v in table.items() if k not in ("rows", "baselines")},
            rows=tuple(_row(row, table["columns"]) for row in table["rows"]),
            baselines=tuple(
                Baseline(b["method"], b["reference"], tuple(b["structures"]))
                for b in table.get("baselines", [])
            ),
        )
        for key, table in tables.items()
    )


def _row(row: dict[str, Any], columns: Mapping[str, str]) -> Row:
    """A row of the file: under a column, what is a list is printed, what is none is an option."""
    cells = {column: row[column] for column in columns if column in row}
    numbers = {
        column: {m: (v[0], v[1] if len(v) > 1 else None) for m, v in _lists(cell, True)}
        for column, cell in cells.items()
    }
    options = {column: dict(_lists(cell, False)) for column, cell in cells.items()}
    return Row(
        row["method"], row["estimator"], numbers, row.get("model", {}), options, row.get("role", "")
    )


def _lists(cell: dict[str, Any], wanted: bool) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in cell.items() if isinstance(value, list) == wanted]


def published_number(run: Run, metric: str) -> tuple[float, float | None] | None:
    """What a paper prints for a run's method, task and settings: mean and standard deviation."""
    for table in published_tables():
        row, column = table.row(run), table.place(run)
        if row is not None and column is not None and not table.differing(run):
            return row.numbers.get(column, {}).get(metric)
    return None


def pair_name(run: Run) -> str:
    """Which treebanks a run goes from and to; empty where it has none."""
    ends = [run.option(f"data.{end}") for end in ("source", "target")]
    names = [end.rpartition("/")[2].upper() for end in ends if isinstance(end, str)]
    return " to ".join(dict.fromkeys(names))


class PaperWords(Naming):
    """What published tables call methods and latent spaces, and the order they have them in."""

    def method(self, run: Run) -> str | None:
        """The name of the row, else, of a parser's first two phases, with the phase."""
        rows = (row for table in published_tables() for row in table.rows)
        found = next((row.method for row in rows if row.has(run)), None)
        phase = run.option("model.objective")
        if found is None and phase in ("parser", "decoder"):
            return f"{run.option('estimator.name')} ({phase})"
        return found

    def structure(self, run: Run) -> str | None:
        """The name of the column, where columns are latent spaces."""
        structure = str(run.option("model.structure"))
        tables = [table for table in published_tables() if table.column == "model.structure"]
        return next((t.columns[structure] for t in tables if structure in t.columns), None)

    def data(self, run: Run) -> str | None:
        """The two treebanks."""
        return pair_name(run)

    def task(self, run: Run) -> str | None:
        """The size of the model, where columns are sizes."""
        for table in published_tables():
            column = table.place(run)
            if table.column == "model.hidden_size" and column and table.has_task(run):
                return f"{table.columns[column]} parameters"
        return None

    def is_aside(self, run: Run) -> bool:
        """True of runs that stand beside their table, and of a decoder's own phase."""
        if run.option("model.objective") == "decoder":
            return True
        return any(table.differing(run) for table in published_tables() if table.row(run))

    def goes_on(self, run: Run) -> bool:
        """True of the later phases of a parser."""
        phase = run.option("model.objective")
        return phase in ("decoder", "vae") or (phase == "parser" and run.max_steps == 0)

    def place(self, run: Run) -> tuple[int, ...] | None:
        """By table, then by column, then by row; runs that are in none come after."""
        for order, table in enumerate(published_tables()):
            column = table.place(run)
            if column is not None or run.option("model.name") == table.model.get("name"):
                rows = [k for k, row in enumerate(table.rows) if row.has(run)]
                columns = [*table.columns, None]
                return order, columns.index(column), *(rows[:1] or [len(table.rows)])
        return None

    def printed(self, run: Run) -> dict[tuple[str, str], Cell]:
        """The numbers of a run's row and column."""
        found = {}
        for metric, (name, unit) in MEASURED.items():
            numbers = published_number(run, metric)
            if numbers is not None:
                mean, deviation = (None if n is None else n / unit for n in numbers)
                text = "" if deviation is None else f" ± {number(deviation, like=mean)}"
                found["paper", name] = Cell(f"{number(mean)}{text}", mean, deviation)
        return found


def _agrees(run: Run, section: str, options: Mapping[str, Any]) -> bool:
    return all(run.option(f"{section}.{key}") == value for key, value in options.items())
