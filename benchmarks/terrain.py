"""Paths over terrain: the JSON from run files, the tables of the page, and its figure.

Runs are those of ``nestruct reproduce terrain``. What needs no learning is computed on the same
test maps, and so is how well the law of the generator reads single tiles.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from table_data import (
    RESULTS,
    Data,
    archived,
    configurations,
    entry,
    numeric,
    plain,
    runs_named,
    spread,
    summary,
)

from nestruct.data import Terrain
from nestruct.data.terrain import COSTS
from nestruct.reports import Run
from nestruct.training import read_recipe
from nestruct.training.recipes.plan import TRY, PlannedRun, read_plan
from nestruct.wording import count

METRICS = ("accuracy", "regret", "accuracy_tiles", "share_free", "loss")
FROM = {
    "two-stage": "costs",
    "SPO+": "costs",
    "Fenchel-Young": "paths",
}
LOSSES = {"hamming": "paths", "regret": "costs"}  # what a loss on paths is made of
READ = "two-stage"  # the one row whose predictions are meant to be costs
FIGURE = ("two-stage", "SPO+", "Identity", "I-MLE")
_SETTINGS = ("model.loss", "model.score_scale", "optimizer.lr")


def collect() -> Data:
    """Every row of the plan, those without runs too; without an archive none has any."""
    plan = read_plan("terrain")
    found: Data = {"title": plan.title, "archives": [], "protocol": plan.protocol}
    runs: dict[str, Run] = {}
    if (RESULTS / "terrain-runs.tar.xz").exists():
        with archived("terrain") as folders:
            runs = runs_named(folders)
        found["archives"] = ["terrain-runs.tar.xz"]
    tries = [_tried(name, run) for name, run in runs.items() if _is_try(name)]
    own = {name: run for name, run in runs.items() if not _is_try(name)}
    entries = {name: entry(run, METRICS, curve=["regret"]) for name, run in own.items()}
    for name, run in own.items():
        records = [record for split in run.records.values() for record in split]
        entries[name]["solved"] = max(record.get("solved") or 0 for record in records)
    rows: list[Data] = []
    for one in (one for one in plan.entries if not one.setting):
        title = _title(one)
        size, _, method = title.partition(", ")
        names = [name for name, run in own.items() if run.option("title") == title]
        row: Data = {"row": method, "column": _size(size), "name": one.name, "runs": names}
        if names:
            row |= {key: own[names[0]].option(key) for key in _SETTINGS}
            row |= summary([entries[name] for name in names], METRICS)
        rows.append(row)
    common = configurations(own) if own else {"options": {}, "configurations": {}}
    sizes = list(dict.fromkeys(row["column"] for row in rows))
    found["without learning"] = {size: _references(int(size.split()[0])) for size in sizes}
    return found | {"rows": rows, "tries": tries, **common, "runs": entries}


def main_table(data: Data) -> str:
    """Every method, the least regret first, and what needs no learning."""
    lines = []
    for size, references in data["without learning"].items():
        rows = [row for row in data["rows"] if row["column"] == size and row["runs"]]
        for row in sorted(rows, key=lambda row: row["regret"]["mean"]):
            lines.append([size, *_cells(data, row)])
        for name, values in references.items():
            cells = [_percent(values[key]) for key in ("accuracy", "regret")]
            tiles = _percent(values["tiles"]) if "tiles" in values else ""
            lines.append([size, f"no learning: {name}", "", *cells, tiles, "", "", ""])
    columns = ["tiles", "", "learns from", "optimal paths (seeds)", "regret", "tiles read", "free"]
    text = numeric([*columns, "solver calls", "seconds"], lines, text=3)
    left = [_label(row) for row in data["rows"] if not row["runs"]]
    return f"{text}\nNot run yet: {'; '.join(left)}.\n" if left else text


def search_table(data: Data) -> str:
    """The validation regret of every try; without any, what would be tried."""
    plan, lines = read_plan("terrain"), []
    regrets = {one["name"]: one["regret"] for one in data["tries"]}
    for one in (one for one in plan.entries if one.best_of):
        tried = [other for other in plan.entries if other.name in one.best_of]
        cells = [_said(other, regrets.get(other.name)) for other in tried]
        lines.append([_title(one).partition(", ")[2], *cells])
    return plain(["", "first try", "second", "third", "fourth"], lines)


def figure(data: Data) -> Any:
    """The first two validation maps: picture, best path, and paths that were found."""
    import matplotlib.pyplot as plt

    maps = Terrain(num_train=1, num_validation=2, num_test=1)
    batch = maps.splits()["validation"]
    named = {"the best path": batch["z"]} | maps.baselines(batch)
    named.pop("tiles read by their mean grey")
    named |= _found(data)
    figure, places = plt.subplots(
        2, 1 + len(named), figsize=(1.75 * (1 + len(named)), 4.2), layout="constrained"
    )
    for k, row in enumerate(places):
        row[0].imshow(batch["x"][k, 0].numpy(), cmap="gray")
        row[0].set_title("the picture" if k == 0 else "", fontsize=9)
        best = float((batch["z"][k] * batch["costs"][k]).sum())
        for axis, (name, z) in zip(row[1:], named.items(), strict=True):
            axis.imshow(batch["costs"][k].numpy(), cmap="YlOrBr", vmin=0, vmax=11)
            i, j = z[k].nonzero(as_tuple=True)
            axis.scatter(j.numpy(), i.numpy(), s=16, color="#0072B2")
            paid = float((z[k] * batch["costs"][k]).sum())
            more = "" if paid - best < 1e-4 else f", +{paid / best - 1:.0%}"
            axis.set_xlabel(f"{paid:.1f}{more}", fontsize=9)
            axis.set_title(name if k == 0 else "", fontsize=9)
        for axis in row:
            axis.set(xticks=[], yticks=[])
    return figure


def _found(data: Data) -> dict[str, torch.Tensor]:
    """The paths of the first seed of some methods, of the step that was best."""
    found: dict[str, torch.Tensor] = {}
    rows = {row["row"]: row for row in data["rows"] if row["runs"] and _is_first(data, row)}
    chosen = [rows[name] for name in FIGURE if name in rows]
    if not chosen:
        return found
    with archived("terrain") as folders:
        for row in chosen:
            text = (folders[row["runs"][0]] / "structures.jsonl").read_text(encoding="utf-8")
            frame = json.loads(text.splitlines()[-1])["map"]
            z = torch.zeros(2, 12, 12)
            for k in range(2):
                for i, j in frame[k]:
                    z[k, i, j] = 1
            found[row["row"]] = z
    return found


def _is_first(data: Data, row: Data) -> bool:
    return row["column"] == data["rows"][0]["column"]


def _cells(data: Data, row: Data) -> list[str]:
    runs = [data["runs"][name] for name in row["runs"]]
    paths, regret, tiles, free = (
        spread([run["test"][key] for run in runs], _percent, count=key == "accuracy")
        for key in METRICS[:4]
    )
    solved = fmean(run["solved"] for run in runs)
    learns = FROM.get(row["row"]) or LOSSES[row["model.loss"]]
    known = tiles if row["row"] == READ else ""
    calls = count(solved) if solved else "none"
    return [row["row"], learns, paths, regret, known, free, calls, f"{row['seconds']:.0f}"]


def _tried(name: str, run: Run) -> Data:
    regrets = [record["regret"] for record in run.validation]
    settings = {key: run.option(key) for key in _SETTINGS}
    return {"name": _last(name).rpartition("-s")[0], **settings, "regret": min(regrets)}


def _said(one: PlannedRun, regret: float | None) -> str:
    words = ", ".join(each.partition(".")[2].replace("=", " ") for each in one.setting)
    said = words.replace("score_scale", "scale").replace("loss ", "")
    return said if regret is None else f"{said}: {_percent(regret)}"


def _references(side: int) -> dict[str, Data]:
    """On test maps: the paths of `Terrain.baselines`, and the share of tiles the law reads."""
    maps = Terrain(height=side, width=side, num_train=1, num_validation=1)
    batch = maps.splits()["test"]
    best = (batch["z"] * batch["costs"]).sum((1, 2))
    found: dict[str, Data] = {}
    for name, z in maps.baselines(batch).items():
        regret = ((z - batch["z"]) * batch["costs"]).sum((1, 2))
        found[name] = {
            "accuracy": round(float((regret <= 1e-5 * best).double().mean()), 4),
            "regret": round(float(regret.sum() / best.sum()), 4),
        }
    read = torch.tensor(COSTS)[maps.chances(batch["x"]).argmax(-1)] == batch["costs"]
    found["tiles read by the law"]["tiles"] = round(float(read.double().mean()), 4)
    return found


def _title(one: PlannedRun) -> str:
    plan = read_plan("terrain")
    return str(read_recipe(one.recipe, plan.overrides(one, tiny=False))["title"])


def _size(task: str) -> str:
    """12 x 12 where a title names no size."""
    return task.removeprefix("Terrain paths").strip() or "12 x 12"


def _label(row: Data) -> str:
    return row["row"] if row["column"] == "12 x 12" else f"{row['row']} ({row['column']})"


def _last(name: str) -> str:
    return Path(name).name


def _is_try(name: str) -> bool:
    return _last(name).startswith(TRY)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
