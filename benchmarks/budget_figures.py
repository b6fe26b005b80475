"""Figures of methods beside one another: of the subset VAE, the scoreboard, and the grid paths."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean
from typing import Any

import grid_path
import matplotlib.pyplot as plt
import scoreboard
from matplotlib.ticker import LogLocator, NullFormatter
from table_data import Data

from nestruct.reports.budgets import Curve
from nestruct.wording import count

NAMES = {"decoded": "decoder evaluations, one example each", "seconds": "seconds"}
METRICS = {"loss": "negative ELBO", "loss_published": "published loss"}


def subset_curves(data: Data) -> Any:
    """The subset VAE's negative ELBO by two laws against decodings; of the longest runs alone."""
    laws = {"loss": "Gibbs law", "loss_top_k": "top-k law"}
    longest = max(row["epochs"] for row in data["rows"])
    rows = [row for row in data["rows"] if row["epochs"] == longest]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharey=True)
    for axis, (metric, law) in zip(axes, laws.items(), strict=True):
        methods: dict[str, list[Curve]] = {}
        for row in rows:
            curves = [data["runs"][name]["curve"] for name in row["runs"]]
            methods[row["row"]] = [Curve(c[metric], {"decoded": c["decoded"]}) for c in curves]
        _draw(axis, methods, "decoded")
        axis.set_title(law, fontsize=10)
    axes[0].set_ylabel("negative ELBO on validation, nats")
    return _with_legend(figure, axes)


def task_curves(data: Data) -> Any:
    """Every method of the scoreboard against decodings and seconds, a row for each task."""
    tasks = scoreboard.tasks(data)
    places = {name: k for k, name in enumerate(dict.fromkeys(r["row"] for r in data["rows"]))}
    figure, axes = plt.subplots(
        len(tasks), 2, figsize=(10, 3.8 * len(tasks)), layout="constrained", squeeze=False
    )
    for row, (task, methods) in zip(axes, tasks.items(), strict=True):
        so_far = {name: [_best_so_far(curve) for curve in some] for name, some in methods.items()}
        metric = data["runs"][next(r for r in data["rows"] if r["column"] == task)["runs"][0]]["is"]
        for axis, kind in zip(row, NAMES, strict=True):
            _draw(axis, so_far, kind, places)
            if all(value > 0 for some in so_far.values() for c in some for value in c.values):
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter("{x:g}")
                axis.yaxis.set_minor_formatter("{x:g}")
        name = METRICS.get(metric["metric"], metric["metric"])
        row[0].set_ylabel(f"{task}: {name} on validation data,\nthe best so far")
    return _with_legend(figure, list(axes.flat))


def regrets(data: Data) -> Any:
    """Our best row less PyEPO's for each setting of the data, in percent of PyEPO's regret."""
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    names = []
    for place, (setting, ours, theirs, mean, error) in enumerate(grid_path.compared(data)):
        whole = fmean(theirs["test"]) or 1.0
        same = ours["method"] == theirs["method"] == "least squares"
        axis.errorbar(
            place, 100 * mean / whole, 100 * error / whole, fmt="o", color="C7" if same else "C0"
        )
        count, noise, degree = setting
        names.append(f"{count:,}\n{noise:g}\n{degree}")
    axis.axhline(0, color="0.5", linewidth=1)
    axis.set_xticks(range(len(names)), names, fontsize=8)
    axis.set_xlabel("examples, noise, degree")
    axis.set_ylabel("our best row less PyEPO's,\n% of its regret")
    return figure


def _draw(
    axis: Any,
    methods: Mapping[str, Sequence[Curve]],
    kind: str,
    places: Mapping[str, int] | None = None,
) -> None:
    """A line for each method: its mean over seeds, at the evaluations that all of them have.

    ``places`` says which method has which colour, so that it has the same one in several axes.
    """
    places = places or {name: k for k, name in enumerate(methods)}
    for label, curves in methods.items():
        place = places[label]
        steps = min(len(curve.values) for curve in curves)
        xs = [_mean([curve.spent[kind][k] for curve in curves]) for k in range(steps)]
        ys = [fmean(curve.values[k] for curve in curves) for k in range(steps)]
        begun = [all(curve.spent["decoded"][k] != 0 for curve in curves) for k in range(steps)]
        # A logarithmic axis has no place for the untrained model.
        points = [(x, y) for x, y, yes in zip(xs, ys, begun, strict=True) if x and yes]
        if len(points) > 1:  # one point is no curve
            style = ("-", "--", ":")[place // 10 % 3]
            axis.plot(*zip(*points, strict=True), style, color=f"C{place % 10}", label=label)
    axis.set(xscale="log", xlabel=NAMES[kind])
    low, high = axis.get_xlim()
    if high / low < 300:  # two powers of ten would be all that it says
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(lambda value, _: count(value))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _best_so_far(curve: Curve) -> Curve:
    best = accumulate(curve.values, max if curve.maximize else min)
    return replace(curve, values=list(best))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _with_legend(figure: Any, axes: Sequence[Any]) -> Any:
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    figure.legend(found.values(), found, loc="outside lower center", ncols=4, fontsize=8)
    return figure
