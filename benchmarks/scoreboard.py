"""The scoreboard: its JSON from run files, its tables, and the curves of its figure."""

from collections.abc import Callable, Mapping, Sequence

from table_data import RESULTS, Data, archived, configurations, entry, plain, runs_named, summary

from nestruct.reports.budgets import Curve, quality_table, target_table
from nestruct.reports.tables import Table, to_markdown
from nestruct.training import read_recipe
from nestruct.training.recipes.plan import TRY, read_plan

SPENT = ("decoded", "solved")


def collect() -> Data:
    """Every row of the plan, those without runs too; without an archive none has any."""
    found: Data = {
        "title": "Three tasks, the same search for every method, at most 45 seconds a run",
        "archives": [],
        "protocol": read_plan("scoreboard").protocol,
    }
    runs = {}
    if (RESULTS / "scoreboard-runs.tar.xz").exists():
        with archived("scoreboard") as folders:
            runs = {n: r for n, r in runs_named(folders).items() if not n.startswith(TRY)}
        found["archives"] = ["scoreboard-runs.tar.xz"]
    entries = {}
    for name, run in runs.items():
        metric = str(run.option("training.metric"))
        entries[name] = entry(run, [metric], curve=[metric, *SPENT])
        entries[name]["is"] = {"metric": metric, "maximize": run.option("training.maximize")}
    rows: list[Data] = []
    for title in titles():
        names = [name for name, run in runs.items() if run.option("title") == title]
        task, _, method = title.partition(", ")
        row: Data = {"row": method, "column": task, "runs": names}
        if names:
            metric = entries[names[0]]["is"]["metric"]
            row |= summary([entries[name] for name in names], [metric])
        rows.append(row)
    common = configurations(runs) if runs else {"options": {}, "configurations": {}}
    return found | {"rows": rows, **common, "runs": entries}


def titles() -> list[str]:
    """What the plan's rows are called: task, method."""
    plan = read_plan("scoreboard")
    own = [entry for entry in plan.entries if not entry.setting]
    return [read_recipe(e.recipe, plan.overrides(e, tiny=False))["title"] for e in own]


def tasks(data: Data) -> dict[str, dict[str, list[Curve]]]:
    """The curves of all runs, by task and method."""
    found: dict[str, dict[str, list[Curve]]] = {}
    for row in data["rows"]:
        if row["runs"]:
            curves = [_curve(data["runs"][name]) for name in row["runs"]]
            found.setdefault(row["column"], {})[row["row"]] = curves
    return found


def main_table(data: Data) -> str:
    """Quality at equal budgets, the winner of each column in bold."""
    return _table(data, quality_table)


def cost_table(data: Data) -> str:
    """Cost to target, and test data."""
    return _table(data, target_table)


def _table(data: Data, make: Callable[[Mapping[str, Mapping[str, Sequence[Curve]]]], Table]) -> str:
    curves = tasks(data)
    missing = [(row["row"], row["column"]) for row in data["rows"] if not row["runs"]]
    if not curves:
        return _nothing(data)
    text = to_markdown(make(curves)).partition("\n\n")[2]  # without its title
    if not missing:
        return text
    whole = dict.fromkeys(task for _, task in missing if task not in curves)
    rest = (f"{method} ({task})" for method, task in missing if task in curves)
    return f"{text}\nNot run yet: {'; '.join((*whole, *rest))}.\n"


def _nothing(data: Data) -> str:
    """Which methods there are for which task, where none was run."""
    columns = list(dict.fromkeys(row["column"] for row in data["rows"]))
    planned = {(row["row"], row["column"]) for row in data["rows"]}
    lines = [
        [method, *("not run" if (method, task) in planned else "" for task in columns)]
        for method in dict.fromkeys(row["row"] for row in data["rows"])
    ]
    return plain(["", *columns], lines)


def _curve(run: Data) -> Curve:
    metric, points = run["is"]["metric"], run["curve"]
    spent = {key: points[key] for key in (*SPENT, "seconds")}
    maximize = run["is"]["maximize"] is True
    return Curve(points[metric], spent, run["test"].get(metric), maximize)
