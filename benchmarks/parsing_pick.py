"""The next round of Table 2's runs: chosen on the source's dev sentences, never on test data.

    python benchmarks/parsing_pick.py FOLDER [LIST] > next.txt
    bash benchmarks/runs.sh next.txt FOLDER

Reads the finished runs of LIST (parsing_runs.txt beside this file) in FOLDER. Names of runs that
differ in their learning rate alone, ``.../nes-lr1e-4``, are one search: the rate whose kept
parameters have the best UAS on the source's dev wins, the smaller one where they are equal. Printed
are, for each search that is complete, the winner's lines for seeds 1 and 2; and the lines of
parsing_ablations.txt, whose ``$lr`` becomes the winner's. What is printed and finished already is
left alone by runs.sh. What is not complete is said on standard error.
"""

import re
import sys
from pathlib import Path

from nestruct.reports import read_run

SEEDS = (1, 2)
HERE = Path(__file__).parent
_NAME = re.compile(r"(?P<search>\S+)-lr(?P<rate>[0-9.e-]+)")


def read_list(path: Path) -> list[list[str]]:
    """Lines as words: a name, then what `nestruct train` takes."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line.strip() and not line.startswith("#")]


def dev_score(folder: Path) -> float | None:
    """UAS on the source's dev of the parameters that a run kept; None where it is not finished."""
    if not (folder / "metrics.jsonl").is_file():
        return None
    run = read_run(folder)
    return run.value("best", "uas") if "test" in run.records else None


def winners(lines: list[list[str]], folder: Path) -> dict[str, tuple[str, list[str]]]:
    """For each complete search the best learning rate, and the line it has."""
    searches: dict[str, list[tuple[str, list[str]]]] = {}
    for line in lines:
        match = _NAME.fullmatch(line[0])
        if match:
            searches.setdefault(match["search"], []).append((match["rate"], line))
    found = {}
    for search, tried in searches.items():
        scores = [dev_score(folder / line[0]) for _, line in tried]
        known = [
            (score, -float(rate), rate, line)
            for score, (rate, line) in zip(scores, tried, strict=True)
            if score is not None
        ]
        if len(known) < len(tried):
            print(f"# {search}: {len(known)} of {len(tried)} rates finished", file=sys.stderr)
            continue
        _, _, rate, line = max(known, key=lambda entry: entry[:2])
        found[search] = rate, line
    return found


def next_round(folder: Path, runs: Path, ablations: Path) -> list[str]:
    """The lines to run next."""
    best = winners(read_list(runs), folder)
    lines = []
    for _, line in best.values():
        for seed in SEEDS:
            lines.append(" ".join([f"{line[0]}-s{seed}", *line[1:], "--seed", str(seed)]))
    for line in read_list(ablations):
        search = line[0].partition("+")[0]
        if search in best or "$lr" not in " ".join(line):
            rate = best[search][0] if search in best else ""
            lines.append(" ".join(line).replace("$lr", rate))
        else:
            print(f"# {line[0]}: no winner of {search} yet", file=sys.stderr)
    return lines


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    runs = Path(sys.argv[2]) if len(sys.argv) == 3 else HERE / "parsing_runs.txt"
    lines = next_round(Path(sys.argv[1]), runs, HERE / "parsing_ablations.txt")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
