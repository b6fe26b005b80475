"""Revival of dead categories on Table 3's models: its JSON from run files, and the tables of it."""

import statistics
from typing import Any

from table3 import METRICS, PROTOCOL, SIZES, elbos, one, shown
from table_data import Data, archived, configurations, entry, plain, runs_named, summary

KINDS = {  # revival, late cosine
    "neither": (False, False),
    "revival and late cosine": (True, True),
    "revival": (True, False),
    "late cosine": (False, True),
}
RIVALS = {"Enumeration": "exact gradient", "Reinforce": "REINFORCE, 4 samples", "SST": "SST"}


def collect() -> Data:
    with archived("table3-revival") as folders:
        runs = runs_named(folders)
    entries: Data = {}
    for name, run in runs.items():
        option = run.option
        revived = (option("model.revival") or 0) > 0
        found = entry(run, METRICS, curve=())
        found["is"] = {
            "estimator": option("estimator.name"),
            "hidden_size": option("model.hidden_size"),
            "kind": [revived, option("scheduler.name") == "LateCosineLR"],
            "revival": option("model.revival"),
            "best_validation": min(r["loss"] for r in run.records["validation"]),
        }
        entries[name] = found
    rows = []
    for hidden, size in SIZES.items():
        for kind, flags in KINDS.items():
            for name in ("NES", *RIVALS):
                names = [n for n in entries if _is(entries[n], n, name, hidden, flags)]
                if names:
                    row: Data = {"row": size, "hidden_size": hidden, "column": kind}
                    row |= {"estimator": name, "runs": names}
                    rows.append(row | summary([entries[n] for n in names], METRICS))
    return {
        "title": "Table 3 with revival of dead categories, FashionMNIST, 300 epochs",
        "archives": ["table3-revival-runs.tar.xz"],
        "protocol": PROTOCOL,
        "rows": rows,
        **configurations(runs),
        "runs": entries,
    }


def _is(found: Data, name: str, method: str, hidden: int, flags: tuple[bool, bool]) -> bool:
    own, wanted = found["is"], (method, hidden, list(flags))
    return not _searched(name) and (own["estimator"], own["hidden_size"], own["kind"]) == wanted


def _searched(name: str) -> bool:
    return name.startswith("search-")


def main_table(data: Data, plain_runs: Data) -> str:
    """What revival and the schedule do, apart and together, beside the paper's row and ours."""
    lines = []
    for size in SIZES.values():
        own = [row for row in data["rows"] if (row["row"], row["estimator"]) == (size, "NES")]
        cells = {row["column"]: row["runs"] for row in own}
        before = next(
            row for row in plain_runs["rows"] if row["row"] == size and is_nes_of_paper(row)
        )
        both = cells.get("revival and late cosine", [])
        lines.append(
            [
                *(size, one(before["paper"]), shown(elbos(plain_runs, before["runs"]))),
                *(shown(elbos(data, both)), shown(elbos(data, both, "loss"))),
                *(shown(elbos(data, cells.get(kind, []))) for kind in ("revival", "late cosine")),
            ]
        )
    columns = ["parameters", "NES, paper", "NES", "NES + revival, late cosine", "its true ELBO"]
    return plain([*columns, "NES + revival", "NES, late cosine"], lines)


def is_nes_of_paper(row: Data) -> bool:
    return row["column"].startswith("NES") and "paper" in row


def rivals_table(data: Data, plain_runs: Data) -> str:
    """The same revival for methods that differentiate, at two sizes."""
    both = "revival and late cosine"
    lines = []
    for hidden in (32, 512):
        size = SIZES[hidden]
        cells = {
            (row["estimator"], row["column"]): row["runs"]
            for row in data["rows"]
            if row["row"] == size
        }
        for name, label in {**RIVALS, "NES": "NES"}.items():
            before = elbos(data, cells.get((name, "neither"), []))
            if not before:  # then it is Table 3's, if it was run
                own = [row for row in plain_runs["rows"] if row["row"] == size]
                wanted = (r for r in own if r["column"] == "SST" or is_nes_of_paper(r))
                found = (r["runs"] for r in wanted if r["column"].startswith(name))
                before = elbos(plain_runs, next(found, []))
            after = cells.get((name, both), [])
            values = (before, elbos(data, after), elbos(data, after, "loss"))
            lines.append([size, label, *map(shown, values)])
    columns = ["parameters", "method", "plain", "with revival and late cosine", "its true ELBO"]
    return plain(columns, lines)


def search_table(data: Data) -> str:
    """How often to revive: validation ELBO at 50K, by which it was chosen."""
    found: dict[Any, list[float]] = {}
    for name, run in data["runs"].items():
        if _searched(name):
            values = found.setdefault(run["is"]["revival"], [])
            values.append(-run["is"]["best_validation"])
    lines = [
        [f"every {steps // 390} epochs", shown(values), one(statistics.mean(values))]
        for steps, values in sorted(found.items())
    ]
    return plain(["revival", "validation, true ELBO; ± over seeds (how many)", "mean"], lines)
