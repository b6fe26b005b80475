"""Table 2, dependency parsing: ``results/table2.json`` from run files, and the tables of it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from table_data import (
    Data,
    archived,
    configurations,
    entry,
    numeric,
    published,
    runs_named,
    spread,
    summary,
    table,
)

# What a run's name begins with: the table's method and trees.
METHODS = {
    "parser": ("source only", "projective"),
    "dpp": ("DPP", "projective"),
    "nes": ("NES", "projective"),
    "structure-nes": ("StructureNES", "projective"),
    "score-nes": ("ScoreNES", "projective"),
    "parser-non-projective": ("source only", "non-projective"),
    "sparsemap": ("SparseMAP", "non-projective"),
    "nes-non-projective": ("NES", "non-projective"),
    "structure-nes-non-projective": ("StructureNES", "non-projective"),
    "score-nes-non-projective": ("ScoreNES", "non-projective"),
}
SETTINGS = {"trained": "decoder trained", "gibbs": "Gibbs KL", "public": "the authors' decoder"}
METRICS = ("uas", "uas_all", "las")
_NAME = re.compile(r"(?P<method>[a-z-]+?)(-lr(?P<rate>[0-9.]+e-[0-9]+))?(-s[0-9]+)?")


def collect() -> Data:
    with archived("table2") as folders:
        runs = runs_named(folders)
        attached = {name: _attachment(folder) for name, folder in folders.items()}
    entries = {}
    for name, run in runs.items():
        entries[name] = entry(run, METRICS)
        # UAS on test data of the parameters that were kept, and of the last ones, in percent.
        entries[name] |= {"rate": run.config["optimizer"]["lr"], "attached": attached[name]}
        best = [r for r in run.validation if r["step"] == entries[name]["best_step"]]
        entries[name]["dev_uas"] = best[0].get("uas") if best else None
    return {
        "title": "Table 2: a parser adapted to a target treebank without its trees",
        "archives": ["table2-runs.tar.xz"],
        "protocol": (
            "UAS on the target's test sentences, without punctuation, at the epoch that was best "
            "on the source's dev sentences. Of three learning rates the one with the most seeds, "
            "then the best UAS on the source's dev, then the smallest. The decoder is frozen, and "
            "there is no KL term."
        ),
        "rows": _rows(entries),
        **configurations(runs),
        "runs": entries,
    }


def _attachment(folder: Path) -> Data | None:
    if not (folder / "attachment.json").is_file():
        return None
    found = json.loads((folder / "attachment.json").read_text(encoding="utf-8"))
    scored = sum(found["scored"])
    return {n: 100 * sum(m["scored_right"]) / scored for n, m in found["models"].items()}


def _rows(entries: Data) -> list[Data]:
    paper = {
        (row["method"], row.get("model", {}).get("structure")): row
        for row in published("table2")["rows"]
    }
    rows = []
    for stem, place in METHODS.items():
        for pair in pairs(entries):
            target = pair.partition("-")[2]
            names = _chosen(entries, pair, stem)
            found: Data = {"row": place[0], "trees": place[1], "column": target, "runs": names}
            if names:
                found |= summary([entries[name] for name in names], ["uas"])
                found["rate"] = entries[names[0]]["rate"]
            found["paper"] = paper.get(place, {}).get(target, {}).get("uas")
            rows.append(found)
    return rows


def pairs(entries: Data) -> list[str]:
    """Source and target, in order of the targets."""
    return sorted({n.partition("/")[0] for n in entries}, key=lambda pair: pair.partition("-")[2])


def _chosen(entries: Data, pair: str, stem: str) -> list[str]:
    """The runs of the learning rate that stands in the table; test data have no say in it."""
    rates: dict[float, list[str]] = {}
    for name, run in entries.items():
        match = _NAME.fullmatch(name.partition("/")[2])
        if name.startswith(f"{pair}/") and match and match["method"] == stem:
            rates.setdefault(run["rate"], []).append(name)

    def worth(rate: float) -> tuple[int, float, float]:
        names = rates[rate]
        return len(names), fmean(entries[name]["dev_uas"] for name in names), -rate

    return sorted(rates[max(rates, key=worth)], key=lambda n: entries[n]["seed"]) if rates else []


def title(stem: str) -> str:
    """A method as the tables of learning rates and settings call it."""
    method, trees = METHODS[stem]
    return method if trees == "projective" else f"{method}, {trees}"


def two(value: float) -> str:
    return f"{value:.2f}"


def main_table(data: Data) -> str:
    targets = [pair.partition("-")[2] for pair in pairs(data["runs"])]
    lines = []
    for method, trees in METHODS.values():
        cells = [c for c in data["rows"] if (c["row"], c["trees"]) == (method, trees)]
        line = [method, trees]
        for cell in cells:
            values = [100 * data["runs"][name]["test"]["uas"] for name in cell["runs"]]
            text = spread(values, two) if values else "not run"
            line.append(text + (f" [{cell['paper'][0]:.2f}]" if cell["paper"] else ""))
        lines.append(line)
    columns = ["", "trees", *map(str.upper, targets)]
    return table(columns, lines, "|---" * len(columns) + "|")


def _less(data: Data, name: str, which: str) -> float:
    """UAS less that of source only, in points."""
    pair, _, run = name.partition("/")
    stem = run.partition("+")[0].partition("-lr")[0]
    crossing = METHODS[stem][1] == "non-projective"
    source = f"{pair}/parser-non-projective" if crossing else f"{pair}/parser"
    runs = data["runs"]
    return runs[name]["attached"][which] - runs[source]["attached"]["best"]


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("+0.0", "0.0").replace("-0.0", "0.0")


def _rate(rate: float) -> str:
    return f"{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")


def rates_table(data: Data) -> str:
    """After the last epoch, where nothing is selected."""
    found: dict[tuple[str, float], dict[str, list[float]]] = {}
    for name, run in data["runs"].items():
        pair, _, last = name.partition("/")
        match = _NAME.fullmatch(last)
        if match and match["rate"] and run["attached"]:
            cell = found.setdefault((match["method"], float(match["rate"])), {})
            cell.setdefault(pair.partition("-")[2], []).append(_less(data, name, "last"))
    targets = [pair.partition("-")[2] for pair in pairs(data["runs"])]
    lines = []
    for (stem, rate), cell in sorted(found.items()):
        values = [
            f"{_signed(fmean(cell[t]))} ({len(cell[t])})" if t in cell else "not run"
            for t in targets
        ]
        lines.append([title(stem), _rate(rate), *values])
    return numeric(["method", "learning rate", *map(str.upper, targets)], lines, text=2)


def settings_table(data: Data) -> str:
    """Seed 0 with other settings: of the epoch that is kept, and of the last one."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for name, run in data["runs"].items():
        pair, _, last = name.partition("/")
        stem, _, setting = last.partition("+")
        if setting not in SETTINGS or stem == "decoder":
            continue
        target, base = pair.partition("-")[2], f"{pair}/{stem}-lr{_rate(run['rate'])}"
        for label, place in ((setting, name), ("", base)):
            kept, final = (_signed(_less(data, place, which)) for which in ("best", "last"))
            found.setdefault(stem, {})[target, label] = f"{kept} / {final}"
    names = {"": "as in the table"} | SETTINGS
    columns = sorted(
        {column for cells in found.values() for column in cells},
        key=lambda column: (column[0], list(names).index(column[1])),
    )
    lines = [
        [title(stem), *(cells.get(column, "not run") for column in columns)]
        for stem, cells in sorted(found.items())
    ]
    return numeric(["method", *(f"{t.upper()}: {names[n]}" for t, n in columns)], lines)


def relaxations_table(data: Data) -> str:
    """Milliseconds per sentence, forward and backward."""
    found = {(line["method"], line["words"]): line for line in data["rows"]}

    def ours(method: str, words: int) -> str:
        line = found.get((method, words))
        if line is None:
            return "not run"
        value = line["both_ms"]
        return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"

    def peer(method: str, words: int, name: str) -> str:
        value = found[method, words][f"published {name}"]["both_ms"]
        return f"{value:,.{0 if value >= 100 else 1 if value >= 1 else 2}f}"

    lines: list[Sequence[object]] = [
        [
            words,
            *(ours("dpp", words), ours("supar eisner marginals", words), ours("sparse map", words)),
            *(peer("dpp", words, "authors"), peer("sparse map", words, "lp-sparsemap")),
        ]
        for words in (22, 50, 250)
    ]
    columns = ["words", "DPP", "SuPar's Eisner, marginals", "SparseMAP"]
    columns += ["DPP, public code", "lp-sparsemap"]
    return table(columns, lines, "|---" * len(columns) + "|")
