"""ListOps: its JSON from run files, and the table of it.

Runs are those of ``nestruct reproduce listops``, and of ``listops-small``, short lists on a CPU.
"""

from typing import Any

from table_data import Data, archived, configurations, entry, numeric, runs_named, spread, summary

METRICS = ("accuracy", "edge_precision", "edge_recall", "loss")
SIZES = {50: "10 to 50 tokens", 16: "10 to 16 tokens"}
ROWS = {
    "true-tree": "the true tree given",
    "sst": "SST",
    "structure-nes": "StructureNES",
    "structure-nes-gibbs": "StructureNES, exact covariance",
    "nes": "NES",
    "no-tree": "an LSTM, no tree",
}


def collect() -> Data:
    with archived("listops") as folders:
        runs = runs_named(folders)
    entries: dict[str, Any] = {}
    sizes: dict[str, str] = {}
    untrained: dict[str, Any] = {}
    unlearnt: dict[str, Any] = {}
    for name, run in runs.items():
        entries[name] = entry(run, METRICS, curve=["accuracy"])
        first = run.validation[0]
        size = SIZES[run.option("data.max_length")]
        sizes[name] = size
        if "edge_precision" in first:
            untrained[size] = {metric: first[metric] for metric in METRICS}
        references = (run.scene or {}).get("references") or {}
        unlearnt[size] = unlearnt.get(size, {}) | {k: v["f1"] for k, v in references.items()}
    rows = []
    for size in SIZES.values():
        for stem, label in ROWS.items():
            names = [
                name
                for name in entries
                if sizes[name] == size and name.rpartition("/")[2].rpartition("-s")[0] == stem
            ]
            if names:
                members = [entries[name] for name in names]
                own = [m for m in METRICS if m in members[0]["test"]]
                rows.append({"size": size, "row": label, "runs": names, **summary(members, own)})
    return {
        "title": "ListOps: the value of nested lists, over a latent tree of their tokens",
        "archives": ["listops-runs.tar.xz"],
        "protocol": "Test accuracy with the most likely tree, and precision of its arcs, at the "
        "step that was best on validation accuracy. F1 of trees that need no learning, and the "
        "untrained model: validation data.",
        "untrained": untrained,
        "no learning": unlearnt,
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
        untrained = data["untrained"].get(size)
        if untrained:
            cells = [_percent(untrained[key]) for key in ("accuracy", "edge_precision")]
            lines.append(["no learning: the model as it starts", size, *cells, "0", ""])
        for name, value in data["no learning"].get(size, {}).items():
            lines.append([f"no learning: {name}", size, "", _percent(value), "", ""])
    columns = ["", "expressions", "accuracy (seeds)", "edge precision and recall"]
    text = numeric([*columns, "steps", "minutes"], lines, text=2)
    for size in SIZES.values():
        left = not_run(data, size)
        if left:
            text += f"\nNot run yet with {size}: {_every(left)}.\n"
    return text


def _every(left: list[str]) -> str:
    return "anything" if len(left) == len(ROWS) else "; ".join(left)


def not_run(data: Data, size: str) -> list[str]:
    """The rows of a size that no run is of."""
    done = {row["row"] for row in data["rows"] if row["size"] == size}
    return [label for label in ROWS.values() if label not in done]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
