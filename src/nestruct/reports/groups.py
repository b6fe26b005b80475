"""Runs grouped into repeats of one configuration, and what each group is called."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nestruct.reports.runs import Record, Run

# What may differ between repeats of one configuration.
REPEAT_KEYS = {"seed", "device", "run", "run_dir"}
# What a label need not say: how often a run looked at itself.
UNTOLD_KEYS = {
    f"training.{key}"
    for key in ("log_interval", "eval_interval", "eval_batch_size", "checkpoint_seconds")
}

MOST_TOLD = 5  # differences in a label


@dataclass(frozen=True)
class Group:
    """Runs whose configurations differ in nothing but seed and device."""

    label: str
    runs: list[Run]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs of one configuration together, whatever their seeds and devices, in order of mention.

    A group is called by its title, or recipe, or folder; where several share that name, what
    differs between them is added.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_identity(run), sort_keys=True, default=str), []).append(run)
    firsts = [members[0] for members in groups.values()]
    names = [
        str(run.config.get("title") or run.config.get("recipe") or run.path.name) for run in firsts
    ]
    labels: list[str] = []
    for name, run in zip(names, firsts, strict=True):
        twins = [other for n, other in zip(names, firsts, strict=True) if n == name]
        parts = differences(run, twins)
        # A name that all groups share tells nothing apart: what differs is enough then.
        label = ", ".join(parts if parts and len(set(names)) == 1 else [name, *parts])
        again = sum(old == label or old.startswith(f"{label} (") for old in labels)
        labels.append(f"{label} ({again + 1})" if again else label)
    return [Group(label, rs) for label, rs in zip(labels, groups.values(), strict=True)]


def differences(run: Run, others: Sequence[Run]) -> list[str]:
    """What a label says of a run's configuration: the options that differ from those of others."""
    config, twins = flatten(_identity(run)), [flatten(_identity(other)) for other in others]
    changed = [
        key
        for key in config
        if key not in UNTOLD_KEYS
        and not (key == "training.max_steps" and _in_epochs(config))
        and any(t.get(key) != config[key] for t in twins if _comparable(key, t, config))
    ]
    changed.sort(key=lambda key: not key.endswith(".name"))
    return [_part(key, config[key]) for key in changed[:MOST_TOLD]]


def flatten(table: Record, prefix: str = "") -> Record:
    """Nested tables as one, the keys joined with dots.

    Example:
        >>> flatten({"seed": 1, "model": {"depth": 2}})
        {'seed': 1, 'model.depth': 2}
    """
    flat: Record = {}
    for key, value in table.items():
        flat |= (
            flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def _comparable(key: str, one: Record, other: Record) -> bool:
    """Whether an option means the same in both: those of different estimators, say, do not."""
    name = f"{key.partition('.')[0]}.name"
    return key == name or one.get(name) == other.get(name)


def _in_epochs(config: Record) -> bool:
    """Whether epochs say how long a run trains; steps then follow from its data."""
    return isinstance(config.get("training.max_epochs"), int)


def _part(key: str, value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    last = key.rpartition(".")[2]
    return text if last in ("name", "structure") else f"{last} {text}"


def _identity(run: Run) -> Record:
    # A recipe's title is what it calls itself, which may be mended between two seeds.
    other = {"title"} if run.config.get("recipe") else set()
    return {k: v for k, v in run.config.items() if k not in REPEAT_KEYS | other}
