"""The figures of the pages with tables, drawn from the JSON files in ``results``."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import scoreboard
import table1
import table3
import table3_revival
import terrain
import torch
from table_data import Data, archived, read_json

matplotlib.use("Agg")
import budget_figures
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

from nestruct import SpanningTree, plots
from nestruct.data import GraphLayout
from nestruct.wording import count

# Okabe and Ito's colours, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, VERMILION, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
GREY, SKY = "#999999", "#56B4E9"
# Of Table 1's rows, in the first of these protocols that was run; REINFORCE grey or black.
LOOKS = {
    "REINFORCE, batch": ("REINFORCE (batch)", GREY, "-"),
    "REINFORCE, EMA": ("REINFORCE (EMA)", GREY, "--"),
    "REINFORCE, 8 samples": ("REINFORCE (8 samples)", GREY, ":"),
    "REINFORCE, 8 samples of the Gibbs law": ("REINFORCE (8, Gibbs law)", "black", ":"),
    "NVIL": ("NVIL", PURPLE, "-."),
    "SST": ("SST", ORANGE, "-"),
    "NES": ("NES", SKY, "--"),
    "NES, a minibatch per pair": ("NES, a minibatch per pair", GREEN, ":"),
    "ScoreNES": ("ScoreNES", BLUE, "-."),
    "StructureNES": ("StructureNES", VERMILION, "-"),
}
PROTOCOLS = {"no prior knowledge": "", "pull": ", with the pull", "published": ""}
TITLES = {"spanning-tree": "spanning tree", "k-subset": "any n−1 edges"}  # noqa: RUF001
SHOWN = {
    "f1_sample": ("F1 of a sampled structure", (0, 1)),
    "loss_published": ("ELBO as published, per node", (-3000, 0)),
}
AXES = {"decoded": "decoder evaluations, one example each", "seconds": "seconds"}
METHODS = dict(zip(table3.METHODS, (BLUE, GREEN, ORANGE, VERMILION, PURPLE), strict=True))


def draw(folder: Path) -> None:
    """Draws all of them."""
    data = read_json("table1")
    for space in TITLES:
        _layout(data, space, folder / f"graph-layout-{space}.png")
    _trees_found(data, folder / "trees-found.svg")
    table, appendix = read_json("table3"), read_json("appendix")
    figures = {"curves": _curves(appendix), "gap": _gaps(), "used": _used(table)}
    figures |= {"bound": _bounds(appendix), "objective": _objective(appendix)}
    figures |= {"prototypes": _prototypes(), "sizes": _sizes(table, read_json("table3-revival"))}
    _save(_gains(read_json("table2")), folder / "parsing-gains.png")
    _save(_cosines(read_json("estimate-cosine-cpu")), folder / "million-members-cosine.png")
    budgets = {"subset-dvae": budget_figures.subset_curves(read_json("subset-dvae"))}
    board = read_json("scoreboard")
    if scoreboard.tasks(board):
        budgets["scoreboard"] = budget_figures.task_curves(board)
    budgets["terrain"] = terrain.figure(read_json("terrain"))
    budgets["grid-path"] = budget_figures.regrets(read_json("grid-path"))
    for name, figure in budgets.items():
        _save(figure, folder / f"{name}.png")
    for name, figure in (figures | {"snes": _snes(table)}).items():
        for axis in figure.axes:
            if axis.axison:
                axis.spines[["top", "right"]].set_visible(False)
                axis.grid(alpha=0.25)
        _save(figure, folder / f"categorical-{name}.png")


def _trees_found(data: Data, path: Path) -> None:
    """The first examples of the validation data: by the shortest tree, and as learning goes on."""
    with archived("table1") as folders:
        text = (folders["structure-nes-s0"] / "structures.jsonl").read_text(encoding="utf-8")
    scene, *frames = (json.loads(line) for line in text.splitlines())
    paths = torch.tensor(scene["drawing"]["paths"])
    layout = GraphLayout(num_nodes=paths.shape[1])
    stages = {frame["step"]: frame["map"] for frame in frames}

    def trees(found: list[Any]) -> torch.Tensor:
        z = torch.zeros(len(found), layout.num_nodes * (layout.num_nodes - 1) // 2)
        for row, parts in zip(z, found, strict=True):
            row[[part[0] for part in parts]] = 1
        return z

    shortest = "shortest tree without learning"
    without = data["without learning, F1 on validation data"]["spanning-tree"][shortest]
    (row,) = (
        row
        for row in data["rows"]
        if (row["row"], row["group"]) == ("StructureNES", "no prior knowledge")
        and row["column"] == "spanning-tree"
    )
    learnt = f"{100 * row['f1_sample']['mean']:.1f}% of all edges, the mean of five seeds"
    rows = {
        f"Without learning, the shortest tree: {100 * without:.1f}% of all edges are right": (
            layout.baselines({"x": paths})[shortest]
        ),
        "StructureNES early, after the best of four starts of 1,000 steps": trees(stages[0]),
        f"StructureNES after 20,000 steps more: {learnt}": trees(stages[max(stages)]),
    }
    tree = SpanningTree(layout.num_nodes)
    picture = plots.structures(tree, rows, truth=trees(scene["true"]), paths=paths, examples=8)
    # A page shows it at two thirds of its size: larger words and thicker lines than in a report.
    bold = ".right > .edge, .wrong > .edge { stroke-width: 4.5 !important; } "
    bold += ".wrong > .edge { stroke-dasharray: 9 9 !important; } "
    svg = picture.svg.replace("<style>", f"<style>{bold}", 1)
    svg = svg.replace(".title { ", ".title { font-size: 23px; ")
    plots.Picture(svg).save(path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _layout(data: Data, space: str, path: Path) -> None:
    """A row of panels for each metric: a line is the mean over seeds, a band the range."""
    figure, places = plt.subplots(2, 2, figsize=(11, 7), layout="constrained", sharey="row")
    cells: dict[str, Data] = {}
    for cell in data["rows"]:  # in the order of PROTOCOLS
        if cell["column"] == space and cell["row"] in LOOKS and cell["runs"]:
            cells.setdefault(cell["row"], cell)
    for row, (metric, (label, limits)) in zip(places, SHOWN.items(), strict=True):
        for place, (axis, title) in zip(row, AXES.items(), strict=True):
            for cell in cells.values():
                _line(place, data, cell, metric, axis)
            place.set(xscale="log", xlabel=title, ylim=limits)
            place.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            place.xaxis.set_major_formatter(lambda value, _: count(value))
            place.xaxis.set_minor_formatter(NullFormatter())
            place.spines[["top", "right"]].set_visible(False)
            place.grid(alpha=0.25)
            if metric == "f1_sample":
                _references(place, data["without learning, F1 on validation data"][space])
        row[0].set_ylabel(f"{label}, validation")
    figure.suptitle(TITLES[space], fontsize=12)
    handles, labels = places[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    _save(figure, path)


def _line(place: Any, data: Data, cell: Data, metric: str, axis: str) -> None:
    name, color, style = LOOKS[cell["row"]]
    curves = [_points(data, run, metric, axis) for run in cell["runs"]]
    steps = sorted(set.intersection(*map(set, curves)))
    xs = [fmean(curve[step][0] for curve in curves) for step in steps]
    ys = [[curve[step][1] for curve in curves] for step in steps]
    seeds = f"{PROTOCOLS[cell['group']]} ({len(curves)} seed{'s' * (len(curves) > 1)})"
    look = {"color": color, "linestyle": style, "label": name + seeds}
    place.plot(xs, [fmean(y) for y in ys], linewidth=1.7, **look)
    if len(curves) > 1:
        place.fill_between(
            xs, list(map(min, ys)), list(map(max, ys)), color=color, alpha=0.15, lw=0
        )


def _points(data: Data, name: str, metric: str, axis: str) -> dict[int, tuple[float, float]]:
    """By step, what was spent and what was reached."""
    curve, size = data["runs"][name]["curve"], table1.examples(data, name)
    sign = -1 if metric == "loss_published" else 1
    rows = zip(curve["step"], curve["evaluations"], curve["seconds"], curve[metric], strict=True)
    return {
        step: (evaluations * size if axis == "decoded" else seconds, sign * value)
        for step, evaluations, seconds, value in rows
        if evaluations and seconds  # a logarithmic axis has no place for the untrained model
    }


def _references(place: Any, marks: dict[str, float]) -> None:
    """What needs no learning, as dotted lines."""
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


def _curves(data: Data) -> Any:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    ranges = ((-300, -220), (-360, -280), (-174, -171))
    for axis, (dataset, title), limits in zip(axes, table3.DATASETS.items(), ranges, strict=True):
        for method, label in table3.METHODS.items():
            run = data["runs"][f"{dataset}-{method}"]
            epoch, curve = table3.EPOCH[run["is"]["data.dataset"]], run["curve"]
            points = [
                (step / epoch, -loss)
                for step, loss in zip(curve["step"], curve["loss"], strict=True)
                if step
            ]
            look = {"label": label, "color": METHODS[method]}
            axis.plot(*zip(*points, strict=True), linewidth=1.6, **look)
        axis.set(title=title, xlabel="epoch", ylim=limits, xscale="log")
    axes[0].set_ylabel("true ELBO on validation, nats")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    return figure


def _gains(data: Data) -> Any:
    """Points of UAS that adapting gains over the parser as it was: lines are means, dots seeds."""
    looks = {"DPP": GREY, "SparseMAP": GREY, "StructureNES": VERMILION, "NES": BLUE}
    kinds = ("projective", "non-projective")
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
    targets = list(dict.fromkeys(row["column"] for row in data["rows"]))
    for axis, trees in zip(axes, kinds, strict=True):
        rows = {(r["row"], r["column"]): r for r in data["rows"] if r["trees"] == trees}
        shown = [name for name in looks if (name, targets[0]) in rows]
        for place, name in enumerate(shown):
            for k, target in enumerate(targets):
                before = rows["source only", target]["uas"]["mean"]
                runs = [data["runs"][run]["test"]["uas"] for run in rows[name, target]["runs"]]
                x, gains = k + 0.26 * (place - 1), [100 * (uas - before) for uas in runs]
                label = {"label": name} if k == 0 else {}
                axis.hlines(fmean(gains), x - 0.1, x + 0.1, looks[name], linewidth=4, **label)
                axis.scatter([x] * len(gains), gains, s=14, color=looks[name], alpha=0.5, zorder=3)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(targets)), [t.upper() for t in targets], fontsize=8)
        axis.set_title(f"{trees} trees", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
        axis.legend(frameon=False, fontsize=9, loc="upper right")
    axes[0].set_ylabel("UAS less that of source only, points")
    return figure


def _sizes(plain: Data, revived: Data) -> Any:
    """The paper's form of the test ELBO at six sizes: lines are means, dots are seeds."""
    figure, axis = plt.subplots(figsize=(8, 3.8), layout="constrained")
    rows = [row for row in plain["rows"] if table3_revival.is_nes_of_paper(row)]
    kind = "revival and late cosine"
    own = {r["row"]: r for r in revived["rows"] if (r["estimator"], r["column"]) == ("NES", kind)}
    values = {
        "NES, paper": (GREY, [[row["paper"]] for row in rows]),
        "NES": (BLUE, [_modes(plain, row) for row in rows]),
        "NES with revival": (VERMILION, [_modes(revived, own[row["row"]]) for row in rows]),
    }
    for place, (label, (colour, seeds)) in enumerate(values.items()):
        xs = [k + 0.26 * (place - 1) for k in range(len(rows))]
        starts, ends = [x - 0.11 for x in xs], [x + 0.11 for x in xs]
        means = [fmean(value) for value in seeds]
        axis.hlines(means, starts, ends, color=colour, linewidth=4, label=label)
        if label != "NES, paper":
            points = [(x, value) for x, some in zip(xs, seeds, strict=True) for value in some]
            across, values_there = zip(*points, strict=True)
            axis.scatter(across, values_there, s=14, color=colour, alpha=0.5, zorder=3)
    axis.set_xticks(range(len(rows)), [row["row"] for row in rows])
    axis.set(xlabel="parameters", ylabel="paper's form of the test ELBO, nats", ylim=(-248, -222))
    figure.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def _modes(data: Data, row: Data) -> list[float]:
    return [-data["runs"][name]["test"]["loss_mode"] for name in row["runs"]]


def _bounds(data: Data) -> Any:
    """One seed each: what bounding the log-probability of a pixel at -M does to training."""
    figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
    runs = {f"M = {bound}": f"bound-{bound}" for bound in (1, 3, 9)} | {"no bound": "fashion-nes"}
    for (label, name), colour in zip(runs.items(), (GREY, ORANGE, BLUE, VERMILION), strict=True):
        curve = data["runs"][name]["curve"]
        points = zip(curve["step"], curve["loss"], strict=True)
        epochs, elbos = zip(*((step / 390, -loss) for step, loss in points if step), strict=True)
        below = f", below {max(elbos):,.0f}" if max(elbos) < -420 else ""
        axis.plot(epochs, elbos, color=colour, label=label + below)
    axis.set(xlabel="epoch", ylabel="true ELBO on validation, nats", xscale="log")
    axis.set_ylim(-420, -220)
    axis.legend(frameon=False)
    return figure


def _objective(data: Data) -> Any:
    """Training by the appendix's own objective: what is minimised, and the ELBO meanwhile."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    curve = data["runs"][table3.OBJECTIVE]["curve"]
    epochs = [step / 390 for step in curve["step"]]
    axes[0].plot(epochs[1:], [value / 1e6 for value in curve["objective"][1:]], color=VERMILION)
    axes[0].set(xlabel="epoch", ylabel="appendix's objective, minimised; millions")
    axes[1].plot(epochs, [-loss for loss in curve["loss"]], color=BLUE)
    axes[1].set(xlabel="epoch", ylabel="true ELBO on validation, nats")
    return figure


def _prototypes() -> Any:
    """What each category decodes to, without and with revival, at the step that was best."""
    runs = {"late cosine only": "nes-cosine-512-s", "revival": "nes-revival-cosine-512-s"}
    figure, places = plt.subplots(2, 10, figsize=(9, 2.2), layout="constrained")
    with archived("table3-revival") as folders:
        for row, (label, start) in zip(places, runs.items(), strict=True):
            name = min(name for name in folders if name.startswith(start))  # the first seed
            frames = (folders[name] / "structures.jsonl").read_text(encoding="utf-8").splitlines()
            images = json.loads(frames[-1])["model"]["prototypes"]
            for axis, image in zip(row, images, strict=True):
                pixels = [[int(digit, 16) for digit in line] for line in image]
                axis.imshow(pixels, cmap="gray_r", vmin=0, vmax=15)
                axis.set_axis_off()
            row[0].set_title(label, loc="left", fontsize=9)
    return figure


def _gaps() -> Any:
    figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for sigma, colour in zip(table3.SIGMAS, (BLUE, ORANGE, VERMILION), strict=True):
        rows = read_json(f"gap-{sigma}")["rows"]
        epochs, gaps = ([r[key] for r in rows] for key in ("epoch", "gap"))
        errors = [2 * r["error"] for r in rows]
        axis.errorbar(epochs, gaps, errors, label=f"sigma {sigma}", color=colour)
    axis.set(xlabel="epoch", ylabel="mean |g - k|, nats (± 2 standard errors)", yscale="log")
    axis.legend(frameon=False)
    return figure


def _used(data: Data) -> Any:
    figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
    kinds = list(dict.fromkeys(line["method"] for line in data["categories in use"]))
    for kind, colour in zip(kinds, (BLUE, ORANGE, GREEN, PURPLE), strict=False):
        lines = [line for line in data["categories in use"] if line["method"] == kind]
        label = "SST (Gumbel-softmax)" if kind == "SST" else kind
        used, values = [line["used"] for line in lines], [-line["loss_mode"] for line in lines]
        axis.scatter(used, values, label=label, color=colour, s=22, alpha=0.8)
    axis.set(xlabel="categories in use, of ten", ylabel="paper's form of the test ELBO, nats")
    axis.legend(frameon=False)
    return figure


def _snes(data: Data) -> Any:
    figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
    groups = table3.snes_groups(data)
    for (label, names), colour in zip(groups.items(), (BLUE, ORANGE, GREEN), strict=True):
        for number, name in enumerate(names):
            curve = data["runs"][name]["curve"]
            columns = (curve[key] for key in ("step", "evaluations", "loss"))
            points = [(n / 1e6, -loss) for step, n, loss in zip(*columns, strict=True) if step]
            first = label if number == 0 else None
            axis.plot(*zip(*points, strict=True), color=colour, label=first, linewidth=1.4)
    axis.set(xlabel="evaluations of a member's loss, millions", ylim=(-300, -228))
    axis.set_ylabel("true ELBO on validation, nats")
    axis.legend(frameon=False, fontsize=8)
    return figure


def _cosines(data: Data) -> Any:
    """One estimate against the number of members: measured, and by the formula."""
    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    stages = list(dict.fromkeys(row["stage"] for row in data["rows"]))
    for stage, colour in zip(stages, (BLUE, ORANGE, GREEN), strict=False):
        rows = [row for row in data["rows"] if row["stage"] == stage]
        members = [row["population"] for row in rows]
        label = stage if "sigma" in stage else f"{stage}, sigma {rows[0]['sigma']}"
        axis.plot(members, [row["predicted"] for row in rows], color=colour, label=label)
        axis.plot(members, [row["none"]["cosine"] for row in rows], "o", color=colour)
        axis.plot(members, [row["none"]["to_exact"] for row in rows], "x", color=colour)
    for mark, name in (("k-", "the formula"), ("ko", "measured"), ("kx", "to the exact gradient")):
        axis.plot([], [], mark, label=name)
    axis.set(xscale="log", yscale="log", ylim=(0.002, 1.1), xlabel="members of one example each")
    axis.set_ylabel("cosine of one estimate to its mean")
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    return figure
