"""The table of methods: one row per configuration, what it reached and what that cost."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nestruct.reports.groups import Group, differences
from nestruct.reports.published import (
    data_name,
    published_number,
    published_tables,
    structure_name,
)
from nestruct.reports.runs import Record, Run, metric_names
from nestruct.reports.summary import (
    COSTS,
    KINDS,
    count_repeats,
    metric_label,
    references,
    structure_noun,
)
from nestruct.reports.tables import Cell, Table, spread
from nestruct.wording import number

MEANINGS = {
    "gradient-free": "forward passes only, nothing is differentiated",
    "black-box solver": "encoder and decoder are differentiated, the solver is not",
    "needs a relaxation": "a differentiable stand-in for the solver is differentiated too",
    "needs a list": "every structure is decoded",
    "needs the truth": "learns from given structures",
}
PRINTED = {"elbo": "ELBO", "f1": "F1", "uas": "UAS"}  # metrics of published tables
PERCENT = {"f1", "uas"}  # of them
FIRST = ("f1_sample", "f1_map", "elbo")  # of the metrics, where there are such
SHORT = {"f1_sample": "F1, sampled", "f1_map": "F1, MAP", "elbo": "ELBO"}
HIDDEN = {"loss_published"}  # which is the ELBO without its sign
COST_NAMES = ("steps", "decoder evaluations", "wall-clock")


def shown_metrics(records: Sequence[Record]) -> list[str]:
    """The metrics worth a column: not the training's own loss where there is a published one."""
    names = [m for m in metric_names(records) if not m.endswith("_std") and m not in HIDDEN]
    if "elbo" in names:
        names = [m for m in names if m in FIRST]
    if "uas" in names:  # phases have losses of different kinds
        names = [m for m in names if m != "loss"]
    return sorted(names, key=lambda m: FIRST.index(m) if m in FIRST else len(FIRST))


def in_order(groups: Sequence[Group]) -> list[Group]:
    """By column, then by method, both in the order of published tables; others at the end."""

    def place(group: Group) -> tuple[int, int, int]:
        run, last = group.runs[0], len(groups) + 99
        for order, table in enumerate(published_tables()):
            columns, column = list(table.columns), table.place(run)
            if column is not None or run.option("model.name") == table.model.get("name"):
                row = next((k for k, row in enumerate(table.rows) if row.has(run)), last)
                return order, last if column is None else columns.index(column), row
        return last, last, last

    return sorted(groups, key=place)


def methods_table(groups: Sequence[Group]) -> Table:
    """What every configuration reached on test data, beside the published and the trivial."""
    runs = [run for group in groups for run in group.runs]
    tests = [record for run in runs for record in run.records.get("test", [])]
    when = "test" if tests else "best"
    metrics = shown_metrics(tests or [r for run in runs for r in run.validation])
    noun = structure_noun(runs)
    spaces = any(structure_name(run) for run in runs)
    printed = [m for m in PRINTED if any(published_number(run, m) for run in runs)]
    columns = [("", "method"), *[("", "latent space")] * spaces, ("", "kind"), ("", "runs")]
    where = "test data" if tests else "validation data, best step"
    columns += [(where, SHORT.get(m) or metric_label(m, noun)) for m in metrics]
    columns += [("paper", PRINTED[m]) for m in printed]
    columns += [("one run", label) for label in COST_NAMES]
    devices = list(dict.fromkeys(map(_device, runs)))
    several = len(devices) > 1
    columns += [("", "device")] * several
    rows = []
    for group in groups:
        first = group.runs[0]
        rows.append(
            [
                Cell(group.label),
                *[Cell(structure_name(first) or "")] * spaces,
                Cell(KINDS.get(str(first.option("estimator.name")), "")),
                Cell(count_repeats(group), len(group.runs)),
                *(spread([run.value(when, m) for run in group.runs]) for m in metrics),
                *(_printed(first, m) for m in printed),
                *(cost_cell(group, name) for name in COST_NAMES),
                *[Cell(", ".join(dict.fromkeys(map(_device, group.runs))))] * several,
            ]
        )
    rest = [Cell()] * (len(printed) + len(COST_NAMES) + several)
    for label, space, values in without_learning(runs, metrics):
        cells = [Cell(label), *[Cell(space)] * spaces, Cell("no learning"), Cell()]
        rows.append([*cells, *(values.get(m, Cell()) for m in metrics), *rest])
    notes = _notes(runs, bool(tests))
    if not several and devices[0]:
        notes.append(f"Device: {devices[0]}.")
    return Table(_title(tests), columns, rows, notes)


def cost_cell(group: Group, name: str) -> Cell:
    """What a run of a group cost, in the mean."""
    measure, say = COSTS[name]
    cell = spread([measure(run) for run in group.runs])
    return Cell() if cell.value is None else Cell(say(cell.value), cell.value, cell.spread)


def without_learning(
    runs: Sequence[Run], metrics: Sequence[str]
) -> list[tuple[str, str, dict[str, Cell]]]:
    """What needs no learning, on validation data: a name, the latent space, values by metric."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for run in runs:
        for metric in metrics:
            for label, value in references(run, metric).items():
                name = ", ".join([label, *_differences(run, runs, "data")])
                values = found.setdefault((name, f"{value:.6f}"), {})
                values.setdefault(structure_name(run) or "", {})[metric] = value
    spaces = {structure_name(run) or "" for run in runs}
    rows = []
    for (label, _), by_space in found.items():
        space = next(iter(by_space)) if len(by_space) < len(spaces) else ""
        numbers = next(iter(by_space.values()))
        rows.append((label, space, {m: Cell(number(v), v) for m, v in numbers.items()}))
    return rows + _untrained(runs, metrics)


def untrained(runs: Sequence[Run]) -> list[Run]:
    """Runs whose first validation record is that of a model as it was made, before any step.

    Runs with the same seed and model start with the same parameters: they count once. Where models
    differ, those with the one that most runs have.
    """
    starts: dict[str, dict[str, Run]] = {}
    runs_with: Counter[str] = Counter()
    for run in filter(_starts_untrained, runs):
        model = json.dumps([run.config.get(k) for k in ("data", "model")], default=str)
        runs_with[model] += 1
        starts.setdefault(model, {})[str(run.seed)] = run
    return list(starts[runs_with.most_common(1)[0][0]].values()) if starts else []


def _starts_untrained(run: Run) -> bool:
    first = run.validation[0] if run.validation else {"step": 1}
    return first["step"] == 0 and first.get("evaluations", 0) == 0 and not run.goes_on


def _untrained(
    runs: Sequence[Run], metrics: Sequence[str]
) -> list[tuple[str, str, dict[str, Cell]]]:
    """Of each latent space whose runs have the same data; where models differ, of which it is."""
    rows = []
    for space in dict.fromkeys(structure_name(run) or "" for run in runs):
        own = [run for run in runs if (structure_name(run) or "") == space]
        every = list(filter(_starts_untrained, own))
        data = [run.config.get("data") for run in every]
        if len({data_name(run) for run in own}) > 1 or any(d != data[0] for d in data):
            continue
        starts = untrained(every)
        values = {m: spread([run.value("first", m) for run in starts]) for m in metrics}
        if any(cell.text for cell in values.values()):
            label = ", ".join(["untrained model", *_differences(starts[0], every, "model")])
            rows.append((label, space, values))
    return rows


def _differences(run: Run, others: Sequence[Run], section: str) -> list[str]:
    """How one section of a run's configuration differs from those of others, in few words."""
    own, *rest = (replace(r, config={section: r.config.get(section) or {}}) for r in (run, *others))
    return differences(own, rest)[:3]


def _printed(run: Run, metric: str) -> Cell:
    found = published_number(run, metric)
    if found is None:
        return Cell()
    unit = 100 if metric in PERCENT else 1
    mean, deviation = found[0] / unit, None if found[1] is None else found[1] / unit
    text = "" if deviation is None else f" ± {number(deviation, like=mean)}"
    return Cell(f"{number(mean)}{text}", mean, deviation)


def _device(run: Run) -> str:
    return str(run.environment.get("device") or run.config.get("device") or "")


def _title(tests: Sequence[Record]) -> str:
    return "Methods" if tests else "Methods (none was tested yet)"


def _notes(runs: Sequence[Run], tested: bool) -> list[str]:
    kinds = dict.fromkeys(KINDS.get(str(run.option("estimator.name")), "") for run in runs)
    notes = ["Mean ± standard deviation over the runs of a configuration"]
    notes[0] += ", at the step that was best on validation data." if tested else "."
    if any("elbo" in record for run in runs for record in run.validation):
        notes.append(
            "ELBO as published for graph layouts: per node, predicted one step ahead at one "
            "sampled structure, Gumbel KL over directed edges, no constant."
        )
    if any("loss_mode" in record for run in runs for record in run.validation):
        notes.append("The paper's ELBO is minus the loss at the most likely category.")
    if any(run.examples_per_evaluation for run in runs):
        notes.append(
            "A decoder evaluation is one example decoded once for training (backward passes are "
            "not counted); time includes the evaluations on validation data."
        )
    if any(run.scene for run in runs):
        notes.append("Rows without learning: on validation data.")
    notes.append("".join(f"{k[0].upper()}{k[1:]}: {MEANINGS[k]}. " for k in kinds if k).strip())
    return [note for note in notes if note]
