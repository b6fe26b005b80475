"""What papers print: which of their rows a run belongs to, and the numbers to set beside it.

The numbers are in ``assets/published.toml``. A run belongs to a row by its own configuration, so
runs need not carry them, and a row that nobody ran is known too.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from nestruct.reports.groups import differences, own_title, unlike
from nestruct.reports.runs import Run


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
        """Whether a run is of this method, on whatever data."""
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
    def ours(self) -> str:
        """What our numbers are called."""
        return "tiny" if self.is_tiny else "ours"

    def place(self, run: Run) -> str | None:
        """The column of a run, whatever its method."""
        value = run.option(self.column)
        column = self.stand_in if value is None else str(value)
        return column if column in self.columns else None

    def row(self, run: Run) -> Row | None:
        """The row that a run belongs to; None where its task or its method is another."""
        if not (_agrees(run, "data", self.data) and _agrees(run, "model", self.model)):
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
    file = resources.files("nestruct.reports") / "assets" / "published.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(
        PublishedTable(
            key=key,
            **{k: v for k, v in table.items() if k not in ("rows", "baselines")},
            rows=tuple(
                Row(
                    row["method"],
                    row["estimator"],
                    {
                        column: {
                            metric: (numbers[0], numbers[1] if len(numbers) > 1 else None)
                            for metric, numbers in found.items()
                            if isinstance(numbers, list)
                        }
                        for column, found in row.items()
                        if column in table["columns"]
                    },
                    row.get("model", {}),
                    {
                        column: {k: v for k, v in found.items() if not isinstance(v, list)}
                        for column, found in row.items()
                        if column in table["columns"]
                    },
                    row.get("role", ""),
                )
                for row in table["rows"]
            ),
            baselines=tuple(
                Baseline(b["method"], b["reference"], tuple(b["structures"]))
                for b in table.get("baselines", [])
            ),
        )
        for key, table in tables.items()
    )


def method_name(run: Run) -> str | None:
    """What published tables call a run's method, else its estimator's name."""
    rows = (row for table in published_tables() for row in table.rows)
    found = next((row.method for row in rows if row.has(run)), None)
    name, phase = run.option("estimator.name"), run.option("model.objective")
    if found or not isinstance(name, str):
        return found
    return f"{name} ({phase})" if phase in ("parser", "decoder") else name


def published_number(run: Run, metric: str) -> tuple[float, float | None] | None:
    """What a paper prints for a run's method, task and settings: mean and standard deviation."""
    for table in published_tables():
        row, column = table.row(run), table.place(run)
        if row is not None and column is not None and not table.differing(run):
            return row.numbers.get(column, {}).get(metric)
    return None


def structure_name(run: Run) -> str | None:
    """What a run's latent space is called, where its configuration says."""
    structure = run.option("model.structure")
    for table in published_tables():
        if table.column == "model.structure" and structure in table.columns:
            return table.columns[structure]
    return structure if isinstance(structure, str) else None


def pair_name(run: Run) -> str:
    """Which treebanks a run goes from and to; empty where it has none."""
    ends = [run.option(f"data.{end}") for end in ("source", "target")]
    names = [end.rpartition("/")[2].upper() for end in ends if isinstance(end, str)]
    return " to ".join(dict.fromkeys(names))


def data_name(run: Run) -> str:
    """What a run's data are called, where a recipe is about data of one kind: treebanks, images."""
    return pair_name(run) or str(run.option("data.dataset") or "")


def space_name(run: Run) -> str | None:
    """What runs must share for their numbers to be compared: data of one kind, latent space."""
    return ", ".join(filter(None, [data_name(run), structure_name(run)])) or None


def short_names(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """Names by method, data and latent space, where there are several, and by what else differs.

    Titles are not about these, so they are left out, but where they tell the runs of one method
    apart by themselves.

    Args:
        runs: The first of each group.
        labels: What runs without a method are called, and those of which nothing differs.
    """
    methods = [method_name(run) or "" for run in runs]
    if len(set(methods)) == 1 and len(set(map(own_title, runs))) == len(runs):
        return list(labels)
    briefs = [method.partition(",")[0] for method in methods]
    # "NES, a minibatch per pair" is "NES" where there is no other.
    if len(set(briefs)) == len(set(methods)):
        methods = briefs
    columns = [methods, [*map(data_name, runs)], [structure_name(run) or "" for run in runs]]
    several = [column for column in columns if len(set(column)) > 1]
    names = [", ".join(column[k] for column in several if column[k]) for k in range(len(runs))]
    # Once more for those that the first few differences do not tell apart.
    names = _with_differences(_with_differences(names, runs), runs)
    known = zip(names, methods, labels, strict=True)
    return unlike([name if name and method else label for name, method, label in known])


def _with_differences(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Names, with what differs between the runs that share one."""
    found = []
    for name, run in zip(names, runs, strict=True):
        twins = [other for other, its in zip(runs, names, strict=True) if its == name]
        found.append(", ".join(filter(None, [name, *differences(run, twins)])))
    return found


def _agrees(run: Run, section: str, options: Mapping[str, Any]) -> bool:
    return all(run.option(f"{section}.{key}") == value for key, value in options.items())
