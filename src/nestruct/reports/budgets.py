"""Methods at equal budgets: how good each is at as many decodings, solver calls and seconds.

Runs whose training ends by the clock (``training.max_seconds``) are compared here, those of a task
with one another: a title "Subsets, IMLE" names the task and the method. A budget is the least that
any run of the task spent of something, so every method has a value at it. The value is the best on
validation data up to there, by the metric that the runs themselves select by.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from nestruct.reports.groups import Group
from nestruct.reports.runs import Run, number_in
from nestruct.reports.tables import Cell, Table, spread
from nestruct.wording import count, duration, number

BUDGETS: dict[str, tuple[str, Callable[[float], str]]] = {
    "decoded": ("decodings", count),
    "solved": ("solver calls", count),
    "seconds": ("seconds", lambda seconds: f"{seconds:.0f} s"),
}


@dataclass(frozen=True)
class Curve:
    """What a run reached, and what it had spent by then.

    Attributes:
        values: The metric at each evaluation on validation data.
        spent: For each key of `BUDGETS` what had been spent, None where that is not known.
        test: The metric on test data, None where there is none.
        maximize: Whether a larger value is better.
    """

    values: Sequence[float]
    spent: Mapping[str, Sequence[float | None]]
    test: float | None = None
    maximize: bool = False

    def total(self, kind: str) -> float | None:
        """What was spent in all."""
        known = [spent for spent in self.spent[kind] if spent is not None]
        return max(known) if len(known) == len(self.values) and known else None

    def at(self, kind: str, budget: float) -> float | None:
        """The best value up to a budget; None where there is none."""
        pairs = zip(self.spent[kind], self.values, strict=True)
        return self._best([v for spent, v in pairs if spent is not None and spent <= budget])

    def to_reach(self, target: float, kind: str) -> float | None:
        """What had been spent when a target was reached; infinity where it never was."""
        for value, spent in zip(self.values, self.spent[kind], strict=True):
            if (value >= target) if self.maximize else (value <= target):
                return spent
        return math.inf

    def end(self) -> float | None:
        """The best value of all."""
        return self._best(self.values)

    def _best(self, values: Sequence[float]) -> float | None:
        return (max if self.maximize else min)(values) if values else None


Task = Mapping[str, Sequence[Curve]]  # by method, a curve for each seed


def curve(run: Run) -> Curve:
    """The curve of a run, by the metric that chose its parameters."""
    metric = str(run.option("training.metric") or "loss")
    points = [r for r in run.validation if number_in(r, metric) is not None]
    spent: dict[str, list[float | None]] = {
        "decoded": [run.decoded(r) for r in points],
        "solved": [number_in(r, "solved") for r in points],
        "seconds": [number_in(r["timing"], "seconds") for r in points],
    }
    maximize = run.option("training.maximize") is True
    return Curve([r[metric] for r in points], spent, run.value("test", metric), maximize)


def tasks(runs: Sequence[Run]) -> dict[str, dict[str, list[Curve]]]:
    """The runs that end by the clock: by task, then by method, as their titles have them."""
    found: dict[str, dict[str, list[Curve]]] = {}
    for run in runs:
        timed = by_clock(run)
        if timed is not None:
            found.setdefault(timed[0], {}).setdefault(timed[1], []).append(curve(run))
    return found


def by_clock(run: Run) -> tuple[str, str] | None:
    """The task and the method in the title of a run that ends by the clock; None of others."""
    task, comma, method = str(run.config.get("title") or "").partition(", ")
    timed = comma and isinstance(run.option("training.max_seconds"), int | float)
    return (task, method) if timed else None


def has_tasks(groups: Sequence[Group]) -> bool:
    """True if several methods of a task end by the clock."""
    return any(len(task) > 1 for task in tasks(_runs(groups)).values())


def budget_tables(groups: Sequence[Group]) -> list[Table]:
    """The tables of `quality_table` and `target_table`, for runs."""
    found = {name: task for name, task in tasks(_runs(groups)).items() if len(task) > 1}
    return [quality_table(found), target_table(found)]


def quality_table(found: Mapping[str, Task]) -> Table:
    """A row for each method; for each task and budget the value there, the best of them marked."""
    columns = [("", "method")]
    body = {name: [Cell(name)] for task in found.values() for name in task}
    for title, task in found.items():
        for kind, (what, say) in BUDGETS.items():
            budget = least_spent(task, kind)
            if budget is None:
                continue
            columns.append((title, f"at {say(budget)}{'' if kind == 'seconds' else f' {what}'}"))
            own = {
                name: spread([one.at(kind, budget) for one in curves])
                for name, curves in task.items()
                if any(one.total(kind) for one in curves)  # a method without calls has no price
            }
            for name, cell in _marked(own, task).items():
                body[name].append(cell)
            for name in body.keys() - own.keys():
                body[name].append(Cell("none needed" if name in task else ""))
    note = (
        "The best value on validation data within a budget: the least that any run of the task "
        "spent of it. Mean ± standard deviation over seeds; the best of a column is marked."
    )
    return Table("Quality at equal budgets", columns, list(body.values()), [note])


def target_table(found: Mapping[str, Task]) -> Table:
    """What each method needs to be as good as the middle one is in the end; and its test value."""
    columns = [("", "method")]
    body = {name: [Cell(name)] for task in found.values() for name in task}
    for title, task in found.items():
        target = middle(task)
        if target is None:
            continue
        over = f"{title}: to {number(target)}"
        columns += [(title, "test"), (over, "decodings"), (over, "seconds")]
        tests = {name: spread([one.test for one in curves]) for name, curves in task.items()}
        costs = [
            {name: _cost(curves, target, kind, say) for name, curves in task.items()}
            for kind, say in (("decoded", count), ("seconds", duration))
        ]
        for name, row in body.items():
            row += [_marked(tests, task).get(name, Cell())]
            row += [_lowest(cells).get(name, Cell()) for cells in costs]
    note = (
        "The target is where the middle method of the task ended. Cost: the median over seeds, "
        "those that never reached it counted as infinite. Test data: at the step that was best on "
        "validation data."
    )
    return Table("Cost to target, and test data", columns, list(body.values()), [note])


def least_spent(task: Task, kind: str) -> float | None:
    """The least that any run spent of something; runs that spend nothing do not count."""
    totals = [one.total(kind) for curves in task.values() for one in curves]
    return min(filter(None, totals), default=None)


def middle(task: Task) -> float | None:
    """The median over methods of their mean value in the end."""
    ends = [[end for one in curves if (end := one.end()) is not None] for curves in task.values()]
    means = [fmean(values) for values in ends if values]
    return median(means) if means else None


def _cost(curves: Sequence[Curve], target: float, kind: str, say: Callable[[float], str]) -> Cell:
    costs = [one.to_reach(target, kind) for one in curves]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs) or not known:
        return Cell()
    cost, reached = median(known), sum(map(math.isfinite, known))
    some = f" ({reached} of {len(known)})" if 0 < reached < len(known) else ""
    return Cell(f"{say(cost) if math.isfinite(cost) else 'not reached'}{some}", cost)


def _marked(cells: Mapping[str, Cell], task: Task) -> dict[str, Cell]:
    """The cells, the best of them marked."""
    maximize = next(one.maximize for curves in task.values() for one in curves)
    return _lowest(cells, -1 if maximize else 1)


def _lowest(cells: Mapping[str, Cell], sign: int = 1) -> dict[str, Cell]:
    known = {n: sign * c.value for n, c in cells.items() if c.value not in (None, math.inf)}
    best = min(known, key=lambda name: known[name], default=None)
    return {name: replace(cell, best=name == best) for name, cell in cells.items()}


def _runs(groups: Sequence[Group]) -> list[Run]:
    return [run for group in groups for run in group.runs]
