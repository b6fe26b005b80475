"""Real processes, really killed: what is left goes on to the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from forked import Command
from rank_faults import ranks_of
from safetensors.numpy import load_file

from nestruct.training.run import read_checkpoint

RECIPE = """
title = "For the kill test"
[data]
name = "graph-layout"
num_nodes = 4
num_times = 4
num_train = 64
num_validation = 32
num_test = 32
[model]
name = "relational"
hidden_size = 4
num_rollout_steps = 3
variance = 0.01
[estimator]
name = "NES"
sigma = 0.1
population_size = 8
mode = "vmap"
[optimizer]
name = "Adam"
lr = 0.01
[scheduler]
name = "CosineAnnealingLR"
[training]
max_steps = 50
batch_size = 16
log_interval = 1
eval_interval = 5
checkpoint_seconds = 0
"""
# One thread: the test shares its two cores with others.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def finish(*words: object, said: Path, **options: Any) -> Command:
    """A command that has ended."""
    command = Command(*words, said=said, **options)
    command.wait()
    return command


def wait_for(run: Path, lines: int, process: subprocess.Popen | Command) -> None:
    """Until the process has logged so many lines."""
    log = run / "metrics.jsonl"
    while process.poll() is None and (
        not log.exists() or len(log.read_bytes().splitlines()) < lines
    ):
        time.sleep(0.002)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "kill.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def whole(recipe) -> Path:
    """A run that nothing disturbed."""
    run = recipe.parent / "whole"
    answer = finish("train", recipe, "--run", run, said=recipe.parent / "said")
    assert answer.poll() == 0, answer.errors
    return run


def assert_same(one: Path, two: Path) -> None:
    for name in ("last", "best"):
        for part in ("model", "optimizer", "estimator"):
            files = [run / "checkpoints" / name / f"{part}.safetensors" for run in (one, two)]
            assert files[0].read_bytes() == files[1].read_bytes(), (name, part)
    logs = []
    for run in (one, two):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        logs.append([{k: v for k, v in line.items() if k != "timing"} for line in lines])
    assert logs[0] == logs[1]
    assert (one / "structures.jsonl").read_bytes() == (two / "structures.jsonl").read_bytes()
    assert (one / "config.toml").read_bytes() == (two / "config.toml").read_bytes()


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("kills", "cases"),
    [(9, ["SNES", "starts", "init from"]), pytest.param(320, [], marks=pytest.mark.slow)],
)
def test_killed_at_any_moment_every_kind_of_run_is_the_same(kills, cases):
    """In forked children; `kills.py` says which runs there are, and at what moments they die."""
    answer = subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "kills.py", str(kills), *cases],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    runs = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [run for run in runs if run["different"] is not None] == []
    moments = [kill for run in runs for kill in run["kills"]]
    assert len(moments) >= kills
    if not cases:
        for place in ("before it was a run", "of step 0", "of step 3", "writing", "first step"):
            assert sum(place in moment for moment in moments) > 5, place
        assert {run["case"] for run in runs} >= {"NES", "starts", "init from", "revival"}
        assert max(len(run["kills"]) for run in runs) == 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments_the_run_is_the_same(recipe, whole, tmp_path, seed):
    """With a checkpoint every step most of the time is spent writing: kills hit writes too."""
    draw = random.Random(seed)
    run, said, kills = tmp_path / "run", tmp_path / "said", 0
    for _ in range(3):
        words = ["--resume", run] if (run / "config.toml").exists() else [recipe, "--run", run]
        process = Command("train", *words, said=said)
        before = read_lines(run)
        wait_for(run, before + draw.randrange(1, 15), process)
        time.sleep(draw.random() * 0.03)
        kills += process.poll() is None
        process.send(signal.SIGKILL)
        process.wait()
    assert kills == 3
    answer = finish("train", "--resume", run, said=said)
    assert answer.poll() == 0, answer.errors
    assert "Continuing at step" in answer.output
    assert_same(whole, run)


def read_lines(run: Path) -> int:
    log = run / "metrics.jsonl"
    return len(log.read_bytes().splitlines()) if log.exists() else 0


def test_killed_before_anything_was_saved(recipe, whole, tmp_path):
    run, said = tmp_path / "run", tmp_path / "said"
    process = Command("train", recipe, "--run", run, said=said)
    while not (run / "config.toml").exists():
        time.sleep(0.001)
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert finish("train", "--resume", run, said=said).poll() == 0
    assert_same(whole, run)


def test_ctrl_c_saves_and_says_how_to_resume(recipe, whole, tmp_path):
    run, said = tmp_path / "run", tmp_path / "said"
    process = Command("train", recipe, "--run", run, said=said)
    wait_for(run, 10, process)
    process.send(signal.SIGINT)
    assert process.wait() == 130
    assert f"nestruct train --resume {run}" in " ".join(process.output.split())
    step = read_checkpoint(run / "checkpoints" / "last").step
    assert f"Stopped at step {step}" in process.output
    assert finish("train", "--resume", run, said=said).poll() == 0
    assert_same(whole, run)


@pytest.mark.slow  # run/test_lock.py has two in one process
def test_a_second_trainer_is_refused_while_the_first_runs(recipe, tmp_path):
    run = tmp_path / "run"
    words = ["train", recipe, "--run", run, "training.max_steps=100000"]
    process = Command(*words, said=tmp_path / "first")
    try:
        wait_for(run, 3, process)
        answer = finish("train", "--resume", run, said=tmp_path / "second")
        assert process.poll() is None
    finally:
        process.send(signal.SIGKILL)
        process.wait()
    assert answer.poll() == 1
    assert answer.errors.strip().endswith("wait for it, stop it, or choose another folder.")
    assert "in use by another trainer" in answer.errors


def test_a_full_disk_ends_with_one_sentence_and_the_last_checkpoint_is_intact(
    recipe, whole, tmp_path
):
    """The limit on the size of a file stands in for a full disk: the log grows into it."""
    run, said = tmp_path / "run", tmp_path / "said"
    files = (whole / "checkpoints").rglob("*.*")
    size = max(file.stat().st_size for file in files if file.is_file()) + 500
    assert size < (whole / "metrics.jsonl").stat().st_size
    answer = finish("train", recipe, "--run", run, said=said, file_size=size)
    assert answer.poll() == 1
    assert answer.errors.startswith(f"nestruct: Cannot write to {run}: File too large")
    assert len(answer.errors.splitlines()) == 1
    step = read_checkpoint(run / "checkpoints" / "last").step
    assert f"The checkpoint of step {step} is intact" in answer.errors
    assert 0 < step < 50
    assert not list(run.rglob(".*.writing")) + list(run.rglob(".writing"))
    assert finish("train", "--resume", run, said=said).poll() == 0
    assert_same(whole, run)


def torchrun(recipe: Path, run: Path, *options: str, **more) -> subprocess.Popen:
    """Two processes begin or continue a run; their output is in a file beside it."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words += [*options, "-m", "nestruct", "train", str(recipe), "--run-dir", str(run), "--continue"]
    with Path(f"{run}.out").open("ab") as out:
        return subprocess.Popen(words, env=ENVIRONMENT, stdout=out, stderr=out, **more)


@pytest.fixture(scope="module")
def shared(recipe) -> Path:
    """A run of two processes that nothing disturbed."""
    run = recipe.parent / "shared"
    assert torchrun(recipe, run).wait(240) == 0, Path(f"{run}.out").read_text()[-3000:]
    return run


def test_two_processes_train_the_same_run_and_one_writes(whole, shared):
    assert Path(f"{shared}.out").read_text().count("Finished after 50 steps") == 1
    ours, theirs = (load_file(r / "checkpoints/last/model.safetensors") for r in (shared, whole))
    for name in theirs:
        assert abs(ours[name] - theirs[name]).max() < 1e-4, name
    ours_lines, their_lines = (
        [json.loads(line) for line in (r / "metrics.jsonl").read_text().splitlines()]
        for r in (shared, whole)
    )
    assert len(ours_lines) == len(their_lines)
    for a, b in zip(ours_lines, their_lines, strict=True):
        assert (a["step"], a["split"]) == (b["step"], b["split"])
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)
    assert json.loads((shared / "environment.json").read_text())["processes"] == 2


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds ranks in /proc")
def test_torchrun_restarts_a_run_whose_rank_was_killed(recipe, shared, tmp_path):
    """`rank_faults.py` has the other faults."""
    run = tmp_path / "run"
    agent = torchrun(recipe, run, "--max-restarts=1")
    wait_for(run, 10, agent)
    os.kill(ranks_of(agent)[1], signal.SIGKILL)
    assert agent.wait(240) == 0
    out = Path(f"{run}.out").read_text()
    assert out.count("nestruct: Another process of this run ended, so this one stops") == 1
    assert out.count("Continuing at step") == 1
    assert "Traceback" not in out
    assert_same(shared, run)
