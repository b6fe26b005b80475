"""Checkpoints that survive a kill: folders of safetensors plus JSON, swapped in by a rename.

A checkpoint is written whole under another name and synced; then the one before moves to
``NAME.previous`` and the new one takes its place. At every moment ``NAME`` or ``NAME.previous`` is
complete. ``state.json`` has the SHA-256 of its neighbours and of itself, so that a truncated or
edited checkpoint is refused by name.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch

from nestruct.errors import InputError, NestructError, first_line
from nestruct.files import (
    make_folder,
    move,
    remove_file,
    remove_folder,
    sync_folder,
    write_synced,
)
from nestruct.training.run.packing import pack, unpack
from nestruct.training.run.state import Progress
from nestruct.untrusted import memory, parse_json, read_file

FORMAT = 1
STATES = ("model", "optimizer", "estimator")
_LAST = ("last", "last.previous")


class CheckpointError(NestructError):
    """A checkpoint is missing, truncated, edited, or of another format."""


class OtherFormatError(CheckpointError):
    """A checkpoint was written by another version, which can read it."""


@dataclass
class Checkpoint:
    """Everything a run needs to go on as if it had not stopped.

    Args:
        model: The model's ``state_dict()``.
        optimizer: ``state_dict()`` of optimizer and scheduler.
        estimator: The estimator's ``state_dict()``.
        loop: The loop's own: step, best value, counters, thread count.
        config: The text of ``config.toml``; None in folders of version 0.1.
    """

    model: dict[str, Any]
    optimizer: dict[str, Any]
    estimator: dict[str, Any]
    loop: dict[str, Any]
    config: str | None = None

    @property
    def step(self) -> int:
        """Steps done."""
        return self.loop["step"]


def write_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Writes ``folder/name``; the one that was there becomes ``folder/name.previous``."""
    make_folder(folder)
    temporary, current, previous = folder / ".writing", folder / name, folder / f"{name}.previous"
    remove_folder(temporary)
    try:
        make_folder(temporary)
        trees, checksums = {}, {}
        for part in STATES:
            trees[part], content = _content(getattr(checkpoint, part), f"the {part}")
            checksums[part] = hashlib.sha256(content).hexdigest()
            write_synced(temporary / f"{part}.safetensors", content)
        state = {
            "format": FORMAT,
            "loop": pack(checkpoint.loop, "the loop")[0],
            "checksums": checksums,
            "config": checkpoint.config,
            **trees,
        }
        state["checksum"] = _checksum(state)
        write_synced(temporary / "state.json", json.dumps(state, indent=1).encode())
        sync_folder(temporary)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_folder(temporary)
        raise
    if current.exists():
        remove_folder(previous)
        move(current, previous)
    move(temporary, current)
    sync_folder(folder)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint.

    Raises:
        CheckpointError: It is not there, or not as it was written.
        InputError: It says what no training can have written.
    """
    state = _read_state(path)
    if not isinstance(state.get("config"), str | None):
        raise CheckpointError(f"{path / 'state.json'} is not the state of a checkpoint")
    parts = {}
    for part in STATES:
        file = path / f"{part}.safetensors"
        try:
            content = read_file(file, memory() // 2)  # once as it is, once as tensors
            if hashlib.sha256(content).hexdigest() != state["checksums"][part]:
                raise CheckpointError(f"{file} was truncated or edited (its checksum is wrong)")
            parts[part] = unpack(state[part], safetensors.torch.load(content))
        except CheckpointError:
            raise
        except Exception as error:  # whatever torch and safetensors make of foreign tensors
            raise CheckpointError(f"{file} cannot be read ({first_line(error)})") from None
        if not isinstance(parts[part], dict):
            raise CheckpointError(f"{file} does not hold the state of the {part}")
    return Checkpoint(**parts, loop=state["loop"], config=state.get("config"))


def checksum_of(state: dict[str, Any]) -> str:
    """The SHA-256 of a model's ``state_dict()``: that of a ``model.safetensors`` with it."""
    return hashlib.sha256(_content(state, "the model")[1]).hexdigest()


def read_last(folder: Path) -> dict[str, Any] | None:
    """What the last checkpoint in a folder says: ``loop`` of the training, ``config`` as text.

    Its tensors are not read. None where there is no checkpoint, or none that is as it was written.
    """
    for name in _LAST:
        try:
            return _read_state(folder / name)
        except CheckpointError:
            continue
    return None


def holds_no_step(folder: Path) -> bool:
    """True if a folder of checkpoints is not there, or has none but that of step 0."""
    if not folder.exists():
        return True
    if not folder.is_dir() or {p.name for p in folder.iterdir()} - {*_LAST, ".writing"}:
        return False
    for name in _LAST:
        try:
            if _read_state(folder / name)["loop"]["step"] > 0:
                return False
        except OtherFormatError:
            return False
        except CheckpointError:
            if name == "last" and (folder / name).exists():  # no kill leaves it so
                return False
    return True


def discard_damaged(path: Path) -> None:
    """Removes a checkpoint that is not as it was written."""
    if path.is_dir() and not path.is_symlink():
        try:
            read_checkpoint(path)
        except OtherFormatError:
            raise
        except NestructError:
            remove_folder(path)
    elif path.exists() or path.is_symlink():
        remove_file(path)


def first_good(folder: Path, names: list[str]) -> tuple[Checkpoint | None, list[str]]:
    """The first checkpoint of these that is as it was written, and what is wrong with the others.

    Those that are simply not there are passed over in silence. One of another version is not passed
    over: it would be overwritten.
    """
    refused: list[str] = []
    for name in names:
        for path in (folder / name, folder / f"{name}.previous"):
            if not path.is_dir():
                continue
            try:
                return read_checkpoint(path), refused
            except OtherFormatError:
                raise
            except CheckpointError as error:
                refused.append(str(error))
    return None, refused


def _read_state(path: Path) -> dict[str, Any]:
    file = path / "state.json"
    try:
        state = parse_json(read_file(file))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error})") from None
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(f"{file} is not the state of a checkpoint")
    if state["format"] != FORMAT:
        raise OtherFormatError(
            f"{file} has format {state['format']}, this nestruct reads format {FORMAT}: use the "
            "version that wrote it"
        )
    if state.get("checksum") != _checksum(state):
        raise CheckpointError(f"{file} was truncated or edited (its checksum is wrong)")
    try:
        state["loop"] = unpack(state["loop"], {})
        complete = state["loop"]["step"] >= 0 and set(state["checksums"]) == set(STATES)
    except (KeyError, TypeError, ValueError, AttributeError):
        complete = False
    if not complete:
        raise CheckpointError(f"{file} is not the state of a checkpoint")
    try:
        Progress.from_loop(state["loop"])
    except InputError as error:
        # No damage: the checksum is right, so the checkpoint before is no better.
        raise InputError(f"{file} cannot be used: {str(error).rstrip('.')}.") from None
    return state


def _content(state: dict[str, Any], owner: str) -> tuple[Any, bytes]:
    """A state as a JSON tree, and the content of the file of its tensors."""
    tree, tensors = pack(state, owner)
    return tree, safetensors.torch.save(tensors)


def _checksum(state: dict[str, Any]) -> str:
    rest = {key: value for key, value in state.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
