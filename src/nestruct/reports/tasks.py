"""What methods are compared on: runs on the same data, over the same latent space.

A method stands in a task with one configuration; test data have no say in which.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from nestruct.reports.budgets import by_clock
from nestruct.reports.groups import Group
from nestruct.reports.methods import untrained
from nestruct.reports.metrics import METRICS, find_metric
from nestruct.reports.names import is_aside, method_name, task_name
from nestruct.reports.runs import metric_names
from nestruct.reports.summary import headline, references


@dataclass(frozen=True)
class Entry:
    """A method in a task.

    Attributes:
        name: What it is called.
        group: Its runs.
        values: The number of each run that has one.
        validation: Their mean on validation data, None where there is none.
    """

    name: str
    group: Group
    values: Sequence[float]
    validation: float | None

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return fmean(self.values)


@dataclass(frozen=True)
class Task:
    """What methods are compared on.

    Attributes:
        name: What it is called.
        entries: The methods, the best one first.
        references: What needs no learning, on validation data.
    """

    name: str
    entries: Sequence[Entry]
    references: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """Methods over tasks.

    Attributes:
        metric: By which they are compared.
        sign: 1 where more of it is better, else -1.
        when: ``test``, or ``best``: on validation data, at the best step.
        tasks: On what.
        num_configurations: How many there are in the tasks.
        num_left_out: Runs that are in no task.
    """

    metric: str
    sign: int
    when: str
    tasks: Sequence[Task]
    num_configurations: int
    num_left_out: int

    @property
    def entries(self) -> list[Entry]:
        """Those of all tasks."""
        return [entry for task in self.tasks for entry in task.entries]

    @property
    def methods(self) -> list[str]:
        """The name of every method."""
        return list(dict.fromkeys(entry.name for entry in self.entries))


def compare_methods(groups: Sequence[Group]) -> Comparison | None:
    """Methods by the metric that most runs have; None where none has a number."""
    by_metric: dict[str, list[Group]] = {}
    for group in groups:
        metric = _metric(group)
        if metric:
            by_metric.setdefault(metric, []).append(group)
    if not by_metric:
        return None
    metric, found = max(by_metric.items(), key=lambda item: _num_runs(item[1]))
    when = "test" if any(_values(group, "test", metric) for group in found) else "best"
    by_task: dict[str, dict[str, list[Group]]] = {}
    for group in found:
        if _values(group, when, metric):
            by_task.setdefault(_task(group), {}).setdefault(_data(group), []).append(group)
    if not by_task:
        return None
    # Of several data under one name, those that most runs are on.
    members = {name: _usual(max(on.values(), key=_num_runs)) for name, on in by_task.items()}
    told = [group for some in members.values() for group in some]
    sign = _sign(told, metric)
    # Configurations of one method are compared as such, where that is all there is.
    alone = len({_method(group) for group in told}) == 1 and len(told) > len(members)
    tasks = []
    for name, some in members.items():
        entries = _entries(some, metric, sign, when, by_method=not alone)
        tasks.append(Task(name, entries, _references(some, metric)))
    left_out = _num_runs(groups) - _num_runs(told)
    return Comparison(metric, sign, when, tasks, len(told), left_out)


def best_of(groups: Iterable[Group], metric: str, sign: int | None = None) -> Group | None:
    """The configuration that stands for others: most tested seeds, then best on validation data.

    Where that is equal, the smallest learning rate. Test data have no say in it.

    Args:
        groups: Configurations.
        metric: What is best on validation data.
        sign: 1 where more of it is better, -1 where less is; as the metric has it when None.
    """
    sign = sign or (1 if find_metric(metric).better == "higher" else -1)

    def worth(group: Group) -> tuple[int, float, float]:
        best = _validation(group, metric)
        rate = group.runs[0].option("optimizer.lr")
        rate = -rate if isinstance(rate, int | float) else 0.0
        return (
            len(_values(group, "test", metric)),
            -math.inf if best is None else sign * best,
            rate,
        )

    return max(groups, key=worth, default=None)


def _entries(
    groups: Sequence[Group], metric: str, sign: int, when: str, *, by_method: bool
) -> list[Entry]:
    named: dict[str, list[Group]] = {}
    for group in groups:
        named.setdefault(_method(group) if by_method else group.label, []).append(group)
    entries = []
    for name, some in named.items():
        best = best_of(some, metric, sign)
        assert best is not None
        values = _values(best, when, metric)
        entries.append(Entry(name, best, values, _validation(best, metric)))
    return sorted(entries, key=lambda entry: -sign * entry.mean)


def _metric(group: Group) -> str:
    """By what a group is told: a headline, else what its runs chose their parameters by."""
    records = [record for run in group.runs for record in run.validation]
    records += [record for run in group.runs for record in run.records.get("test", [])]
    names = metric_names(records)
    told, own = headline(names), group.runs[0].option("training.metric")
    is_known = told in METRICS and METRICS[told].headline
    return own if own in names and not is_known else told


def _sign(groups: Sequence[Group], metric: str) -> int:
    """1 where more is better, else -1; of a metric that nobody registered the runs know."""
    run = groups[0].runs[0]
    if metric not in METRICS and run.option("training.metric") == metric:
        return 1 if run.option("training.maximize") is True else -1
    return 1 if find_metric(metric).better == "higher" else -1


def _task(group: Group) -> str:
    timed = by_clock(group.runs[0])
    return timed[0] if timed else task_name(group.runs[0]) or ""


def _data(group: Group) -> str:
    """The options of a group's data, without those of the training data alone (``train_...``)."""
    data = group.runs[0].config.get("data")
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if not key.startswith("train_")}
    return json.dumps(data, sort_keys=True, default=str)


def _method(group: Group) -> str:
    timed = by_clock(group.runs[0])
    return timed[1] if timed else method_name(group.runs[0]) or group.label


def _values(group: Group, when: str, metric: str) -> list[float]:
    found = (run.value(when, metric) for run in group.runs)
    return [value for value in found if value is not None]


def _validation(group: Group, metric: str) -> float | None:
    values = _values(group, "best", metric)
    return fmean(values) if values else None


def _references(groups: Sequence[Group], metric: str) -> dict[str, float]:
    """What needs no learning, and what untrained models are worth, on validation data."""
    found: dict[str, float] = {}
    runs = [run for group in groups for run in group.runs]
    for run in runs:
        found |= references(run, metric)
    starts = (run.value("first", metric) for run in untrained(runs))
    values = [value for value in starts if value is not None]
    return found | ({"untrained model": fmean(values)} if values else {})


def _usual(groups: Sequence[Group]) -> Sequence[Group]:
    """Without those that have other settings than methods are compared with, if any has these."""
    return [group for group in groups if not is_aside(group.runs[0])] or groups


def _num_runs(groups: Sequence[Group]) -> int:
    return sum(len(group.runs) for group in groups)
