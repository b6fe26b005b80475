"""ListOps: its JSON from run files, and the table of it.

Runs are in two folders of the archive: ``listops``, those of ``nestruct reproduce listops``, and
``listops-small``, short lists on a CPU (docs/listops.md has the commands).
"""

from typing import Any

from table_data import Data, archived, configurations, entry, numeric, runs_named, spread, summary

METRICS = ("accuracy", "edge_precision", "edge_recall", "loss")
SIZES = {"listops": "10 to 50 tokens", "listops-small": "10 to 16 tokens"}
ROWS = {
    "true-tree": "the true tree given",
    "structure-nes": "StructureNES",
    "sst": "SST",
    "nes": "NES",
    "no-tree": "an LSTM, no tree",
}


def collect() -> Data:
    with archived("listops") as folders:
        runs = runs_named(folders)
    entries: dict[str, Any] = {}
    untrained: dict[str, Any] = {}
    unlearnt: dict[str, Any] = {}
    for name, run in runs.items():
        entries[name] = entry(run, METRICS, curve=["accuracy"])
        first = run.validation[0]
        size = name.partition("/")[0]
        if "edge_precision" in first:
            untrained[size] = {metric: first[metric] for metric in METRICS}
        references = (run.scene or {}).get("references") or {}
        unlearnt[size] = unlearnt.get(size, {}) | {k: v["f1"] for k, v in references.items()}
    rows = []
    for size, said in SIZES.items():
        for stem, label in ROWS.items():
            names = [name for name in entries if name.startswith(f"{size}/{stem}-s")]
            if names:
                members = [entries[name] for name in names]
                own = [m for m in METRICS if m in members[0]["test"]]
                rows.append({"size": said, "row": label, "runs": names, **summary(members, own)})
    return {
        "title": "ListOps: the value of nested lists, over a latent tree of their tokens",
        "archives": ["listops-runs.tar.xz"],
        "protocol": "Test accuracy with the most likely tree, and precision of its arcs, at the "
        "step that was best on validation accuracy. F1 of trees that need no learning, and the "
        "untrained model: validation data.",
        "untrained": {SIZES[size]: found for size, found in untrained.items()},
        "no learning": {SIZES[size]: found for size, found in unlearnt.items()},
        "rows": rows,
        **configurations(runs),
        "runs": entries,
    }


def main_table(data: Data) -> str:
    """Accuracy and precision of every method, and of what needs no learning."""
    lines = []
    for size in SIZES.values():
        for row in (row for row in data["rows"] if row["size"] == size):
            runs = [data["runs"][name] for name in row["runs"]]
            accuracy = spread([run["test"]["accuracy"] for run in runs], _percent)
            precision = [run["test"].get("edge_precision") for run in runs]
            arcs = "" if None in precision else spread(precision, _percent, count=False)
            minutes = f"{row['seconds'] / 60:.1f}"
            lines.append([row["row"], size, accuracy, arcs, f"{row['steps']:,.0f}", minutes])
        for name, value in data["no learning"].get(size, {}).items():
            lines.append([f"no learning: {name}", size, "", _percent(value), "", ""])
    columns = ["", "expressions", "accuracy (seeds)", "edge precision", "steps", "minutes"]
    return numeric(columns, lines, text=2)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
