"""Runs side by side: what counts as done, and what a run that is continued is told."""

import json
import sys
import tomllib

import pytest
from toys import run_command as run

from nestruct.cli.queue import Job
from nestruct.training.loop import Loop

QUICK = ["data.num_train=64", "data.num_validation=32", "data.num_test=32", "model.hidden_size=4"]
QUICK += ["estimator.population_size=4", "training.batch_size=8"]


@pytest.mark.parametrize("tested", [False, True], ids=["in the test", "after it"])
def test_a_run_that_was_killed_in_its_test_is_not_done(tmp_path, monkeypatch, tested):
    """The checkpoint that says how the run ended comes after the test's line in the log."""
    record = Loop._record

    def stop(loop, split, values, **more):
        if split != "test" or tested:
            record(loop, split, values, **more)
        if split == "test":
            raise KeyboardInterrupt

    job = Job(folder=tmp_path / "run", words=[])
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_record", stop)
        words = ["train", "graph-layout-tiny", *QUICK, "--max-steps", 2]
        assert run(*words, "--run", job.folder) == 130
    assert not job.is_done
    assert run("train", "--resume", job.folder) == 0
    assert job.is_done
    lines = (job.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["split"] for line in lines].count("test") == 1
    assert Job(folder=job.folder, words=[], max_steps=2).is_done
    assert not Job(folder=job.folder, words=[], max_steps=3).is_done


def test_a_run_that_is_continued_is_told_the_device(tmp_path):
    job = Job(folder=tmp_path / "run", words=["a"], max_steps=3, device="cuda:1")
    start = [sys.executable, "-m", "nestruct", "train"]
    assert job.command == [*start, "a", "--run", str(job.folder)]
    job.folder.mkdir()
    (job.folder / "config.toml").touch()
    continued = [*start, "--resume", str(job.folder)]
    assert job.command == [*continued, "--max-steps", "3", "--device", "cuda:1"]


@pytest.mark.parametrize(
    ("named", "trust", "told"),
    [
        ("own:A", True, True),
        ("own:A", {"own:A", "NES"}, True),  # typed when the sweep was started
        ("evil:B", {"own:A", "NES"}, False),  # somebody else has changed the folder
        ("own:A", False, False),
        ("NES", {"NES"}, False),
    ],
)
def test_a_run_that_is_continued_may_import_what_the_sweep_was_told(tmp_path, named, trust, told):
    job = Job(folder=tmp_path, words=["a", "estimator.name=own:A"], trust=trust)
    assert ("--trust" in job.command) == (trust is True)  # a new run has the words themselves
    (tmp_path / "config.toml").write_text(f'[estimator]\nname = "{named}"\n')
    assert ("--trust" in job.command) == told


def test_a_sweep_goes_on_where_it_is_told(tmp_path):
    words = ["graph-layout-tiny", *QUICK, "--max-steps", 1]
    folder = tmp_path / "seed=0"
    assert run("train", *words, "seed=0", "--run", folder, "--device", "cpu") == 0
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('"cpu"', '"cuda:9"'))  # a machine that is gone
    words = ["sweep", "graph-layout-tiny", "seed=0", "--run", tmp_path, "--max-steps", 2]
    assert run(*words, "--device", "cpu") == 0
    found = tomllib.loads(config.read_text())
    assert (found["device"], found["training"]["max_steps"]) == ("cpu", 2)
