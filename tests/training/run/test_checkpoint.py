"""Checkpoints: whole or refused, at whatever moment the writer dies."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from fits import train

from nestruct.training.run.checkpoint import (
    Checkpoint,
    CheckpointError,
    _checksum,
    discard_damaged,
    first_good,
    read_checkpoint,
    write_checkpoint,
)


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(
        model={"w": torch.full((3,), float(step)), "count": torch.tensor(step)},
        optimizer={"optimizer": {"state": {0: {"step": torch.tensor(1.0)}}}, "scheduler": None},
        estimator={"mode": "vmap"},
        loop={"step": step},
    )


def test_round_trip(tmp_path):
    write_checkpoint(tmp_path, "last", checkpoint(3))
    back = read_checkpoint(tmp_path / "last")
    assert back.step == 3
    assert torch.equal(back.model["w"], torch.full((3,), 3.0))
    assert back.optimizer["optimizer"]["state"][0]["step"] == 1
    assert back.estimator == {"mode": "vmap"}


def test_the_one_before_is_kept(tmp_path):
    for step in range(4):
        write_checkpoint(tmp_path, "last", checkpoint(step))
    assert read_checkpoint(tmp_path / "last").step == 3
    assert read_checkpoint(tmp_path / "last.previous").step == 2
    assert sorted(os.listdir(tmp_path)) == ["last", "last.previous"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("harm", ["truncate", "edit", "remove"])
def test_harm_is_named_and_the_one_before_used(tmp_path, name, harm):
    write_checkpoint(tmp_path, "last", checkpoint(1))
    write_checkpoint(tmp_path, "last", checkpoint(2))
    file = tmp_path / "last" / name
    content = bytearray(file.read_bytes())
    if harm == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif harm == "edit":
        content[-3] ^= 1
        file.write_bytes(content)
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(tmp_path / "last")
    found, refused = first_good(tmp_path, ["last"])
    assert found is not None
    assert found.step == 1
    assert name in refused[0]


def test_an_edit_of_the_state_that_is_still_json_is_seen(tmp_path):
    write_checkpoint(tmp_path, "last", checkpoint(1))
    file = tmp_path / "last" / "state.json"
    state = json.loads(file.read_text())
    state["loop"]["step"] = 100
    file.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="edited"):
        read_checkpoint(tmp_path / "last")


def test_another_format_is_refused(tmp_path):
    write_checkpoint(tmp_path, "last", checkpoint(1))
    file = tmp_path / "last" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="has format 99, this nestruct reads format 1"):
        read_checkpoint(tmp_path / "last")


def test_checkpoints_of_another_version_are_not_started_over(tmp_path):
    train(run=tmp_path, max_steps=3)
    for file in (tmp_path / "checkpoints").rglob("state.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match="has format 99"):
        train(run=tmp_path, max_steps=4, resume=True)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "change",
    [
        {"loop": None},
        {"loop": {"step": "three"}},
        {"loop": {"best": {"$float": "abc"}, "step": 1}},
        {"checksums": 3},
        {"checksums": {}},
        {"model": {"w": {"$tensor": "other"}}},
        {"model": {"w": {"$counter": 3}}},
    ],
)
def test_a_forged_state_with_a_right_checksum_is_refused(tmp_path, change):
    write_checkpoint(tmp_path, "last", checkpoint(1))
    file = tmp_path / "last" / "state.json"
    state = json.loads(file.read_text()) | change
    state["checksum"] = _checksum(state)
    file.write_text(json.dumps(state))
    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path / "last")


def test_a_file_in_the_place_of_a_checkpoint_is_no_hindrance(tmp_path):
    (tmp_path / "last").write_text("")
    discard_damaged(tmp_path / "last")
    write_checkpoint(tmp_path, "last", checkpoint(1))
    assert read_checkpoint(tmp_path / "last").step == 1


def test_nothing_there_is_no_error(tmp_path):
    assert first_good(tmp_path, ["last", "best"]) == (None, [])


# Forks a child for each moment: before the n-th file-system call the child kills itself.
DRIVER = """
    import os, shutil, signal, sys
    from pathlib import Path
    import torch
    from nestruct.training.run import checkpoint as c
    torch.set_num_threads(1)
    folder, place = Path(sys.argv[1]), 0

    def made(step):
        return c.Checkpoint({"w": torch.full((50,), float(step))}, {}, {}, {"step": step})

    while True:
        where = folder / str(place)
        where.mkdir()
        c.write_checkpoint(where, "last", made(1))
        c.write_checkpoint(where, "last", made(2))
        child = os.fork()
        if child == 0:
            left = place
            def deadly(call):
                def wrapped(*args, **kwargs):
                    global left
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left -= 1
                    return call(*args, **kwargs)
                return wrapped
            for name in ("replace", "fsync", "mkdir", "unlink", "rmdir", "open"):
                setattr(os, name, deadly(getattr(os, name)))
            c.write_checkpoint(where, "last", made(3))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found, refused = c.first_good(where, ["last"])
        assert found is not None and found.step in (2, 3), (place, found, refused)
        assert (found.model["w"] == found.step).all()
        c.write_checkpoint(where, "last", made(4))  # and the next one is written as if nothing was
        assert c.read_checkpoint(where / "last").step == 4
        print(place, found.step, len(refused))
        if status == 0:
            break
        place += 1
"""


def test_killed_before_every_file_system_call_of_a_write(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert answer.returncode == 0, answer.stderr
    rows = [line.split() for line in answer.stdout.splitlines()]
    assert len(rows) > 12  # it was killed at many places,
    assert {row[1] for row in rows} == {"2", "3"}  # before and after the new one counted
    assert Path(tmp_path / rows[-1][0] / "last").is_dir()
