"""What adapting does at each learning rate, and with other settings, where nothing is selected.

    python benchmarks/parsing_rates.py [FOLDER]

UAS on the target's test sentences less that of source only, in points: Markdown, from the runs in
FOLDER (results/parsing). First after the last epoch, mean over seeds, for every learning rate; then
for seed 0 of the settings of parsing_ablations.txt, of the epoch that the source's dev keeps and,
after the slash, of the last one, beside the same with the table's own settings.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
_METHODS = {
    "dpp": "DPP",
    "nes": "NES",
    "score-nes": "ScoreNES",
    "sparsemap": "SparseMAP, non-projective",
    "structure-nes": "StructureNES",
}
_SETTINGS = {"trained": "decoder trained", "gibbs": "Gibbs KL", "public": "the authors' decoder"}
_NAME = re.compile(r"(?P<method>[a-z-]+)-lr(?P<rate>[0-9.]+e-[0-9]+)(-s[0-9]+)?")


def uas(run: Path, name: str) -> float:
    """Of the checkpoint ``best`` or ``last``, in percent, without punctuation."""
    counts = json.loads((run / "attachment.json").read_text(encoding="utf-8"))
    return 100 * sum(counts["models"][name]["scored_right"]) / sum(counts["scored"])


def shown(points: list[float]) -> str:
    """A difference and how many seeds it is of."""
    return f"{mean(points):+.1f} ({len(points)})".replace("+0.0", "0.0").replace("-0.0", "0.0")


def source_of(run: Path) -> Path:
    """The run of source only that a run is compared with."""
    method = run.name.partition("+")[0].partition("-lr")[0]
    crossing = method == "sparsemap" or method.endswith("non-projective")
    return run.parent / ("parser-non-projective" if crossing else "parser")


def title(method: str) -> str:
    """A method as the page calls it."""
    plain = method.removesuffix("-non-projective")
    return _METHODS.get(plain, plain) + (", non-projective" if plain != method else "")


def rates(folder: Path) -> None:
    found: dict[tuple[str, float], dict[str, list[float]]] = {}
    for run in sorted(path.parent for path in folder.glob("*/*/attachment.json")):
        match = _NAME.fullmatch(run.name)
        if match is None:
            continue
        method = match["method"]
        cell = found.setdefault((method, float(match["rate"])), {})
        target = run.parent.name.partition("-")[2]
        cell.setdefault(target, []).append(uas(run, "last") - uas(source_of(run), "best"))
    targets = sorted({target for cell in found.values() for target in cell})
    print("| method | learning rate | " + " | ".join(map(str.upper, targets)) + " |")
    print("|---|---|" + "---:|" * len(targets))
    for (method, rate), cell in sorted(found.items()):
        values = [shown(cell[target]) if target in cell else "not run" for target in targets]
        number = f"{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")
        print(f"| {title(method)} | {number} | " + " | ".join(values) + " |")


def settings(folder: Path) -> None:
    found: dict[str, dict[tuple[str, str], str]] = {}
    columns = set()
    for run in sorted(path.parent for path in folder.glob("*/*+*/attachment.json")):
        method, _, setting = run.name.partition("+")
        if setting not in _SETTINGS or method == "decoder":
            continue
        config = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
        rate = f"{config['optimizer']['lr']:.1e}".replace(".0e", "e").replace("e-0", "e-")
        base = run.parent / f"{method}-lr{rate}"
        target = run.parent.name.partition("-")[2]
        for name, place in ((setting, run), ("", base)):
            less = uas(source_of(run), "best")
            kept, last = (f"{uas(place, which) - less:+.1f}" for which in ("best", "last"))
            found.setdefault(method, {})[target, name] = f"{kept} / {last}"
            columns.add((target, name))
    names = {"": "as in the table"} | _SETTINGS
    order = sorted(columns, key=lambda column: (column[0], list(names).index(column[1])))
    print("| method | " + " | ".join(f"{t.upper()}: {names[name]}" for t, name in order) + " |")
    print("|---|" + "---:|" * len(order))
    for method, cells in sorted(found.items()):
        values = [cells.get(column, "not run").replace("+0.0", "0.0") for column in order]
        print(f"| {title(method)} | " + " | ".join(v.replace("-0.0", "0.0") for v in values) + " |")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "results" / "parsing"
    rates(where)
    print()
    settings(where)
