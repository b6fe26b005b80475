"""What a page's script draws again when something is chosen: curves and structures, as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from nestruct.reports.curves import charts, kept_steps, looks, run_curves, short, thin
from nestruct.reports.groups import Group
from nestruct.reports.published import space_name
from nestruct.reports.runs import Record, Run
from nestruct.reports.summary import count_repeats
from nestruct.reports.trajectories import num_nodes

# Most points that a curve keeps, and frames that a run's structures keep: for one run, and for all
# runs together. With them 50 runs stay below a megabyte.
POINTS, ALL_POINTS = 400, 7000
FRAMES, ALL_FRAMES = 60, 600
# The same for frames that show the model itself, each 20 images: 16 kB where they have 784 pixels,
# and 1.4 MB for the page of 50 such runs.
ILLUSTRATIONS, ALL_ILLUSTRATIONS = 12, 48
SHOWN = 12  # groups of a latent space whose curves are drawn at first


def payload(groups: Sequence[Group], names: Sequence[str]) -> dict[str, Any]:
    """Everything the script needs.

    Args:
        groups: The runs.
        names: A name for each run, in order of the groups.
    """
    runs = [run for group in groups for run in group.runs]
    group_of = [k for k, group in enumerate(groups) for _ in group.runs]
    decoded = all(run.examples_per_evaluation for run in runs)
    scenes: dict[str, int] = {}
    limit = _share(POINTS, ALL_POINTS, len(runs))
    steps = [kept_steps(group.runs, limit) for group in groups]
    entries = [
        {
            "name": name,
            "group": k,
            "seed": None if run.seed is None else str(run.seed),
            "curves": run_curves(run, steps[k], decoded=decoded),
            "structures": _structures(run, scenes, len(runs)),
        }
        for name, run, k in zip(names, runs, group_of, strict=True)
    ]
    return {
        "groups": [
            {"label": group.label, "repeats": count_repeats(group), "look": look}
            for group, look in zip(groups, looks(groups), strict=True)
        ],
        "runs": entries,
        "scenes": [json.loads(text) for text in scenes],
        "charts": charts(groups),
        "view": _view(entries, groups, decoded),
    }


def _view(
    entries: Sequence[dict[str, Any]], groups: Sequence[Group], decoded: bool
) -> dict[str, Any]:
    """What curves are drawn against at first: methods are compared by what they cost."""
    counted = any(
        count
        for entry in entries
        for curve in entry["curves"].values()
        for count in curve["x"]["evaluations"]
    )
    evaluations = "decoder evaluations (one example each)" if decoded else "forward evaluations"
    compare = len(groups) > 1 and counted
    spaces: dict[str | None, list[int]] = {}
    for k, group in enumerate(groups):
        spaces.setdefault(space_name(group.runs[0]), []).append(k)
    return {
        "x": "evaluations" if compare else "step",
        "logX": compare,
        "shown": sorted(k for members in spaces.values() for k in members[:SHOWN]),
        "names": {"step": "step", "evaluations": evaluations, "seconds": "seconds"},
    }


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
        [[[short(x) for x in path[t]] for t in thin(len(path), 30)] for path in nodes]
        for nodes in drawing.get("paths") or []
    ]
    scene = {
        "structure": run.scene["structure"],
        "options": run.scene.get("options") or {},
        "nodes": num_nodes(run),
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
        "start": "start" if run.goes_on else "untrained",
        "illustrations": _illustrations([run.frames[k] for k in kept], kept.index(best), num_runs),
    }


def _illustrations(frames: list[Record], best: int, num_runs: int) -> list[Record]:
    """What the model showed of itself: first, best, last and between, or only at the best step."""
    shown = [k for k, frame in enumerate(frames) if frame.get("model")]
    if not shown:
        return []
    limit = min(ILLUSTRATIONS, ALL_ILLUSTRATIONS // num_runs)
    keep = shown.index(best) if best in shown else len(shown) - 1
    kept = thin(len(shown), limit, keep=keep) if limit > 2 else range(keep, len(shown))[:1]
    return [
        {"frame": shown[k]}
        | {name: frames[shown[k]]["model"].get(name) or [] for name in ("prototypes", "samples")}
        for k in kept
    ]


def _share(most: int, altogether: int, num_runs: int) -> int:
    return max(8, min(most, altogether // num_runs))
