"""Any number of runs as one HTML page: no network, no library, opens from disk.

Python decides what is said (groups, means, sentences, what is thinned) and embeds it as JSON;
``assets/page.js`` only draws it. The page asks the browser to refuse everything that is not in it.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from nestruct.errors import InputError
from nestruct.files import write_whole
from nestruct.reports.runs import (
    REPEAT_KEYS,
    Group,
    Record,
    Run,
    flatten,
    group_runs,
    is_number,
    metric_names,
    read_run,
)
from nestruct.reports.summary import (
    cost_table,
    count_repeats,
    metric_label,
    references,
    results_table,
    sentence,
    structure_noun,
)

# What is no one else's: shown with the run, not in the table of environments.
ORIGIN_KEYS = ("command", "started")
# Most points that a curve keeps, and frames that a run's structures keep: for one run, and for all
# runs together. With them 50 runs stay below a megabyte.
POINTS, ALL_POINTS = 400, 7000
FRAMES, ALL_FRAMES = 60, 600
# The same for frames that show the model itself, each 20 images: 16 kB where they have 784 pixels,
# and 1.4 MB for the page of 50 such runs.
ILLUSTRATIONS, ALL_ILLUSTRATIONS = 12, 48


def write_page(
    run_dirs: Iterable[str | Path], path: str | Path, *, title: str | None = None
) -> None:
    """Writes one self-contained HTML page about the runs.

    Args:
        run_dirs: Run folders; one named twice counts once. Runs that differ in nothing but seed
            and device are shown as one group.
        path: The file to write; replaced only when the new page is complete.
        title: The heading; by default the title that all runs share, if they share one.

    Raises:
        InputError: A folder cannot be read as a run, or the page cannot be written there.
    """
    path = Path(path)
    folders = dict.fromkeys(Path(folder).resolve() for folder in run_dirs)
    if not folders:
        raise InputError("No run folder was given; name at least one.")
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(
            f"{path} cannot be written: name a file in a folder that exists ({path.parent})."
        )
    groups = group_runs([read_run(folder) for folder in folders])
    names = {str(group.runs[0].config.get("title") or group.label) for group in groups}
    title = title or (names.pop() if len(names) == 1 else f"{len(groups)} groups of runs")
    page = _document(_payload(groups, title), title)
    try:
        write_whole(path, page.encode())
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror}); choose a folder you may write to."
        raise InputError(message) from error


def _document(payload: dict[str, Any], title: str) -> str:
    script = _asset("page.js")
    fields = {
        "title": html.escape(title),
        "style": _asset("page.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        # Inside a script element only "<" can end it; JSON may write it as an escape.
        "data": json.dumps(payload, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("nestruct.reports") / "assets" / name).read_text(encoding="utf-8")


def _payload(groups: list[Group], title: str) -> dict[str, Any]:
    runs = [run for group in groups for run in group.runs]
    names = _names(runs)
    group_of = [k for k, group in enumerate(groups) for _ in group.runs]
    scenes: dict[str, int] = {}
    entries = [
        {
            "name": name,
            "group": k,
            "seed": None if run.seed is None else str(run.seed),
            "state": run.state,
            "toml": _origin(run) + run.config_text,
            "curves": _curves(run, _share(POINTS, ALL_POINTS, len(runs))),
            "structures": _structures(run, scenes, len(runs)),
        }
        for name, run, k in zip(names, runs, group_of, strict=True)
    ]
    environments: dict[str, list[str]] = {}
    for name, run in zip(names, runs, strict=True):
        same = {key: value for key, value in run.environment.items() if key not in ORIGIN_KEYS}
        environments.setdefault(json.dumps(same), []).append(name)
    return {
        "title": title,
        "generated": f"{datetime.now():%d %B %Y, %H:%M}".lstrip("0"),
        "groups": [
            {"label": group.label, "sentence": sentence(group), "repeats": count_repeats(group)}
            for group in groups
        ],
        "runs": entries,
        "scenes": [json.loads(text) for text in scenes],
        "charts": _charts(groups),
        "results": results_table(groups),
        "cost": cost_table(groups, names),
        "configuration": _matrix({group.label: _config(group) for group in groups}),
        "environment": _matrix({", ".join(n): json.loads(e) for e, n in environments.items()}),
    }


def _curves(run: Run, limit: int) -> dict[str, Any]:
    """Per split: the axes to draw against, and every metric, thinned together."""
    curves = {}
    for split, records in run.records.items():
        if split == "test":
            continue
        kept = [records[k] for k in thin(len(records), limit)]
        axes = {
            "step": [record["step"] for record in kept],
            "evaluations": [_short(record.get("evaluations")) for record in kept],
            "seconds": [_short(record["timing"].get("seconds")) for record in kept],
        }
        metrics = {m: [_short(r.get(m)) for r in kept] for m in metric_names(records)}
        curves[split] = {"x": axes, "y": metrics}
    return curves


def _charts(groups: list[Group]) -> list[dict[str, Any]]:
    """Which curves are drawn: validation first, then the training loss, then how training went."""
    runs = [run for group in groups for run in group.runs]
    charts = []
    splits = {split for run in runs for split in run.records} - {"test"}
    for split in sorted(splits, key=lambda name: (name == "train", name != "validation", name)):
        records = [record for run in runs for record in run.records.get(split, [])]
        metrics = metric_names(records)
        for metric in metrics:
            if metric.removesuffix("_std") in metrics and metric.endswith("_std"):
                continue
            main = split != "train" or metric == "loss"
            if not main and len({record.get(metric) for record in records}) < 2:
                continue  # a flat line (a constant rate, no failure at all) says nothing
            charts.append(
                {
                    "split": split,
                    "metric": metric,
                    "label": f"{metric_label(metric, structure_noun(runs))} ({split})",
                    "spread": f"{metric}_std" if f"{metric}_std" in metrics else None,
                    "references": [references(group.runs[0], metric) for group in groups],
                    "main": main,
                }
            )
    return charts


def _config(group: Group) -> dict[str, Any]:
    """The configuration of a group, with all seeds and devices that its runs had."""
    config = dict(group.runs[0].config)
    for key in REPEAT_KEYS & set(config):
        config[key] = ", ".join(dict.fromkeys(str(run.config.get(key)) for run in group.runs))
    return config


def _matrix(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Keys against columns, with a mark where a key is not the same everywhere."""
    flat = [flatten(table) for table in tables.values()]
    values = {
        key: [
            v if isinstance(v := table.get(key, ""), str) else json.dumps(v, default=str)
            for table in flat
        ]
        for key in dict.fromkeys(key for table in flat for key in table)
    }
    rows = [{"key": k, "values": v, "differs": len(set(v)) > 1} for k, v in values.items()]
    return {"columns": list(tables), "rows": rows}


def _structures(run: Run, scenes: dict[str, int], num_runs: int) -> dict[str, Any] | None:
    """The structures a run found over time; runs on the same data share one scene."""
    if run.scene is None or not run.frames:
        return None
    true = run.scene.get("true")
    examples = min(12 if num_runs <= 10 else 6, len(true) if true else 12)
    drawing = dict(run.scene.get("drawing") or {})
    for name in drawing:
        drawing[name] = drawing[name][:examples]
    drawing["paths"] = [
        [[[_short(x) for x in path[t]] for t in thin(len(path), 30)] for path in nodes]
        for nodes in drawing.get("paths") or []
    ]
    scene = {
        "structure": run.scene["structure"],
        "options": run.scene.get("options") or {},
        "true": true[:examples] if true else None,
        "drawing": drawing,
    }
    index = scenes.setdefault(json.dumps(scene), len(scenes))
    steps = [frame["step"] for frame in run.frames]
    best = steps.index(run.best_step) if run.best_step in steps else len(steps) - 1
    kept = thin(len(steps), _share(FRAMES, ALL_FRAMES, num_runs), keep=best)
    return {
        "scene": index,
        "steps": [steps[k] for k in kept],
        "maps": [run.frames[k]["map"][:examples] for k in kept],
        "learned": kept.index(best),
        "illustrations": _illustrations([run.frames[k] for k in kept], kept.index(best), num_runs),
    }


def _illustrations(frames: list[Record], best: int, num_runs: int) -> list[Record]:
    """What the model showed of itself: first, best, last and between, or only at the best step."""
    shown = [k for k, frame in enumerate(frames) if frame.get("model")]
    limit = min(ILLUSTRATIONS, ALL_ILLUSTRATIONS // num_runs)
    keep = shown.index(best) if best in shown else len(shown) - 1
    kept = thin(len(shown), limit, keep=keep) if limit > 2 else range(keep, len(shown))[:1]
    return [
        {"frame": shown[k]}
        | {name: frames[shown[k]]["model"].get(name) or [] for name in ("prototypes", "samples")}
        for k in kept
    ]


def thin(length: int, limit: int, *, keep: int = 0) -> list[int]:
    """At most ``limit`` positions, evenly spaced: the first, the last, and one that must be kept.

    Example:
        >>> thin(9, 3), thin(9, 4, keep=7), thin(2, 3)
        ([0, 4, 8], [0, 4, 7, 8], [0, 1])
    """
    if length <= limit:
        return list(range(length))
    spaced = limit - (keep not in (0, length - 1))
    return sorted({round(k * (length - 1) / (spaced - 1)) for k in range(spaced)} | {keep})


def _origin(run: Run) -> str:
    """How and when a run was started, as comments above its configuration."""
    lines = [f"# {key}: {run.environment[key]}" for key in ORIGIN_KEYS if key in run.environment]
    return "".join(f"{line}\n" for line in lines)


def _names(runs: list[Run]) -> list[str]:
    """Folder names, with as many parents as it takes to tell them apart."""
    for depth in range(1, 9):
        names = ["/".join(run.path.parts[-depth:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]


def _share(most: int, altogether: int, num_runs: int) -> int:
    return max(8, min(most, altogether // num_runs))


def _short(value: Any) -> float | None:
    """Five digits are more than a screen shows, and half the size of the page."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")
