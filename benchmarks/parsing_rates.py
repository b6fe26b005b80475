"""What adapting does at each learning rate, where nothing is selected.

    python benchmarks/parsing_rates.py [FOLDER]

UAS on the target's test sentences after the last epoch less that of source only, in points, mean
over seeds, for every learning rate whose runs are in FOLDER (results/parsing): Markdown.
"""

import json
import re
import sys
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
_NAME = re.compile(r"(?P<method>[a-z-]+)-lr(?P<rate>[0-9.]+e-[0-9]+)(-s[0-9]+)?")


def uas(run: Path, name: str) -> float:
    """Of the checkpoint ``best`` or ``last``, in percent, without punctuation."""
    counts = json.loads((run / "attachment.json").read_text(encoding="utf-8"))
    return 100 * sum(counts["models"][name]["scored_right"]) / sum(counts["scored"])


def shown(points: list[float]) -> str:
    """A difference and how many seeds it is of."""
    return f"{mean(points):+.1f} ({len(points)})".replace("+0.0", "0.0").replace("-0.0", "0.0")


def main(folder: Path) -> None:
    found: dict[tuple[str, float], dict[str, list[float]]] = {}
    for run in sorted(path.parent for path in folder.glob("*/*/attachment.json")):
        match = _NAME.fullmatch(run.name)
        if match is None:
            continue
        method = match["method"]
        crossing = method == "sparsemap" or method.endswith("non-projective")
        source = run.parent / ("parser-non-projective" if crossing else "parser")
        cell = found.setdefault((method, float(match["rate"])), {})
        target = run.parent.name.partition("-")[2]
        cell.setdefault(target, []).append(uas(run, "last") - uas(source, "best"))
    targets = sorted({target for cell in found.values() for target in cell})
    print("| method | learning rate | " + " | ".join(map(str.upper, targets)) + " |")
    print("|---|---|" + "---:|" * len(targets))
    for (method, rate), cell in sorted(found.items()):
        plain = method.removesuffix("-non-projective")
        name = _METHODS.get(plain, plain) + (", non-projective" if plain != method else "")
        values = [shown(cell[target]) if target in cell else "not run" for target in targets]
        number = f"{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")
        print(f"| {name} | {number} | " + " | ".join(values) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "results" / "parsing")
