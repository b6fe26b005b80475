"""Trainings that are killed again and again, in children of an interpreter that has all loaded.

    python tests/kills.py NUMBER_OF_KILLS [CASE ...]

A child gets a real SIGKILL: before one of its calls of the file system, or at any moment from
outside. What it left is continued as a person would, until a session is not killed; then its files
are compared with those of a run that nothing disturbed. Each line of output is one run, as JSON.
"""

import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
import torch

from nestruct.cli import _run as run_verb

LAYOUT = {
    "data": {
        "name": "graph-layout",
        "num_nodes": 4,
        "num_times": 4,
        "num_train": 32,
        "num_validation": 16,
        "num_test": 16,
    },
    "model": {"name": "relational", "hidden_size": 4, "num_rollout_steps": 3, "variance": 0.01},
}
PATTERNS = {
    "data": {"name": "patterns"},
    "model": {"name": "categorical", "hidden_size": 4, "revival": 2},
}
NES = {"name": "NES", "sigma": 0.1, "population_size": 6, "mode": "vmap"}
SNES = {**NES, "name": "SNES"}
CASES: dict[str, dict[str, Any]] = {
    "NES": {"estimator": NES, "scheduler": {"name": "CosineAnnealingLR"}},
    "SNES": {"estimator": SNES},
    "StructureNES": {"estimator": {"name": "StructureNES"}},
    "NVIL": {"estimator": {"name": "NVIL"}},
    "Reinforce ema": {"estimator": {"name": "Reinforce", "baseline": "ema", "num_samples": 1}},
    "ScoreNES plateau": {
        "estimator": {"name": "ScoreNES"},
        "scheduler": {"name": "ReduceLROnPlateau", "patience": 0, "threshold": 1.0},
    },
    "starts": {"estimator": NES, "training": {"num_starts": 2, "start_steps": 2}},
    "init from": {"estimator": {"name": "StructureNES"}},
    "init from SNES": {"estimator": SNES},
    "revival": {"estimator": {"name": "SST"}, **PATTERNS},
}
TRAINING = {"max_steps": 6, "batch_size": 8, "log_interval": 1, "eval_interval": 2}
MOMENTS = ("call", "time", "first step")
CALLS = ("open", "write", "fsync", "ftruncate", "replace", "mkdir", "rmdir", "unlink", "close")


@dataclass
class Case:
    """A recipe, and what an undisturbed run of it looks like."""

    name: str
    words: list[str]  # of the command that starts it
    whole: Path
    seconds: float = 0.0
    calls: int = 0
    outcomes: list[int] = field(default_factory=list)


def main(kills: int, names: list[str]) -> None:
    torch.set_num_threads(1)
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as name:
        folder = Path(name)
        os.environ["NESTRUCT_CACHE"] = str(folder / "cache")
        cases = [prepare(folder, name) for name in names or CASES]
        draw, done = random.Random(0), 0
        for number in itertools.count():
            if done >= kills:
                break
            case = cases[number % len(cases)]
            outcome = disturb(case, folder / "run", draw)
            done += len(outcome["kills"])
            print(json.dumps({"case": case.name, **outcome}), flush=True)
            shutil.rmtree(folder / "run")


def prepare(folder: Path, name: str) -> Case:
    """Runs a case undisturbed: here, which loads all it needs, and in a child that counts calls."""
    recipe = folder / f"{name.replace(' ', '-')}.toml"
    tables = {"title": name, **LAYOUT, "optimizer": {"name": "Adam", "lr": 0.02}, **CASES[name]}
    # With a checkpoint after every step most of the time is spent in writing.
    more = {**TRAINING, "checkpoint_seconds": 0, **tables.get("training", {})}
    recipe.write_text(tomli_w.dumps({**tables, "device": "cpu", "training": more}))
    words = ["train", str(recipe)]
    if name.startswith("init from"):
        source = folder / f"source of {name}"
        quietly(["train", str(recipe), "--seed", "9", "--run", str(source)], folder)
        words += ["--init-from", str(source)]
    case = Case(name, words, folder / f"whole {name}")
    assert quietly([*words, "--run", str(case.whole)], folder) == 0
    twin = folder / "twin"
    begun = time.monotonic()
    child = fork([*words, "--run", str(twin)], folder, None)
    assert os.waitpid(child, 0)[1] == 0
    case.seconds = time.monotonic() - begun
    case.calls = int((folder / "calls").read_text())
    assert difference(case.whole, twin) is None
    shutil.rmtree(twin)
    return case


def disturb(case: Case, run: Path, draw: random.Random) -> dict[str, Any]:
    """A run that is killed a few times: at what moments, and what came out different."""
    kills: list[str] = []
    wanted = draw.randrange(1, 5)
    while True:
        began = (run / "config.toml").exists()
        words = ["train", "--resume", str(run)] if began else [*case.words, "--run", str(run)]
        moment = draw.choice(MOMENTS) if len(kills) < wanted else None
        call = draw.randrange(case.calls) if moment == "call" else None
        child = fork(words, run.parent, call)
        if moment == "time":
            time.sleep(draw.random() * case.seconds)
            os.kill(child, signal.SIGKILL)
        elif moment == "first step":
            config = run / "config.toml"
            wait_until(lambda path=config: path.exists(), child)  # type: ignore[misc]
            time.sleep(draw.random() * 0.03)
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            kills.append(f"{moment} {describe(run)}")
            continue
        said = (run.parent / "said").read_text()
        if os.waitstatus_to_exitcode(status):
            return {"kills": kills, "different": f"status {status}: {said}"}
        return {"kills": kills, "different": difference(case.whole, run)}


def fork(words: list[str], folder: Path, call: int | None) -> int:
    """A child that runs a command; it kills itself before one of its calls of the file system."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        left = count_down(call)
        status = quietly(words, folder)
        (folder / "calls").write_text(str(-next(left)))
    finally:
        os._exit(status)


def count_down(call: int | None) -> itertools.count:
    """Counts the calls of the file system; at the given one the process dies."""
    counter = itertools.count(0, -1)

    def deadly(function: Callable) -> Callable:
        def wrapped(*words: Any, **options: Any) -> Any:
            if call == -next(counter):
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*words, **options)

        return wrapped

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))
    return counter


def quietly(words: list[str], folder: Path) -> int:
    """Runs a command; what it says goes to a file."""
    with (folder / "said").open("w") as file:
        kept = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = file
        try:
            return run_verb(words)
        finally:
            sys.stdout, sys.stderr = kept


def wait_until(is_so: Callable[[], bool], child: int) -> None:
    """Until something is so, or the child has ended."""
    while not is_so() and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.001)


def describe(run: Path) -> str:
    """How far a run had come when it was killed."""
    if not (run / "config.toml").exists():
        return "before it was a run"
    state = "last" if (run / "checkpoints" / "last").exists() else "last.previous"
    step = json.loads((run / "checkpoints" / state / "state.json").read_text())["loop"]["step"]
    writing = ", writing" if (run / "checkpoints" / ".writing").exists() else ""
    return f"after the checkpoint of step {step}{writing}"


def difference(one: Path, two: Path) -> str | None:
    """What differs between two runs; timings may."""
    for name in ("last", "best"):
        for part in ("model", "optimizer", "estimator"):
            files = [run / "checkpoints" / name / f"{part}.safetensors" for run in (one, two)]
            if files[0].read_bytes() != files[1].read_bytes():
                return f"{name}/{part}"
    logs = []
    for run in (one, two):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        logs.append([{k: v for k, v in line.items() if k != "timing"} for line in lines])
    if logs[0] != logs[1]:
        return "metrics.jsonl"
    for name in ("structures.jsonl", "config.toml"):
        if (one / name).read_bytes() != (two / name).read_bytes():
            return name
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
