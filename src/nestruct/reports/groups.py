"""Runs grouped into repeats of one configuration, and what each group is called."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from nestruct.reports.runs import Record, Run
from nestruct.wording import flatten

# What may differ between repeats of one configuration.
REPEAT_KEYS = {"seed", "device"}
# What a label need not say where something else differs: how often a run looked at itself, how the
# same numbers were computed, and what goes with the rest of the configuration.
_CODE = ("module", "version")  # of what is not ours
UNTOLD_KEYS = {
    *("training.log_interval", "training.eval_interval", "training.eval_batch_size"),
    *("training.checkpoint_seconds", "optimizer.fused"),
    *("estimator.graph", "estimator.chunk_size", "scheduler.T_max", "recipe"),
    *(
        f"code.{part}.{key}"
        for part in ("data", "structure", "model", "estimator")
        for key in _CODE
    ),
}
TITLED_KEYS = ("estimator.name", "model.structure")  # what titles of recipes are about
MOST_TOLD = 5  # differences in a label


@dataclass(frozen=True)
class Group:
    """Runs whose configurations differ in nothing but seed and device."""

    label: str
    runs: list[Run]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs of one configuration together, whatever their seeds and devices, in order of mention.

    A group is called by its own title, or recipe, or folder; where several share that name, what
    differs between them is added.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_identity(run), sort_keys=True, default=str), []).append(run)
    firsts = [members[0] for members in groups.values()]
    names = [own_title(run) or str(run.config.get("recipe") or run.path.name) for run in firsts]
    labels = []
    for name, run in zip(names, firsts, strict=True):
        twins = [other for n, other in zip(names, firsts, strict=True) if n == name]
        parts = differences(run, twins)
        # A name that all groups share tells nothing apart: what differs is enough then.
        labels.append(", ".join(parts if parts and len(set(names)) == 1 else [name, *parts]))
    return [Group(label, rs) for label, rs in zip(unlike(labels), groups.values(), strict=True)]


def own_title(run: Run) -> str:
    """A run's title, if it has one and that is true of it.

    With another estimator or structure than the recipe has, its title is not: these two then.
    """
    title = str(run.config.get("title") or "")
    recipe = _shipped(str(run.config.get("recipe")))
    if not title.startswith(recipe.get("title", title)):
        return title  # given to this run
    own, its = (flatten(config) for config in (run.config, recipe))
    if all(own.get(key) == its.get(key, own.get(key)) for key in TITLED_KEYS):
        return title
    return ", ".join(str(own[key]) for key in TITLED_KEYS if key in own)


def unlike(labels: Sequence[str]) -> list[str]:
    """Labels with a number where one has been before.

    Example:
        >>> unlike(["NES", "SST", "NES"])
        ['NES', 'SST', 'NES (2)']
    """
    found: list[str] = []
    for label in labels:
        again = sum(old == label or old.startswith(f"{label} (") for old in found)
        found.append(f"{label} ({again + 1})" if again else label)
    return found


def differences(run: Run, others: Sequence[Run]) -> list[str]:
    """What a label says of a run's configuration: the options that differ from those of others.

    An option is compared where all of them tell it. Only a run that differs in no such option is
    told by the options that others do not have.
    """
    config, twins = flatten(_identity(run)), [flatten(_identity(other)) for other in others]
    changed, alone = [], []
    for key, value in config.items():
        like = [twin for twin in twins if _comparable(key, twin, config)]
        if key == "training.max_steps" and _in_epochs(config):
            continue
        if any(key not in twin for twin in like):
            alone.append(key)
        elif any(twin[key] != value for twin in like):
            changed.append(key)
    changed = [key for key in changed if key not in UNTOLD_KEYS] or changed or alone
    changed.sort(key=lambda key: not key.endswith(".name"))
    told = dict.fromkeys(_part(key, config[key]) for key in changed)  # parts may share a module
    return list(told)[:MOST_TOLD]


@cache
def _shipped(recipe: str) -> Record:
    """The recipe of that name in this package; empty where it has none."""
    for file in (resources.files("nestruct") / "recipes").iterdir():
        if file.name == f"{recipe}.toml":
            return tomllib.loads(file.read_text(encoding="utf-8"))
    return {}


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
    if last == "version":
        text = text[:19]  # enough of a checksum
    return text if last in ("name", "structure") else f"{last} {text}"


def _identity(run: Run) -> Record:
    # A recipe's title is what it calls itself, which may be mended between two seeds.
    other = {"title"} if run.config.get("recipe") else set()
    return {k: v for k, v in run.config.items() if k not in REPEAT_KEYS | other}
