"""Figures of docs/graph-layout.md, from run files: ``graph_layout_figures.py [RUNS] [FIGURES]``.

Reads the runs of ``results/graph-layout`` and draws ``docs/figures/graph-layout-*.png``, one figure
for each latent space: F1 of a sampled structure and the published ELBO on validation data, against
examples decoded and against seconds. A line is the mean over seeds, a band smallest to largest. Of
a method with several configurations, the one that stands in Table 1. Needs matplotlib (the extra
``plots``).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

from nestruct.reports import Group, Run, find_runs, read_groups
from nestruct.reports.curves import combine
from nestruct.reports.names import method_name, short_names, structure_name
from nestruct.reports.paper.comparison import chosen
from nestruct.reports.paper.published import published_tables
from nestruct.reports.summary import references
from nestruct.wording import count

ROOT = Path(__file__).parent.parent
RUNS, FIGURES = ROOT / "results" / "graph-layout", ROOT / "docs" / "figures"
# Okabe and Ito's colours, which the colour-blind can tell apart, in the order of Table 1's rows;
# the three REINFORCE in grey, told apart by their dashes.
COLOURS = (
    *("#999999", "#999999", "#999999", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#009E73", "#0072B2", "#D55E00"),
)
STYLES = ("-", "--", ":", "-.")
METRICS = {
    "f1_sample": ("F1 of a sampled structure", (0, 1)),
    "elbo": ("ELBO as published, per node", (-3000, 0)),
}
AXES = {"evaluations": "decoder evaluations, one example each", "seconds": "seconds"}


def main() -> None:
    runs, figures = (*map(Path, sys.argv[1:]), *(RUNS, FIGURES)[len(sys.argv) - 1 :])
    folders, _ = find_runs([runs])
    groups = read_groups(folders)
    figures.mkdir(parents=True, exist_ok=True)
    for space in dict.fromkeys(group.runs[0].option("model.structure") for group in groups):
        members = [group for group in groups if group.runs[0].option("model.structure") == space]
        path = figures / f"graph-layout-{space}.png"
        draw(shown(members, space), path)
        print(f"Wrote {path}.")


def shown(groups: Sequence[Group], space: str) -> list[Group]:
    """One configuration of each method that Table 1 knows; all of the others."""
    found = []
    for group in groups:
        tables = [(table, table.row(group.runs[0])) for table in published_tables()]
        rows = [(table, row) for table, row in tables if row is not None]
        if not rows or any(chosen(table, groups, row, space) is group for table, row in rows):
            found.append(group)
    return found


def draw(groups: Sequence[Group], path: Path) -> None:
    figure, places = plt.subplots(2, 2, figsize=(11, 7), layout="constrained", sharey="row")
    names = short_names([group.runs[0] for group in groups], [group.label for group in groups])
    for row, (metric, (label, limits)) in zip(places, METRICS.items(), strict=True):
        for place, (axis, title) in zip(row, AXES.items(), strict=True):
            for k, (group, name) in enumerate(zip(groups, names, strict=True)):
                draw_group(place, group, name, metric, axis, look(group, k))
            place.set(xscale="log", xlabel=title, ylim=limits)
            place.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            place.xaxis.set_major_formatter(lambda value, _: count(value))
            place.xaxis.set_minor_formatter(NullFormatter())
            place.spines[["top", "right"]].set_visible(False)
            place.grid(alpha=0.25)
            if metric == "f1_sample":
                draw_references(place, [run for group in groups for run in group.runs])
        row[0].set_ylabel(f"{label}, validation")
    figure.suptitle(structure_name(groups[0].runs[0]) or "", fontsize=12)
    handles, labels = places[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_group(
    place: Any, group: Group, name: str, metric: str, axis: str, style: dict[str, Any]
) -> None:
    curves = [points for run in group.runs if (points := curve(run, metric, axis))]
    line = combine(curves)
    if line is None:
        return
    seeds = f" ({len(curves)} seed{'s' * (len(curves) > 1)})"
    place.plot(line.xs, line.mean, label=name + seeds, linewidth=1.7, **style)
    if len(curves) > 1:
        place.fill_between(line.xs, line.low, line.high, color=style["color"], alpha=0.15, lw=0)


def draw_references(place: Any, runs: Sequence[Run]) -> None:
    """What needs no learning, as dotted lines."""
    marks = {label: value for run in runs for label, value in references(run, "f1").items()}
    above = 2.0
    for label, value in sorted(marks.items(), key=lambda mark: -mark[1]):
        below = above - value < 0.05
        place.axhline(value, color="#555555", linewidth=0.9, linestyle=(0, (1, 3)))
        place.text(
            *(0.99, value - 0.008 if below else value + 0.008, label),
            transform=place.get_yaxis_transform(),
            ha="right",
            va="top" if below else "bottom",
            fontsize=7.5,
            color="#555555",
        )
        above = value


def curve(run: Run, metric: str, axis: str) -> list[tuple[int, float, float]]:
    points = []
    for record in run.validation:
        spent = run.decoded(record) if axis == "evaluations" else record["timing"].get("seconds")
        # Not the untrained model: a logarithmic axis has no place for it.
        if spent and run.decoded(record) and record.get(metric) is not None:
            points.append((record["step"], float(spent), float(record[metric])))
    return points


def look(group: Group, k: int) -> dict[str, Any]:
    """The colour of a method, the same in every figure."""
    methods = [row.method for table in published_tables() for row in table.rows]
    name = method_name(group.runs[0])
    place = methods.index(name) if name in methods else len(methods) + k
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[place % len(STYLES)]}


if __name__ == "__main__":
    main()
