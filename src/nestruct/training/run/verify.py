"""Whether the files of a run are those that its last checkpoint knows."""

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

from nestruct.errors import InputError
from nestruct.training.run.checkpoint import Checkpoint
from nestruct.training.run.folder import read_config
from nestruct.training.run.log import compare_lines
from nestruct.training.run.restore import is_free
from nestruct.training.run.state import LOGS
from nestruct.untrusted import MOST_LOG_BYTES, parse_json, parse_toml, read_file
from nestruct.wording import flatten, printable

log = logging.getLogger("nestruct")


def warn_if_changed(run: str | Path, found: Checkpoint) -> None:
    """Says which settings of a run were changed after it had been trained.

    Those that a longer training may change are none: the best checkpoint is older than they are.
    """
    changed = what_changed(Path(run), found.config, free=False)
    if changed:
        log.warning(
            "%s was changed after the checkpoint of step %d: %s. The model that was trained may "
            "give other results.",
            *(Path(run) / "config.toml", found.step, ", ".join(changed)),
        )


def what_changed(run: Path, saved: str | None, *, free: bool = True) -> list[str]:
    """Settings in a run's ``config.toml`` that are not those of its checkpoint.

    Args:
        run: The run folder.
        saved: The text of ``config.toml`` that the checkpoint holds; None if it holds none.
        free: Whether to tell of settings too that may differ between sessions.
    """
    if saved is None:
        return []
    before, after = flatten(saved_config(saved)), flatten(read_config(run))
    changed = [
        printable(f"{key} is {after.get(key, 'not there')}, was {before.get(key, 'not there')}")
        for key in {**before, **after}
        if (free or not is_free(key)) and before.get(key) != after.get(key)
    ]
    return changed[:5] + ([f"and {len(changed) - 5} others"] if len(changed) > 5 else [])


def saved_config(text: str) -> dict[str, Any]:
    """The configuration that a checkpoint holds."""
    try:
        return parse_toml(text)
    except ValueError:
        raise InputError(
            "The configuration in the checkpoint cannot be read: use another one."
        ) from None


def check_source(run: Path, init_from: str | Path) -> None:
    """Raises where a run began with the parameters of another one than is named now."""
    source = read_start(run).get("init_from")
    if source != os.path.relpath(init_from, run):
        other = printable(os.path.normpath(run / str(source)))
        whose = "its own" if source is None else f"those of {other}"
        raise InputError(
            f"{run} did not begin with the parameters of {init_from}, but with {whose}: start "
            "another run."
        )


def check_files(run: Path, state: dict[str, Any]) -> list[str]:
    """What is wrong with the configuration and the logs of a run, in sentences.

    Args:
        run: The run folder.
        state: What `nestruct.training.run.checkpoint.read_last` gave.
    """
    try:
        changed = what_changed(run, state.get("config"))
        wrong = [f"config.toml was changed: {', '.join(changed)}."] if changed else []
        return wrong + _check_logs(run, state["loop"])
    except (AttributeError, TypeError, ValueError) as error:
        return [f"The last checkpoint cannot be compared with the other files ({error})."]


def _check_logs(run: Path, loop: dict[str, Any]) -> list[str]:
    lines, digests = loop.get("lines") or {}, loop.get("digests") or {}
    ends = loop.get("whole_logs") or {}
    wrong = []
    for name in LOGS:
        try:
            content = read_file(run / name, MOST_LOG_BYTES)
        except (OSError, ValueError):
            content = b""
        sentence = compare_lines(name, content, lines.get(name, 0), digests.get(name))[1]
        if sentence is None and ends.get(name) not in (None, hashlib.sha256(content).hexdigest()):
            sentence = f"{name} was changed since the run ended."
        wrong += [] if sentence is None else [sentence]
    return wrong


def read_start(run: Path) -> dict[str, Any]:
    """What a run says of the parameters that it began with: their SHA-256, and whose they were."""
    try:
        start = parse_json(read_file(run / "environment.json"))["start"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return start if isinstance(start, dict) else {}
