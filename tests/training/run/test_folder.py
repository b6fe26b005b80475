"""A run folder: what is in it, and which folders become one."""

import json

import pytest
from fits import (
    HELD_OUT,
    train,
)

import nestruct
from nestruct.errors import NestructError


def test_what_a_run_folder_says(tmp_path):
    train(run=tmp_path, test=HELD_OUT)
    names = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert names == [
        "checkpoints",
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "structures.jsonl",
    ]
    checkpoint = sorted(path.name for path in (tmp_path / "checkpoints" / "best").iterdir())
    assert checkpoint == [
        "estimator.safetensors",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert (first["step"], first["split"]) == (0, "validation")
    assert (last["step"], last["split"]) == (12, "test")
    assert set(last["timing"]) == {"seconds"}


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    train(run=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(nestruct.InputError, match="already holds a run"):
        train(run=tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_other_things_does_not_become_a_run(tmp_path, resume):
    notes = tmp_path / "notes.txt"
    notes.touch()
    with pytest.raises(nestruct.InputError, match=r"other things.*notes\.txt.*say a new folder"):
        train(run=tmp_path, resume=resume)
    assert list(tmp_path.iterdir()) == [notes]
    notes.unlink()
    for name in (".lock", ".config.toml.writing", "environment.json", "train.log"):
        (tmp_path / name).touch()  # what a killed run and the shell may leave
    train(run=tmp_path, resume=resume)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NestructError, match=r"^Cannot write to .*: Not a directory"):
        train(run=tmp_path / "file" / "run")


def test_a_log_that_is_a_link_is_refused(tmp_path):
    train(run=tmp_path / "run", max_steps=2)
    outside = tmp_path / "outside"
    outside.write_text("precious\n" * 50)
    log = tmp_path / "run" / "metrics.jsonl"
    log.unlink()
    log.symlink_to(outside)
    with pytest.raises(NestructError, match="Cannot write"):
        train(run=tmp_path / "run", resume=True, max_steps=4)
    assert outside.read_text() == "precious\n" * 50
