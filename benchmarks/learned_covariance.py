"""SNES against NES on two structured tasks: the JSON from run files, and the table of it."""

from table_data import Data, archived, configurations, entry, numeric, runs_named, spread, summary

from nestruct.training import read_recipe
from nestruct.training.recipes.plan import TRY, read_plan

PLAN = "learned-covariance"
METRICS = ("loss", "loss_mode", "f1_map")
SETTING = ("optimizer.lr", "estimator.sigma")


def collect() -> Data:
    plan = read_plan(PLAN)
    with archived(PLAN) as folders:
        runs = {n: r for n, r in runs_named(folders).items() if not n.startswith(TRY)}
    entries = {name: entry(run, METRICS) for name, run in runs.items()}
    rows: list[Data] = []
    for planned in plan.entries:
        title = read_recipe(planned.recipe, plan.overrides(planned, tiny=False))["title"]
        names = [name for name, run in runs.items() if run.option("title") == title]
        if planned.setting or not names:
            continue
        own = [entries[name] for name in names]
        task, _, method = title.partition(", ")
        row: Data = {"row": method, "column": task, "runs": names}
        row |= {key: runs[names[0]].option(key) for key in SETTING}
        rows.append(row | summary(own, [name for name in METRICS if name in own[0]["test"]]))
    return {
        "title": plan.title,
        "archives": [f"{PLAN}-runs.tar.xz"],
        "protocol": plan.protocol,
        "rows": rows,
        **configurations(runs),
        "runs": entries,
    }


def main_table(data: Data) -> str:
    """ELBO of categories, loss and F1 of trees; and what the search found for each."""
    lines: dict[str, list[object]] = {}
    for task, metrics in (("Categories", ["loss_mode"]), ("Trees", ["loss", "f1_map"])):
        rows = {row["row"]: row for row in data["rows"] if row["column"] == task}
        best = min(rows.values(), key=lambda row: row[metrics[0]]["mean"])
        for method in dict.fromkeys(row["row"] for row in data["rows"]):
            line = lines.setdefault(method, [method])
            if method not in rows:
                line += [""] * (len(metrics) + 1)
                continue
            runs = [data["runs"][name]["test"] for name in rows[method]["runs"]]
            for metric in metrics:
                cell = spread([run[metric] for run in runs], _SAY[metric], count=False)
                is_best = rows[method] is best and metric == metrics[0]
                line.append(f"**{cell}**" if is_best else cell)
            line.append(", ".join(f"{rows[method][key]:g}" for key in SETTING))
    head = ["", "Categories: loss", "lr, sigma", "Trees: loss", "Trees: F1", "lr, sigma"]
    return numeric(head, list(lines.values()))


_SAY = {
    "loss_mode": lambda value: f"{value:.1f}",
    "loss": lambda value: f"{value:,.0f}",
    "f1_map": lambda value: f"{value:.3f}",
}
