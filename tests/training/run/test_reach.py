"""What a training writes must be the run folder's own: no link, pipe or device in its place."""

import os
import shutil

import pytest

from nestruct.errors import InputError
from nestruct.training.run.reach import check_reach


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    for name in ("checkpoints/last", "checkpoints/best", "tensorboard"):
        (folder / name).mkdir(parents=True)
    files = ("config.toml", "environment.json", "details.json", "metrics.jsonl", ".lock")
    for name in (*files, "structures.jsonl", "checkpoints/last/state.json", "tensorboard/events"):
        (folder / name).write_text("a")
    return folder


FILES = ("config.toml", "environment.json", "details.json", "metrics.jsonl", "structures.jsonl")
FOLDERS = ("checkpoints", "checkpoints/last", "checkpoints/best", "tensorboard")


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def test_a_run_folder_may_be_a_link_and_hold_other_things(run, tmp_path):
    check_reach(run)
    (tmp_path / "link").symlink_to(run)
    check_reach(tmp_path / "link")
    (run / "notes").symlink_to(tmp_path)  # nothing that a training writes
    (run / "checkpoints" / "last" / "state.json").unlink()
    (run / "checkpoints" / "last" / "state.json").symlink_to(tmp_path / "x")  # only read
    check_reach(run)
    check_reach(tmp_path / "nowhere")


@pytest.mark.parametrize("target", ["there", "nowhere", "itself", "pipe"])
@pytest.mark.parametrize("name", [*FILES, *FOLDERS, ".lock", ".x.1.writing", "tensorboard/events"])
def test_nothing_is_written_through_something_else(run, tmp_path, name, target):
    remove(run / name)
    if target == "pipe":
        os.mkfifo(run / name)
    else:
        (tmp_path / "there").mkdir()
        (run / name).symlink_to(run / name if target == "itself" else tmp_path / target)
    what = r"no (file|folder)" if target == "pipe" else "a link"
    with pytest.raises(InputError, match=rf"Cannot write to .*run: {name} is {what};"):
        check_reach(run)


@pytest.mark.parametrize("name", ["metrics.jsonl", "structures.jsonl", ".x.1.writing"])
def test_a_file_that_is_cut_or_grows_has_one_name(run, tmp_path, name):
    remove(run / name)
    (tmp_path / "mine").write_text("a")
    os.link(tmp_path / "mine", run / name)
    with pytest.raises(InputError, match=rf"{name} is a link"):
        check_reach(run)


def test_a_log_that_no_memory_holds_is_refused(run):
    os.truncate(run / "metrics.jsonl", 2**40)
    with pytest.raises(InputError, match=r"metrics\.jsonl is larger than 512 MB"):
        check_reach(run)
