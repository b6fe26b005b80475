"""What curves there are: every metric of every run, thinned, and which charts they go to."""

from collections.abc import Sequence
from typing import Any

from nestruct.reports.groups import Group
from nestruct.reports.methods import FIRST, HIDDEN
from nestruct.reports.published import method_name, space_name
from nestruct.reports.runs import Record, Run, is_number, metric_names
from nestruct.reports.summary import metric_label, references, structure_noun

# Largest over smallest value from which on a chart starts with a logarithmic scale.
WIDE = 30.0
SHARES = {"f1", "uas", "las", "accuracy", "precision", "recall"}  # first words of such metrics
PARSING = ("uas", "nll")  # of the metrics of parsers, those that are compared


def run_curves(run: Run, steps: dict[str, set[int]], *, decoded: bool) -> dict[str, Any]:
    """Per split: the axes to draw against, and every metric.

    Args:
        run: The run.
        steps: Which steps of each split are kept; the last one always is.
        decoded: Whether evaluations are counted in examples decoded, not in minibatches.
    """
    curves = {}
    for split, records in run.records.items():
        if split == "test":
            continue
        kept = [r for r in records if r["step"] in steps[split] or r is records[-1]]
        axes = {
            "step": [record["step"] for record in kept],
            "evaluations": [
                run.decoded(record) if decoded else short(record.get("evaluations"))
                for record in kept
            ],
            "seconds": [short(record["timing"].get("seconds")) for record in kept],
        }
        names = [m for m in metric_names(records) if m not in HIDDEN]
        curves[split] = {"x": axes, "y": {m: [short(r.get(m)) for r in kept] for m in names}}
    return curves


def kept_steps(runs: Sequence[Run], limit: int) -> dict[str, set[int]]:
    """At most so many steps of each split, the same for all runs of a group."""
    every: dict[str, set[int]] = {}
    for run in runs:
        for split, records in run.records.items():
            every.setdefault(split, set()).update(record["step"] for record in records)
    kept = {}
    for split, steps in every.items():
        ordered = sorted(steps)
        kept[split] = {ordered[k] for k in thin(len(ordered), limit)}
    return kept


def charts(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Which curves are drawn: validation first, then the training loss, then how training went.

    Runs over several latent spaces get a chart for each: their numbers cannot be compared.
    """
    runs = [run for group in groups for run in group.runs]
    found = []
    splits = {split for run in runs for split in run.records} - {"test"}
    published = any("elbo" in record for run in runs for record in run.validation)
    parsers = any("uas" in record for run in runs for record in run.validation)
    spaces = dict.fromkeys(space_name(run) for run in runs)
    for split in sorted(splits, key=lambda name: (name == "train", name != "validation", name)):
        records = [record for run in runs for record in run.records.get(split, [])]
        metrics = metric_names(records)
        drawn = [m for m in metrics if m not in HIDDEN and not _is_spread(m, metrics)]
        if published:
            drawn.sort(key=lambda m: FIRST.index(m) if m in FIRST else len(FIRST))
        for metric in drawn:
            main = split != "train" or metric == "loss"
            if not main and len({record.get(metric) for record in records}) < 2:
                continue  # a flat line (a constant rate, no failure at all) says nothing
            main = main and not (published and metric not in FIRST)
            main = main and not (parsers and metric not in PARSING)
            for space in spaces if main else [None]:
                members = [
                    k
                    for k, group in enumerate(groups)
                    if space is None or space_name(group.runs[0]) == space
                ]
                label = f"{metric_label(metric, structure_noun(runs))} ({split})"
                several = main and len(spaces) > 1
                own = (run for k in members for run in groups[k].runs)
                values = [r.get(metric) for run in own for r in run.records.get(split, [])]
                found.append(
                    {
                        "split": split,
                        "metric": metric,
                        "label": f"{label}, {space}" if several else label,
                        "spread": f"{metric}_std" if f"{metric}_std" in metrics else None,
                        "references": [references(group.runs[0], metric) for group in groups],
                        "groups": members,
                        "main": main,
                        "note": _note(groups, members, metric),
                        **_scale(metric, list(filter(is_number, values))),
                    }
                )
    return found


def looks(groups: Sequence[Group]) -> list[int]:
    """A look (colour and dash) for each group: the same for one method in two latent spaces."""
    known: dict[tuple[str | None, int], int] = {}
    seen: dict[tuple[str | None, str | None], int] = {}
    found = []
    for group in groups:
        method, space = method_name(group.runs[0]), space_name(group.runs[0])
        nth = seen.get((method, space), 0)
        seen[method, space] = nth + 1
        found.append(known.setdefault((method, nth), len(known)))
    return found


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


def short(value: Any) -> float | None:
    """Five digits are more than a screen shows, and half the size of the page."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")


def _scale(metric: str, values: Sequence[Any]) -> dict[str, Any]:
    """Whether a chart starts logarithmic, and the sign of its values: an ELBO is negative.

    A share does not: one run near 0 would press all that matters, near 1, into one line.
    """
    sign = -1 if values and max(values) < 0 else 1
    sizes = [sign * value for value in values]
    wide = bool(sizes) and min(sizes) > 0 and max(sizes) > WIDE * min(sizes)
    return {"sign": sign, "log": wide and metric.partition("_")[0] not in SHARES}


def _is_spread(metric: str, metrics: Sequence[str]) -> bool:
    return metric.endswith("_std") and metric.removesuffix("_std") in metrics


def _note(groups: Sequence[Group], members: Sequence[int], metric: str) -> str:
    """A warning where lines of one chart measure different things."""
    if metric not in ("loss", "grad_norm") or len(members) < 2:
        return ""
    models: list[Record] = [groups[k].runs[0].config.get("model") or {} for k in members]
    if all(model == models[0] for model in models):
        return ""
    return "The models differ, and so may what their loss measures: compare shapes, not heights."
