"""The table of methods: one row per configuration, what it reached and what that cost."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nestruct.reports.groups import Group, differences
from nestruct.reports.kinds import MEANINGS, kind_of
from nestruct.reports.metrics import METRICS, find_metric, tabled
from nestruct.reports.names import data_name, goes_on, printed, structure_name
from nestruct.reports.runs import Record, Run, metric_names
from nestruct.reports.shapes import structure_noun
from nestruct.reports.summary import COSTS, count_repeats, references
from nestruct.reports.tables import Cell, Table, spread
from nestruct.wording import number

COST_NAMES = ("steps", "decoder evaluations", "wall-clock")


def methods_table(groups: Sequence[Group]) -> Table:
    """What every configuration reached on test data, beside the published and the trivial."""
    runs = [run for group in groups for run in group.runs]
    tests = [record for run in runs for record in run.records.get("test", [])]
    when = "test" if tests else "best"
    metrics = tabled(metric_names(tests or [r for run in runs for r in run.validation]))
    noun = structure_noun(runs)
    spaces = any(structure_name(run) for run in runs)
    beside = [printed(group.runs[0]) for group in groups]
    known = list(dict.fromkeys(column for found in beside for column in found))
    columns = [("", "method"), *[("", "latent space")] * spaces, ("", "kind"), ("", "runs")]
    where = "test data" if tests else "validation data, best step"
    columns += [(where, find_metric(m).short or find_metric(m).say(noun)) for m in metrics]
    columns += known
    columns += [("one run", label) for label in COST_NAMES]
    devices = list(dict.fromkeys(map(_device, runs)))
    several = len(devices) > 1
    columns += [("", "device")] * several
    rows = []
    for group, others in zip(groups, beside, strict=True):
        first = group.runs[0]
        rows.append(
            [
                Cell(group.label),
                *[Cell(structure_name(first) or "")] * spaces,
                Cell(kind_of(first)),
                Cell(count_repeats(group), len(group.runs)),
                *(spread([run.value(when, m) for run in group.runs]) for m in metrics),
                *(others.get(column, Cell()) for column in known),
                *(cost_cell(group, name) for name in COST_NAMES),
                *[Cell(", ".join(dict.fromkeys(map(_device, group.runs))))] * several,
            ]
        )
    rest = [Cell()] * (len(known) + len(COST_NAMES) + several)
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
    return first["step"] == 0 and first.get("evaluations", 0) == 0 and not goes_on(run)


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


def _device(run: Run) -> str:
    return str(run.environment.get("device") or run.config.get("device") or "")


def _title(tests: Sequence[Record]) -> str:
    return "Methods" if tests else "Methods (none was tested yet)"


def _notes(runs: Sequence[Run], tested: bool) -> list[str]:
    kinds = dict.fromkeys(map(kind_of, runs))
    notes = ["Mean ± standard deviation over the runs of a configuration"]
    notes[0] += ", at the step that was best on validation data." if tested else "."
    measured = set(metric_names(r for run in runs for r in run.validation))
    notes += [metric.note for name, metric in METRICS.items() if name in measured]
    if any(run.counts_decoded for run in runs):
        notes.append(
            "A decoder evaluation is one example decoded once for training (backward passes are "
            "not counted); time includes the evaluations on validation data."
        )
    if any(run.scene for run in runs):
        notes.append("Rows without learning: on validation data.")
    notes.append(
        "".join(f"{k[0].upper()}{k[1:]}: {MEANINGS[k]}. " for k in kinds if k in MEANINGS).strip()
    )
    return [note for note in notes if note]
