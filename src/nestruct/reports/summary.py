"""What runs came to, in words and tables: results, cost, chance, one sentence per group."""

from collections.abc import Callable, Iterable
from statistics import fmean

from nestruct.reports.groups import Group
from nestruct.reports.kinds import DIFFERENTIATED, kind_of
from nestruct.reports.metrics import METRICS, find_metric
from nestruct.reports.runs import Run, is_number, metric_names
from nestruct.reports.shapes import structure_noun
from nestruct.reports.tables import Cell, Table, spread
from nestruct.wording import count, duration, number, short_time

_NEARLY_ALL = 0.9  # of a run's time: what came after is not worth a word


def sentence(group: Group) -> str:
    """What one group of runs came to on validation data, in plain words."""
    runs, repeats = group.runs, count_repeats(group)
    metrics = metric_names(record for run in runs for record in run.validation)
    metric = headline(metrics)
    first, best, test = (
        _mean(run.value(when, metric) for run in runs) for when in ("first", "best", "test")
    )
    words, moved = "No validation results yet", False
    if first is not None and best is not None:
        verb, moved = "rose" if best > first else "fell", number(first) != number(best)
        name = find_metric(metric).say(structure_noun(runs))
        words = f"{name} {verb} from {number(first)} to {number(best)}"
        if not moved:
            words = f"{name} stayed at {number(best)}"
        known = references(runs[0], metric)
        beside = ", ".join(f"{what} {number(value)}" for what, value in known.items())
        words += f" ({beside})" if beside else ""
    cost = _spent(runs, kept=moved)
    kind = kind_of(runs[0])
    cost += [DIFFERENTIATED[kind]] if kind in DIFFERENTIATED else []
    words += f" in {', '.join(cost)}" if cost else ""
    words += f"; mean of {repeats}." if len(runs) > 1 else "."
    if test is not None:
        tested = sum(run.value("test", metric) is not None for run in runs)
        words += f" On test data: {number(test)}"
        words += "." if tested == len(runs) else f" ({tested} of {repeats})."
    cut = [run for run in runs if not run.finished]
    if cut:
        who = f"{len(cut)} of {repeats} unfinished" if len(runs) > 1 else "Unfinished"
        words += f" {who} at step {min(run.last_step for run in cut):,}."
    return words[0].upper() + words[1:]


def results_table(groups: list[Group]) -> Table:
    """One row per group: each metric at the last and best step and on test data, then the cost."""
    records = [r for g in groups for run in g.runs for r in run.validation]
    tests = [r for g in groups for run in g.runs for r in run.records.get("test", [])]
    metrics = [m for m in metric_names([*records, *tests]) if not m.endswith("_std")]
    moments = [("last", "last")] * bool(records) + [("best", "best step")] * bool(records)
    moments += [("test", "test")] * bool(tests)
    columns = [("", "group"), ("", "runs")]
    noun = structure_noun([run for group in groups for run in group.runs])
    columns += [(find_metric(m).say(noun), label) for m in metrics for _, label in moments]
    columns += [("cost of one run", label) for label in COSTS]
    rows = [
        [
            Cell(group.label),
            Cell(count_repeats(group), len(group.runs)),
            *(
                spread([r.value(when, m) for r in group.runs])
                for m in metrics
                for when, _ in moments
            ),
            *(spread([measure(r) for r in group.runs], say) for measure, say in COSTS.values()),
        ]
        for group in groups
    ]
    note = (
        "Mean ± sample standard deviation over the runs of a group. “Best step” is the evaluation "
        "whose model was kept, “last” the last one on validation data."
    )
    return Table("Every metric", columns, rows, [note])


def cost_table(groups: list[Group], names: list[str]) -> Table:
    """One row per run, and what all of them came to together."""
    runs = [run for group in groups for run in group.runs]
    labels = [group.label for group in groups for _ in group.runs]
    rows = [
        [Cell(name), Cell(label), Cell("" if run.seed is None else str(run.seed)), Cell(run.state)]
        + [spread([measure(run)], say) for measure, say in COSTS.values()]
        for name, label, run in zip(names, labels, runs, strict=True)
    ]
    seconds, evaluations = (
        sum(filter(None, map(COSTS[key][0], runs))) for key in ("wall-clock", "evaluations")
    )
    total = f"{len(runs)} run{'s' * (len(runs) > 1)}: {duration(seconds)} of wall-clock in all, "
    columns = [("", label) for label in ("run", "group", "seed", "state", *COSTS)]
    notes = [f"{total}{count(evaluations)} forward evaluations of a member's loss."]
    return Table("Cost of each run", columns, rows, notes)


def headline(metrics: list[str]) -> str:
    """The metric that runs are told by: a headline, else a share, else the loss, else any."""
    known = [name for name, metric in METRICS.items() if metric.headline]
    shares = [name for name in metrics if find_metric(name).percent]
    return next((name for name in [*known, *shares, "loss", *metrics] if name in metrics), "")


def _spent(runs: list[Run], *, kept: bool) -> list[str]:
    """Time and evaluations of one run in words, in whole or up to the step that was kept."""
    seconds, forward, decoded = (
        _mean(map(COSTS[key][0], runs))
        for key in ("wall-clock", "evaluations", "decoder evaluations")
    )
    in_all, whole = "", seconds
    lines = [(run, r) for run in runs for r in run.validation if r["step"] == run.best_step]
    if kept and all(is_number(r["timing"].get("seconds")) for _, r in lines):
        seconds = _mean(r["timing"]["seconds"] for _, r in lines)
        forward = _mean(r.get("evaluations") for _, r in lines)
        decoded = _mean(run.decoded(r) for run, r in lines)
        if whole is not None and seconds is not None and seconds < _NEARLY_ALL * whole:
            in_all = f" (of {duration(whole)} in all)"
    words = [f"{duration(seconds)}{in_all}"] if seconds is not None else []
    if decoded or forward:
        kind = "decoder" if decoded else "forward"
        words.append(f"{count(decoded or forward or 0)} {kind} evaluations")
    return words


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _decoded(run: Run) -> float | None:
    """Examples decoded for training, over all of it."""
    counts = [run.decoded(record) for records in run.records.values() for record in records]
    return max((c for c in counts if c is not None), default=None)


def _calls_per_step(run: Run) -> float | None:
    """Instances solved for training in a step; those looked up are not among them."""
    solved = max(run.timings("solved"), default=None)
    return solved / run.last_step if solved and run.last_step else None


# What one run cost: how to measure it and how to say it; None where the run did not note it.
COSTS: dict[str, tuple[Callable[[Run], float | None], Callable[[float], str]]] = {
    "steps": (lambda run: run.last_step, lambda value: f"{value:,.0f}"),
    "evaluations": (lambda run: max(run.timings("evaluations"), default=None), count),
    "decoder evaluations": (_decoded, count),
    "wall-clock": (lambda run: max(run.timings("seconds"), default=None), duration),
    "evaluations/s": (lambda run: _mean(run.timings("evaluations_per_second")), count),
    "solver calls/step": (_calls_per_step, count),
    "solver time/step": (lambda run: _mean(run.timings("solver_seconds_per_step")), short_time),
    "in the solver": (lambda run: _mean(run.timings("solver_share")), lambda v: f"{100 * v:.0f} %"),
    "peak memory": (
        lambda run: max(run.timings("memory_bytes"), default=None),
        lambda v: f"{count(v)}B",
    ),
}


def references(run: Run, metric: str) -> dict[str, float]:
    """What guessing and methods without learning reach: "f1" speaks for f1, f1_map, f1_sample."""
    found = {}
    for label, values in ((run.scene or {}).get("references") or {}).items():
        for name, value in values.items():
            if is_number(value) and (metric == name or metric.startswith(f"{name}_")):
                found[label] = float(value)
    return found


def count_repeats(group: Group) -> str:
    """How many seeds, or runs, a group has, in words."""
    seeds = {str(run.seed) for run in group.runs if run.seed is not None}
    word = "seed" if len(seeds) == len(group.runs) else "run"
    return f"{len(group.runs)} {word}{'s' * (len(group.runs) > 1)}"
