"""Table 3 and the appendix, categorical VAEs: their JSON from run files, and the tables of it."""

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from table_data import (
    RESULTS,
    Data,
    archived,
    configurations,
    entry,
    plain,
    published,
    runs_named,
    spread,
    summary,
)

from nestruct.reports import Run

SIZES = {16: "25K", 32: "50K", 64: "100K", 128: "200K", 256: "400K", 512: "800K"}
POPULATIONS = (20, 40, 60, 90, 100, 120, 180)
METRICS = ("loss_mode", "loss", "nll")  # the paper's form, the true ELBO, log p(x)
EPOCH = {"fashion-mnist": 390, "kmnist": 390, "omniglot": 125}  # steps
DATASETS = {"fashion": "FashionMNIST", "kmnist": "KMNIST", "omniglot": "Omniglot"}
METHODS = {
    "nes": "NES, N = 300",
    "unbiased": "UNBIASED",
    "gsm": "Gumbel-softmax, r = 1e-5",
    "gsm-r4": "Gumbel-softmax, r = 1e-4",
    "reinforce": "REINFORCE, 4 samples",
}
OBJECTIVE = "objective-exact"  # trained by the appendix's own objective
SIGMAS = ("0.01", "0.1", "0.5")
KEPT = (
    *("estimator.name", "estimator.population_size", "estimator.sigma", "estimator.adapt"),
    *("estimator.shaping", "estimator.sigma_lr", "estimator.anneal_rate", "optimizer.lr"),
    *("model.hidden_size", "model.loss_bound", "data.dataset", "scheduler.name"),
)
PROTOCOL = (
    "Test values at the step that was best on validation by the true ELBO, all exact. loss_mode: "
    "at the most likely category, with the categorical KL (the paper's form); loss: the true ELBO; "
    "nll: log p(x); each with its sign turned. Seconds are one run's, beside up to 15 others."
)


def collect_table3() -> Data:
    with archived("table3") as folders, archived("table3-search") as others:
        runs = runs_named(folders)
        searches = {f"search/{name}": run for name, run in runs_named(others).items()}
    with archived("appendix") as folders:
        appendix = runs_named(folders)
    every = runs | searches
    entries = {name: _entry(run, name) for name, run in every.items()}
    paper = {row["method"]: row for row in published("table3")["rows"]}
    rows = []
    for hidden, size in SIZES.items():
        printed = {method: paper[method].get(str(hidden), {}) for method in ("SST", "NES")}
        number = printed["NES"]["population_size"]
        kinds = {"SST": _sst(entries, hidden, 1e-3), "SST, lr 3e-3": _sst(entries, hidden, 3e-3)}
        kinds |= {f"NES, N = {n}": _nes(entries, hidden, n) for n in POPULATIONS}
        for kind, names in kinds.items():
            found: Data = {"row": size, "hidden_size": hidden, "column": kind, "runs": names}
            if names:
                found |= summary([entries[name] for name in names], METRICS)
            if kind in ("SST", f"NES, N = {number}"):
                found["paper"] = printed[kind.partition(",")[0]]["elbo"][0]
            rows.append(found)
    return {
        "title": "Table 3: network size, FashionMNIST, 300 epochs",
        "archives": ["table3-runs.tar.xz", "table3-search-runs.tar.xz"],
        "protocol": PROTOCOL,
        "rows": rows,
        "categories in use": list(_used(every | appendix)),
        **configurations(every),
        "runs": entries,
    }


def collect_appendix() -> Data:
    with archived("appendix") as folders:
        runs = runs_named(folders)
    entries = {name: _entry(run, name) for name, run in runs.items()}
    trained = [record["loss"] for record in runs[OBJECTIVE].records["train"]]
    entries[OBJECTIVE]["curve"]["objective"] = [None, *trained]  # none before the first step
    rows = [
        {"row": name, "runs": [name], **summary([run], METRICS)} for name, run in entries.items()
    ]
    return {
        "title": "Appendix: unstructured tasks 784-300-10, and bounded losses",
        "archives": ["appendix-runs.tar.xz"],
        "protocol": PROTOCOL,
        "rows": rows,
        **configurations(runs),
        "runs": entries,
    }


def _entry(run: Run, name: str) -> Data:
    # Only what is drawn or read off at epochs needs its curve.
    drawn = name.startswith(("snes-64", "table3-nes-64")) or run.config["recipe"].startswith("unst")
    found = entry(run, METRICS, curve=("loss",) if drawn else ())
    flat = {
        f"{t}.{k}": v for t, o in run.config.items() if isinstance(o, dict) for k, v in o.items()
    }
    return found | {"is": {key: flat[key] for key in KEPT if key in flat}}


def _find(entries: Data, **wanted: Any) -> list[str]:
    """The runs of the table with these options, whatever their seed."""
    pairs = {key.replace("__", "."): value for key, value in wanted.items()}
    return [
        name
        for name, run in entries.items()
        if "/" not in name and all(run["is"].get(k) == v for k, v in pairs.items())
    ]


def _nes(entries: Data, hidden: int, number: int) -> list[str]:
    return _find(
        entries,
        model__hidden_size=hidden,
        estimator__name="NES",
        estimator__population_size=number,
        optimizer__lr=1e-3,
    )


def _sst(entries: Data, hidden: int, lr: float) -> list[str]:
    return _find(entries, model__hidden_size=hidden, estimator__name="SST", optimizer__lr=lr)


def _used(runs: dict[str, Run]) -> Iterator[Data]:
    """Categories in use, counted while there were checkpoints, with what the run came to."""
    for line in (RESULTS / "categories-used.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        run = runs[found["run"]]
        if run.config["data"]["dataset"] == "fashion-mnist":
            test = run.records["test"][-1]
            kind = run.config["estimator"]["name"]
            yield found | {
                "method": kind,
                "seed": run.config["seed"],
                "loss_mode": test["loss_mode"],
            }


def one(value: float) -> str:
    return f"{value:.1f}"


def elbos(data: Data, names: Sequence[str], metric: str = "loss_mode") -> list[float]:
    return [-data["runs"][name]["test"][metric] for name in names]


def shown(values: Sequence[float]) -> str:
    if not values:
        return "not run"
    return one(values[0]) if len(values) == 1 else spread(values, one)


def _cells(data: Data, size: str) -> dict[str, Data]:
    return {cell["column"]: cell for cell in data["rows"] if cell["row"] == size}


def _paper(cells: dict[str, Data]) -> tuple[int, Data]:
    """The paper's N, and the cell that has it."""
    cell = next(c for k, c in cells.items() if k.startswith("NES") and "paper" in c)
    return int(cell["column"].rpartition(" ")[2]), cell


def main_table(data: Data) -> str:
    columns = ["parameters", "SST, paper", "SST", "SST, lr 3e-3", "NES, paper", "N"]
    lines = []
    for size in SIZES.values():
        cells = _cells(data, size)
        number, nes = _paper(cells)
        values = elbos(data, nes["runs"])
        lines.append(
            [
                *(size, one(cells["SST"]["paper"]), shown(elbos(data, cells["SST"]["runs"]))),
                *(shown(elbos(data, cells["SST, lr 3e-3"]["runs"])), one(nes["paper"]), number),
                *(shown(values), one(max(values)), shown(elbos(data, nes["runs"], "loss"))),
            ]
        )
    return plain([*columns, "NES", "best seed", "NES, true ELBO"], lines)


def population_table(data: Data) -> str:
    columns = ["parameters", *(f"N = {n}" for n in POPULATIONS), "smallest N", "growth"]
    lines, before = [], None
    for size in SIZES.values():
        cells = _cells(data, size)
        values = {n: elbos(data, cells[f"NES, N = {n}"]["runs"]) for n in POPULATIONS}
        sst = statistics.mean(elbos(data, cells["SST"]["runs"]))
        smallest = next((n for n, v in values.items() if v and statistics.mean(v) >= sst), None)
        growth = f"{smallest / before - 1:+.0%}" if smallest and before else "-"
        line = [size, *map(shown, values.values()), smallest or "none of these", growth]
        lines.append([*line, _paper(cells)[0]])
        before = smallest
    return plain([*columns, "paper's N"], lines)


def used_table(data: Data) -> str:
    points = [(line["used"], -line["loss_mode"]) for line in data["categories in use"]]
    lines = []
    for count in sorted({count for count, _ in points}):
        values = [value for found, value in points if found == count]
        ends = min(values), statistics.mean(values), max(values)
        lines.append([count, len(values), *map(one, ends)])
    return plain(["categories in use", "runs", "worst", "mean", "best"], lines)


def unstructured_table(data: Data) -> str:
    lines = [
        _line(data, f"{dataset}-{method}", dataset, label)
        for dataset in DATASETS
        for method, label in METHODS.items()
    ]
    columns = ["data", "method", "paper's form", "true ELBO", "log p(x)", "best epoch"]
    return plain([*columns, "epochs", "seconds"], lines)


def bound_table(data: Data) -> str:
    lines = [_line(data, f"bound-{bound}", "fashion", str(bound)) for bound in (1, 3, 9)]
    columns = ["data", "M", "paper's form", "true ELBO", "log p(x)", "best epoch"]
    return plain(
        [*columns, "epochs", "seconds"], [*lines, _line(data, "fashion-nes", "fashion", "none")]
    )


def _line(data: Data, name: str, dataset: str, label: str) -> list[object]:
    run = data["runs"][name]
    steps = EPOCH[run["is"]["data.dataset"]]
    values = [one(-run["test"][metric]) for metric in METRICS]
    ends = (run["best_step"] or 0) // steps, run["steps"] // steps
    return [dataset, label, *values, *ends, round(run["seconds"])]


def gap_table(*gaps: Data) -> str:
    lines = []
    for sigma, data in zip(SIGMAS, gaps, strict=True):
        found = {round(r["epoch"]): r for r in data["rows"]}
        cells = (f"{found[e]['gap']:.2f} ± {found[e]['error']:.2f}" for e in (5, 50, 150, 300))
        lines.append([sigma, *cells])
    return plain(["sigma", "epoch 5", "epoch 50", "epoch 150", "epoch 300"], lines)


def snes_groups(data: Data) -> dict[str, list[str]]:
    wide: dict[str, Any] = {"model__hidden_size": 64, "optimizer__lr": 1e-3}
    wide["estimator__population_size"] = 90

    def find(**more: Any) -> list[str]:
        return _find(data["runs"], **wide, **more)

    return {
        "NES": find(estimator__name="NES"),
        "SNES, a sigma per tensor": find(estimator__name="SNES", estimator__adapt="tensor"),
        "SNES, a sigma per parameter": find(estimator__name="SNES", estimator__adapt="parameter"),
    }


def snes_table(data: Data) -> str:
    epochs = (10, 20, 50, 100, 150)
    lines: list[list[object]] = []
    for label, names in snes_groups(data).items():
        line: list[object] = [f"{label}, {len(names)}"]
        for epoch in epochs:
            curves = [data["runs"][name]["curve"] for name in names]
            values = [-c["loss"][c["step"].index(390 * epoch)] for c in curves]
            line.append(spread(values, one, count=False))
        lines.append(line)
    spent = (f"{390 * 90 * e / 1e6:.1f}M" for e in epochs)
    lines.append(["evaluations of a member", *spent])
    return plain(["method, seeds", *(f"epoch {e}" for e in epochs)], lines)


def search_table(data: Data) -> str:
    searches = {name: run for name, run in data["runs"].items() if name.startswith("search/")}

    def place(item: tuple[str, Data]) -> tuple[Any, ...]:
        keys = ("estimator.name", "model.hidden_size", "optimizer.lr")
        return (item[1]["steps"], *(item[1]["is"][key] for key in keys), item[0])

    lines = []
    for name, run in sorted(searches.items(), key=place):
        options = run["is"]
        method = options["estimator.name"]
        for detail in (options.get("estimator.adapt"), options.get("estimator.shaping")):
            method += f", {detail}" if detail not in (None, "standard_score") else ""
        if "estimator.sigma_lr" in options:
            method += f", sigma_lr {options['estimator.sigma_lr']:g}"
        cells = [options.get(f"estimator.{key}") or "-" for key in ("population_size", "sigma")]
        schedule = "cosine" if "scheduler.name" in options else "constant"
        rate, epochs = f"{options['optimizer.lr']:g}", run["steps"] // 390
        hidden = options["model.hidden_size"]
        lines.append([method, hidden, *cells, rate, schedule, epochs, shown(elbos(data, [name]))])
    columns = ["method", "hidden", "N", "sigma", "lr", "schedule", "epochs", "paper's form"]
    return plain(columns, lines)


def epoch_table(gpu: Data, cpu: Data) -> str:
    lines = []
    for ours, slow in zip(gpu["rows"], cpu["rows"], strict=True):
        loop = slow.get("loop")
        ratio = (f"{loop:.0f}", f"{loop / slow['epoch']:.1f}") if loop else ("-", "-")
        lines.append([ours["case"], f"{ours['epoch']:.2f}", f"{slow['epoch']:.1f}", *ratio])
    columns = ["recipe", "H200, s", "2 CPU cores, s", "2 cores, plain loop, s", "loop / ours"]
    return plain(columns, lines)
