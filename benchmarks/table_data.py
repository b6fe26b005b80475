"""What the published tables share: runs out of archives, the JSON files, Markdown."""

import hashlib
import json
import re
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nestruct.reports import Run, read_run
from nestruct.reports.archives import unpack_runs
from nestruct.wording import flatten

ROOT = Path(__file__).parent.parent
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
Data = dict[str, Any]
NOT_CONFIGURATION = ("seed", "device", "title", "recipe")


@contextmanager
def archived(*names: str) -> Iterator[dict[str, Path]]:
    """The run folders of archives in ``results``, unpacked for a while, by their names in them."""
    with TemporaryDirectory() as folder:
        for name in names:
            unpack_runs(RESULTS / f"{name}-runs.tar.xz", folder)
        found = sorted(config.parent for config in Path(folder).rglob("config.toml"))
        yield {path.relative_to(folder).as_posix(): path for path in found}


def read_json(name: str) -> Data:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def to_text(data: Data) -> str:
    """JSON with a line for each run, row and configuration, so that a change can be read."""
    lines = []
    for key, value in data.items():
        head = f" {json.dumps(key)}: "
        if isinstance(value, dict) and value:
            inside = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(head + "{\n" + ",\n".join(inside) + "\n }")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            inside = (f"  {json.dumps(v)}" for v in value)
            lines.append(head + "[\n" + ",\n".join(inside) + "\n ]")
        else:
            lines.append(head + json.dumps(value))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def configuration(run: Run) -> tuple[str, Data]:
    """A name made of what a run's options are, whatever its seed, and these options."""
    options = {k: v for k, v in flatten(run.config).items() if k not in NOT_CONFIGURATION}
    text = json.dumps(options, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12], options


def configurations(runs: Mapping[str, Run]) -> Data:
    """The options that all runs share, and by configuration those that they do not."""
    found = dict(sorted(configuration(run) for run in runs.values()))
    first = next(iter(found.values()))
    common = {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in found.values())
    }
    rest = {
        name: {k: v for k, v in options.items() if k not in common}
        for name, options in found.items()
    }
    return {"options": common, "configurations": rest}


def entry(run: Run, metrics: Sequence[str], *, curve: Sequence[str] = ()) -> Data:
    """What a JSON file says of a run: its test values, what it was made with, what it cost.

    Args:
        run: The run.
        metrics: What of the test data is kept.
        curve: What of the validation data is kept, for every evaluation.
    """
    records = [record for split in run.records.values() for record in split]
    environment, last = run.environment, max(records, key=lambda r: r.get("evaluations", 0))
    test = run.records.get("test", [{}])[-1]
    found = {
        "seed": run.config["seed"],
        "recipe": run.config.get("recipe"),
        "configuration": configuration(run)[0],
        # Seven digits, where NESTRUCT_COMMIT said all forty.
        "commit": re.sub(r"^([0-9a-f]{7})[0-9a-f]{33}", r"\1", environment["commit"] or "unknown"),
        "device": environment.get("device"),
        "started": environment.get("started"),
        "steps": run.last_step,
        "best_step": test.get("best_step"),
        "evaluations": last.get("evaluations"),
        "decoded": run.decoded(last),
        "seconds": max(r["timing"].get("seconds") or 0 for r in records),
        "test": {metric: test[metric] for metric in metrics if metric in test},
    }
    if curve:
        points = [r for r in run.validation if all(key in r for key in curve)]
        found["curve"] = {
            "step": [r["step"] for r in points],
            "evaluations": [r.get("evaluations") for r in points],
            "seconds": [r["timing"].get("seconds") for r in points],
            **{key: [r[key] for r in points] for key in curve},
        }
    return found


def summary(runs: Sequence[Data], metrics: Sequence[str]) -> Data:
    """Runs that differ in their seed alone: mean, deviation, seeds and what one of them cost."""
    found: Data = {"seeds": [run["seed"] for run in runs]}
    found["commits"] = sorted({run["commit"] for run in runs})
    for metric in metrics:
        values = [run["test"][metric] for run in runs]
        found[metric] = {"mean": statistics.fmean(values)}
        if len(values) > 1:
            found[metric]["deviation"] = statistics.stdev(values)
    for key in ("steps", "decoded", "seconds"):
        values = [run[key] for run in runs]
        found[key] = None if None in values else statistics.fmean(values)
    return found


def runs_named(folders: Mapping[str, Path]) -> dict[str, Run]:
    return {name: read_run(folder) for name, folder in folders.items()}


def published(name: str) -> Data:
    """What the paper prints, as reports have it: by row, column and metric."""
    file = next((ROOT / "src" / "nestruct" / "reports").rglob("published.toml"))
    return tomllib.loads(file.read_text(encoding="utf-8"))[name]


def row(*cells: object) -> str:
    return "|" + "|".join(f" {cell} " if cell != "" else " " for cell in cells) + "|"


def table(columns: Sequence[object], lines: Sequence[Sequence[object]], marks: str) -> str:
    """A table in Markdown; ``marks`` is what stands below its head."""
    return "\n".join([row(*columns), marks, *(row(*line) for line in lines)]) + "\n"


def plain(columns: Sequence[object], lines: Sequence[Sequence[object]]) -> str:
    return table(columns, lines, row(*["---"] * len(columns)))


def numeric(columns: Sequence[object], lines: Sequence[Sequence[object]], text: int = 1) -> str:
    """A table whose first columns are text and whose others are numbers."""
    marks = "|---" * text + "|---:" * (len(columns) - text) + "|"
    return table(columns, lines, marks)


def spread(values: Sequence[float], say: Callable[[float], str], *, count: bool = True) -> str:
    """Mean and standard deviation in words, and of how many."""
    text = say(statistics.fmean(values))
    if len(values) > 1 and statistics.stdev(values):
        text += f" ± {say(statistics.stdev(values))}"
    return f"{text} ({len(values)})" if count else text
