"""The tables and figures of docs/categorical.md, from run files: ``categorical_tables.py``.

Reads ``results/categorical``, replaces what stands between the markers in the page, and draws
``docs/figures/categorical-*.png``. Test values at the step that was best on validation (by the true
ELBO), with their sign: higher is better. Over several seeds: mean and standard deviation.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from nestruct.reports import Run, read_run

ROOT = Path(__file__).parent.parent
RUNS, PAGE, FIGURES = (
    ROOT / "results" / "categorical",
    ROOT / "docs" / "categorical.md",
    ROOT / "docs" / "figures",
)
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"
# Table 3 of the paper: hidden size: (parameters, SST, NES, N).
PAPER = {
    16: ("25K", -240.48, -239.40, 60),
    32: ("50K", -239.49, -231.02, 60),
    64: ("100K", -233.13, -232.40, 90),
    128: ("200K", -233.92, -233.99, 100),
    256: ("400K", -239.02, -234.29, 100),
    512: ("800K", -241.03, -234.86, 100),
}
SIZES = (20, 40, 60, 90, 100, 120, 180)
EPOCH = {"fashion-mnist": 390, "kmnist": 390, "omniglot": 125}  # steps
TITLES = {"fashion": "FashionMNIST", "kmnist": "KMNIST", "omniglot": "Omniglot"}
# Okabe and Ito's colours, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, VERMILION, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
METHODS = {
    "nes": ("NES, N = 300", BLUE),
    "unbiased": ("UNBIASED", GREEN),
    "gsm": ("Gumbel-softmax, r = 1e-5", ORANGE),
    "gsm-r4": ("Gumbel-softmax, r = 1e-4", VERMILION),
    "reinforce": ("REINFORCE, 4 samples", PURPLE),
}


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def header(*cells: object) -> list[str]:
    return [row(*cells), row(*["---"] * len(cells))]


def option(run: Run, key: str) -> Any:
    table, name = key.split(".")
    return run.config.get(table, {}).get(name)


def find(runs: Sequence[Run], **wanted: Any) -> list[Run]:
    """The runs with these options, whatever their seed; ``estimator__name`` is estimator.name."""
    pairs = {key.replace("__", "."): value for key, value in wanted.items()}
    return [run for run in runs if all(option(run, k) == v for k, v in pairs.items())]


def elbos(runs: Sequence[Run], metric: str = "loss_mode") -> list[float]:
    values = [run.value("test", metric) for run in runs]
    return [-value for value in values if value is not None]


def shown(values: Sequence[float]) -> str:
    if not values:
        return "not run"
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} ({len(values)})"


def table3_runs(runs: Sequence[Run], hidden: int, number: int) -> list[Run]:
    return find(
        runs,
        model__hidden_size=hidden,
        estimator__name="NES",
        estimator__population_size=number,
        optimizer__lr=1e-3,
    )


def sst_runs(runs: Sequence[Run], hidden: int, lr: float) -> list[Run]:
    found = find(runs, model__hidden_size=hidden, estimator__name="SST", optimizer__lr=lr)
    return [run for run in found if not option(run, "estimator.anneal_rate")]


def table3(runs: Sequence[Run]) -> list[str]:
    columns = ("parameters", "SST, paper", "SST", "SST, lr 3e-3", "NES, paper", "N")
    lines = header(*columns, "NES", "best seed", "NES, true ELBO")
    for hidden, (size, sst, nes, number) in PAPER.items():
        ours = table3_runs(runs, hidden, number)
        lines.append(
            row(
                *(size, f"{sst:.1f}", shown(elbos(sst_runs(runs, hidden, 1e-3)))),
                *(shown(elbos(sst_runs(runs, hidden, 3e-3))), f"{nes:.1f}", number),
                *(shown(elbos(ours)), shown([max(elbos(ours))]), shown(elbos(ours, "loss"))),
            )
        )
    return lines


def population_sizes(runs: Sequence[Run]) -> list[str]:
    lines = header("parameters", *(f"N = {n}" for n in SIZES), "smallest N", "growth", "paper's N")
    before: int | None = None
    for hidden, (size, _, _, number) in PAPER.items():
        values = {n: elbos(table3_runs(runs, hidden, n)) for n in SIZES}
        sst = statistics.mean(elbos(sst_runs(runs, hidden, 1e-3)))
        reached = [n for n in SIZES if values[n] and statistics.mean(values[n]) >= sst]
        smallest = reached[0] if reached else None
        growth = "-" if None in (smallest, before) else f"{smallest / before - 1:+.0%}"  # type: ignore[operator]
        cells = (shown(values[n]) for n in SIZES)
        lines.append(row(size, *cells, smallest or "none of these", growth, number))
        before = smallest
    return lines


def unstructured(runs: dict[str, Run]) -> list[str]:
    columns = ("data", "method", "paper's form", "true ELBO", "log p(x)", "best epoch")
    lines = header(*columns, "epochs", "seconds")
    for data in ("fashion", "kmnist", "omniglot"):
        for method, (label, _) in METHODS.items():
            lines.append(_one(runs.get(f"{data}-{method}"), data, label))
    return lines


def boundedness(runs: dict[str, Run]) -> list[str]:
    columns = ("data", "M", "paper's form", "true ELBO", "log p(x)", "best epoch")
    lines = header(*columns, "epochs", "seconds")
    lines += [_one(runs[f"bound-{bound}"], "fashion", str(bound)) for bound in (1, 3, 9)]
    return [*lines, _one(runs["fashion-nes"], "fashion", "none")]


def _one(run: Run | None, data: str, label: str) -> str:
    if run is None:
        return row(data, label, *["not run"] * 6)
    steps = EPOCH[option(run, "data.dataset")]
    values = [shown(elbos([run], metric)) for metric in ("loss_mode", "loss", "nll")]
    ends = ((run.best_step or 0) // steps, run.last_step // steps)
    return row(data, label, *values, *ends, round(max(run.timings("seconds"))))


def gaps() -> list[str]:
    lines = header("sigma", "epoch 5", "epoch 50", "epoch 150", "epoch 300")
    for sigma in ("0.01", "0.1", "0.5"):
        found = {round(r["epoch"]): r for r in gap_rows(sigma)}
        cells = (f"{found[e]['gap']:.2f} ± {found[e]['error']:.2f}" for e in (5, 50, 150, 300))
        lines.append(row(sigma, *cells))
    return lines


def gap_rows(sigma: str) -> list[dict[str, float]]:
    return json.loads((RUNS / f"gap-{sigma}.json").read_text(encoding="utf-8"))["rows"]


def snes_groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    wide = find(runs, model__hidden_size=64, optimizer__lr=1e-3, estimator__population_size=90)
    snes = find(wide, estimator__name="SNES")
    return {
        "NES": find(wide, estimator__name="NES"),
        "SNES, a sigma per tensor": find(snes, estimator__adapt="tensor"),
        "SNES, a sigma per parameter": find(snes, estimator__adapt="parameter"),
    }


def snes(runs: Sequence[Run]) -> list[str]:
    epochs = (10, 20, 50, 100, 150)
    lines = header("method, seeds", *(f"epoch {e}" for e in epochs))
    for label, group in snes_groups(runs).items():
        cells = []
        for epoch in epochs:
            values = [-r["loss"] for g in group for r in g.validation if r["step"] == 390 * epoch]
            cells.append(shown(values).split(" (")[0])
        lines.append(row(f"{label}, {len(group)}", *cells))
    return [*lines, row("evaluations of a member", *(f"{390 * 90 * e / 1e6:.1f}M" for e in epochs))]


def searched(searches: Sequence[Run]) -> list[str]:
    lines = header("method", "hidden", "N", "sigma", "lr", "schedule", "epochs", "paper's form")
    for run in sorted(searches, key=_place):
        name = option(run, "estimator.name")
        details = [option(run, "estimator.adapt"), option(run, "estimator.shaping")]
        name += "".join(f", {d}" for d in details if d not in (None, "standard_score"))
        if option(run, "estimator.sigma_lr") is not None:
            name += f", sigma_lr {option(run, 'estimator.sigma_lr'):g}"
        cells = [option(run, f"estimator.{key}") or "-" for key in ("population_size", "sigma")]
        schedule = "cosine" if "scheduler" in run.config else "constant"
        rate, epochs = f"{option(run, 'optimizer.lr'):g}", run.last_step // 390
        hidden = option(run, "model.hidden_size")
        lines.append(row(name, hidden, *cells, rate, schedule, epochs, shown(elbos([run]))))
    return lines


def _place(run: Run) -> tuple[Any, ...]:
    keys = ("estimator.name", "model.hidden_size", "optimizer.lr")
    return (run.last_step, *(option(run, key) for key in keys), run.path.name)


def costs() -> list[str]:
    gpu, cpu = (json.loads((RUNS / f"epoch-{name}.json").read_text()) for name in ("h200", "cpu"))
    lines = header("recipe", "H200, s", "2 CPU cores, s", "2 cores, plain loop, s", "loop / ours")
    for ours, slow in zip(gpu["rows"], cpu["rows"], strict=True):
        loop = slow.get("loop")
        ratio = (f"{loop:.0f}", f"{loop / slow['epoch']:.1f}") if loop else ("-", "-")
        lines.append(row(ours["case"], f"{ours['epoch']:.2f}", f"{slow['epoch']:.1f}", *ratio))
    return lines


def curves(runs: dict[str, Run]) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    for axis, data, low, high in zip(
        axes, ("fashion", "kmnist", "omniglot"), (-300, -360, -174), (-220, -280, -171), strict=True
    ):
        for method, (label, colour) in METHODS.items():
            run = runs.get(f"{data}-{method}")
            if run is None:
                continue
            steps = EPOCH[option(run, "data.dataset")]
            points = [(r["step"] / steps, -r["loss"]) for r in run.validation if r["step"]]
            axis.plot(*zip(*points, strict=True), label=label, color=colour, linewidth=1.6)
        axis.set(title=TITLES[data], xlabel="epoch", ylim=(low, high), xscale="log")
    axes[0].set_ylabel("true ELBO on validation, nats")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    _save(figure, "curves")


def gap_figure() -> None:
    figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for sigma, colour in (("0.01", BLUE), ("0.1", ORANGE), ("0.5", VERMILION)):
        rows = gap_rows(sigma)
        epochs = [r["epoch"] for r in rows]
        errors = [2 * r["error"] for r in rows]
        axis.errorbar(
            epochs, [r["gap"] for r in rows], errors, label=f"sigma {sigma}", color=colour
        )
    axis.set(xlabel="epoch", ylabel="mean |g - k|, nats (± 2 standard errors)", yscale="log")
    axis.legend(frameon=False)
    _save(figure, "gap")


def used_by_method(runs: dict[str, Run]) -> dict[str, list[tuple[int, float]]]:
    """Categories in use and the paper's form of the ELBO, for each run on FashionMNIST."""
    groups: dict[str, list[tuple[int, float]]] = {}
    for line in map(json.loads, (RUNS / "used.jsonl").read_text(encoding="utf-8").splitlines()):
        run = runs.get(line["run"]) or read_run(RUNS / line["run"])
        if option(run, "data.dataset") == "fashion-mnist":
            kind = option(run, "estimator.name")
            groups.setdefault(kind, []).append((line["used"], elbos([run])[0]))
    return groups


def categories(runs: dict[str, Run]) -> list[str]:
    lines = header("categories in use", "runs", "worst", "mean", "best")
    points = [point for group in used_by_method(runs).values() for point in group]
    for count in sorted({count for count, _ in points}):
        values = [value for found, value in points if found == count]
        ends = min(values), statistics.mean(values), max(values)
        lines.append(row(count, len(values), *(f"{value:.1f}" for value in ends)))
    return lines


def used_figure(runs: dict[str, Run]) -> None:
    figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
    groups = used_by_method(runs)
    for (kind, points), colour in zip(groups.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=False):
        label = "SST (Gumbel-softmax)" if kind == "SST" else kind
        used, values = zip(*points, strict=True)
        axis.scatter(used, values, label=label, color=colour, s=22, alpha=0.8)
    axis.set(xlabel="categories in use, of ten", ylabel="paper's form of the test ELBO, nats")
    axis.legend(frameon=False)
    _save(figure, "used")


def snes_figure(runs: Sequence[Run]) -> None:
    figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for (label, group), colour in zip(
        snes_groups(runs).items(), (BLUE, ORANGE, GREEN), strict=True
    ):
        for i, run in enumerate(group):
            points = [(r["evaluations"] / 1e6, -r["loss"]) for r in run.validation if r["step"]]
            name = label if i == 0 else None
            axis.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=1.4)
    axis.set(xlabel="evaluations of a member's loss, millions", ylim=(-300, -228))
    axis.set_ylabel("true ELBO on validation, nats")
    axis.legend(frameon=False, fontsize=8)
    _save(figure, "snes")


def _save(figure: Any, name: str) -> None:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"categorical-{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    named = {path.name: read_run(path) for path in sorted(RUNS.iterdir()) if _is_run(path)}
    searches = [read_run(path) for path in sorted((RUNS / "search").iterdir()) if _is_run(path)]
    runs = list(named.values())
    form = "the paper's form of the test ELBO"
    sections = {
        f"Table 3: FashionMNIST, 300 epochs, {form}; ± over seeds (how many)": table3(runs),
        "NES at other N; the smallest N run whose mean reaches our SST": population_sizes(runs),
        f"Categories in use on FashionMNIST, all runs with a checkpoint, {form}": categories(named),
        "Unstructured tasks: 784-300-10, one seed": unstructured(named),
        "Boundedness: NES with log-probabilities of pixels bounded at -M": boundedness(named),
        "g and k: mean |g - k| in nats and its Monte-Carlo standard error": gaps(),
        "SNES against NES at 100K parameters, N = 90: true ELBO on validation": snes(runs),
        "Seconds per epoch, each run alone": costs(),
        f"What else was tried for Table 3: one seed, {form}": searched(searches),
    }
    parts = ["\n".join([f"\n**{title}**\n", *lines]) for title, lines in sections.items()]
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(f"{head}{BEGIN}{chr(10).join(parts)}\n\n{END}{tail}", encoding="utf-8")
    curves(named)
    gap_figure()
    used_figure(named)
    snes_figure(runs)


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


if __name__ == "__main__":
    main()
