"""Runs side by side: what counts as done, and what a run that is continued is told."""

import json
import sys
import tomllib

import pytest
from toys import run_command as run

from nestruct.cli.queue import Job, run_jobs
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


def tried(folder, lr, loss, *, maximize=False):
    """A run that ended, and was best on validation data with this loss; unfinished if None."""
    folder.mkdir()
    config = f"[training]\nmax_steps = 4\nmetric = 'loss'\nmaximize = {str(maximize).lower()}\n"
    (folder / "config.toml").write_text(config)
    lines = [{"step": step, "split": "validation", "loss": loss} for step in (0, 4)]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines[: 1 if loss is None else 2])
    )
    return Job(folder=folder, words=["a", lr], setting=[lr])


def test_the_best_setting_that_was_tried_is_taken(tmp_path):
    losses = {"lr=1": 3.0, "lr=2": 2.0, "lr=3": None, "lr=4": float("nan")}
    tries = [tried(tmp_path / lr, lr, loss) for lr, loss in losses.items()]
    job = Job(folder=tmp_path / "run", words=["a"], best_of=tries)
    assert job.command[-4:] == ["a", "lr=2", "--run", str(job.folder)]
    folder = tmp_path / "gains"
    folder.mkdir()
    gains = [tried(folder / lr, lr, v, maximize=True) for lr, v in losses.items()]
    assert Job(folder=tmp_path / "run", words=[], best_of=gains).chosen() == ["lr=1"]


class Copying(Job):
    """A run that another program makes, or fails to."""

    @property
    def command(self):
        return ["cp", "-r", *self.words, str(self.folder)] if self.words else ["false"]


def test_what_waits_for_tries_is_left_out_where_all_fail(tmp_path):
    done = tried(tmp_path / "done", "lr=1", 3.0).folder
    good = Copying(folder=tmp_path / "good", words=[str(done)], setting=["lr=1"])
    bad = Copying(folder=tmp_path / "bad", words=[], setting=["lr=2"])
    last = Copying(folder=tmp_path / "last", words=[str(done)], best_of=[bad, good])
    lost = Copying(folder=tmp_path / "lost", words=[str(done)], best_of=[bad])
    said: list[str] = []
    ended = run_jobs([last, lost, bad, good], 1, tell=said.append)
    assert (ended.failed, ended.stopped) == (2, False)
    assert [line.partition(":")[0] for line in said] == [
        str(job.folder) for job in (bad, lost, good, last)
    ]
    assert f"{lost.folder}: left out, for {bad.folder} failed" in said
    assert last.chosen() == ["lr=1"]
    assert not lost.folder.exists()


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
