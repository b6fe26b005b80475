"""Grid shortest paths beside PyEPO: the JSON from the study's lines, and the tables of the page.

    python benchmarks/grid_path.py FILE.jsonl    writes results/grid-path.json and its lines, packed

The lines are those of `grid_path_peers.py`, the steps those of `grid_path_step.py`. A library's
best row of a setting is the method with the lowest regret on validation data, so the comparison on
test data is not one of many tries. Least squares may be the best row of both.
"""

import json
import lzma
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from table_data import RESULTS, Data, numeric, plain, to_text

LINES = RESULTS / "grid-path-lines.jsonl.xz"
LIBRARIES = ("nestruct", "PyEPO")
Setting = tuple[int, float, int]  # examples, noise, degree


def collect() -> Data:
    """The chosen setting of each method, and its regret for each seed."""
    lines = [json.loads(line) for line in lzma.decompress(LINES.read_bytes()).splitlines()]
    rows = []
    for line in sorted(lines, key=lambda one: (one["num_train"], one["noise"], one["degree"])):
        best = min(line["settings"], key=lambda one: statistics.fmean(one["validation"]))
        row = {key: line[key] for key in ("num_train", "noise", "degree", "library", "method")}
        row |= {key: best[key] for key in ("scale", "lr")}
        row["validation"] = round(statistics.fmean(best["validation"]), 8)
        rows.append(row | {"test": best["test"], "cpu_seconds": line["cpu_seconds"]})
    return {
        "title": "Grid shortest paths: normalised regret, ours beside PyEPO",
        "protocol": "benchmarks/grid_path_peers.py",
        "lines": LINES.name,
        "commits": sorted({line["commit"] for line in lines}),
        "versions": {key: lines[0][key] for key in ("pyepo", "torch", "scikit-learn")},
        "seeds": lines[0]["seeds"],
        "rows": rows,
    }


def settings(data: Data) -> list[Setting]:
    return sorted({_setting(row) for row in data["rows"]})


def best(data: Data, setting: Setting, library: str) -> Data:
    """The row of a library that is best on validation data."""
    own = [r for r in data["rows"] if _setting(r) == setting and r["library"] in (library, "both")]
    return min(own, key=lambda row: row["validation"])


def gap(one: Data, other: Data) -> tuple[float, float]:
    """Mean and standard error over seeds of the difference of two rows on test data."""
    apart = [a - b for a, b in zip(one["test"], other["test"], strict=True)]
    return statistics.fmean(apart), statistics.stdev(apart) / len(apart) ** 0.5


def compared(data: Data) -> Iterator[tuple[Setting, Data, Data, float, float]]:
    """For each setting our best row, PyEPO's, their difference and its standard error."""
    for setting in settings(data):
        ours, theirs = (best(data, setting, library) for library in LIBRARIES)
        yield setting, ours, theirs, *gap(ours, theirs)


def summary(data: Data) -> dict[str, float]:
    """What the page opens with."""
    found = list(compared(data))
    ahead = sum(mean < 0 for *_, mean, _ in found)
    equal = sum(mean == 0 for *_, mean, _ in found)
    return {
        "settings": len(found),
        "ahead": ahead,
        "equal": equal,
        "behind": sum(mean > 0 for *_, mean, _ in found),
        "clearly ahead": sum(-mean > error for *_, mean, error in found),
        "clearly behind": sum(mean > error for *_, mean, error in found),
        "rank": 2 - (ahead + equal / 2) / len(found),
    }


def main_table(data: Data) -> str:
    """The best row of both libraries for each setting of the data; the lower of both in bold."""
    lines = []
    for setting, ours, theirs, mean, error in compared(data):
        cells = [f"{_percent(one)} {one['method']}" for one in (ours, theirs)]
        if mean:
            winner = mean > 0
            cells[winner] = f"**{cells[winner]}**"
        count, noise, degree = setting
        apart = f"{100 * mean:+.3f} ± {100 * error:.3f}" if mean or error else "0"
        lines.append([f"{count:,}", f"{noise:g}", degree, *cells, apart])
    told = summary(data)
    columns = ["examples", "noise", "degree", "ours", "PyEPO's", "difference"]
    return (
        plain(columns, lines)
        + f"\nMean rank of the two best rows: ours {told['rank']:.2f}, PyEPO's "
        f"{3 - told['rank']:.2f}. Of {told['settings']} settings ours is ahead in {told['ahead']} "
        f"(by more than one standard error in {told['clearly ahead']}), equal in {told['equal']}, "
        f"and behind in {told['behind']} (in {told['clearly behind']}).\n"
    )


def all_table(data: Data) -> str:
    """Every method in every setting, the lowest of each column in bold."""
    columns = settings(data)
    found = {(r["library"], r["method"], _setting(r)): r for r in data["rows"]}
    methods = list(dict.fromkeys(key[:2] for key in found))
    methods.sort(key=lambda one: ("both", *LIBRARIES).index(one[0]))
    lowest = {}
    for column in columns:
        known = [key for key in found if key[2] == column]
        lowest[column] = min(statistics.fmean(found[key]["test"]) for key in known)
    lines = []
    for library, method in methods:
        cells = []
        for column in columns:
            row = found.get((library, method, column))
            text = "" if row is None else _percent(row)
            is_best = row is not None and statistics.fmean(row["test"]) == lowest[column]
            cells.append(f"**{text}**" if is_best else text)
        lines.append([library, method, *cells])
    heads = [f"{count:,}; {noise:g}; {degree}" for count, noise, degree in columns]
    return numeric(["library", "method", *heads], lines, text=2)


def step_table(data: Data) -> str:
    """Milliseconds of one training step."""
    names = list(dict.fromkeys(name for times in data["ms"].values() for name in times))
    lines = [
        [method, *(f"{statistics.median(times[n]):.2f}" if n in times else "" for n in names)]
        for method, times in data["ms"].items()
    ]
    return numeric(["one step, ms", *names], lines)


def _setting(row: Data) -> Setting:
    return row["num_train"], row["noise"], row["degree"]


def _percent(row: Data) -> str:
    return f"{100 * statistics.fmean(row['test']):.3f}"


def brief(text: str) -> Data:
    """A line without what nothing is made of: each setting's mean, the chosen one's seeds."""
    line = json.loads(text)
    for setting in line["settings"]:
        setting["validation"] = [round(statistics.fmean(setting["validation"]), 8)]
    best = min(line["settings"], key=lambda one: one["validation"])
    return line | {
        "settings": [one if one is best else one | {"test": []} for one in line["settings"]]
    }


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    lines = [brief(text) for text in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    packed = "".join(json.dumps(line) + "\n" for line in lines).encode()
    LINES.write_bytes(lzma.compress(packed, preset=9))
    data = collect()
    (RESULTS / "grid-path.json").write_text(to_text(data), encoding="utf-8")
    print(main_table(data), all_table(data), sep="\n")


if __name__ == "__main__":
    main()
