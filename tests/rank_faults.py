"""Faults of torchrun's processes: every run ends as an undisturbed one does.

    python tests/rank_faults.py [--faults 39] [--recipes NES,SNES,...] [--only KIND,...] [--json F]

Each fault is a real one: processes are killed, stopped or asked to end at a random line of the
run's log, and torchrun, or the same command again, brings them back. With the same number of
processes the run must end in the same bits; where the number changed, to rounding. Linux only.
"""

import argparse
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from safetensors.numpy import load_file

STEPS = 150
TIMEOUT = 10  # seconds, of collectives
PATIENCE = 240.0  # seconds for one wait
ROUNDING = 1e-4  # of the largest parameter, where the number of processes changed
_LAYOUT = ["graph-layout-tiny", "data.num_train=64", "data.num_validation=32", "data.num_test=32"]
_LAYOUT += ["model.hidden_size=4", "training.batch_size=8"]
_CATEGORIES = ["categorical-tiny", "model.hidden_size=4", "training.batch_size=8"]
_OFTEN = ["training.log_interval=1", "training.eval_interval=20", "training.checkpoint_seconds=0.1"]
_POPULATION = ["estimator.sigma=0.1", "estimator.population_size=8", "estimator.mode=vmap"]
RECIPES = {
    "NES": [*_LAYOUT, "estimator.name=NES", *_POPULATION],
    "SNES": [*_LAYOUT, "estimator.name=SNES", *_POPULATION],
    "NES-categories": [*_CATEGORIES, "estimator.name=NES", *_POPULATION],
    "StructureNES": [*_LAYOUT, "estimator.name=StructureNES"],
    "SST": [*_LAYOUT, "estimator.name=SST"],
    "NVIL": [*_LAYOUT, "estimator.name=NVIL"],
}


def ranks_of(agent: subprocess.Popen) -> dict[int, int]:
    """The processes that an agent of torchrun started, by rank."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words = (path / "environ").read_bytes().split(b"\0") if parent == agent.pid else []
        except OSError:  # it is gone
            continue
        for word in words:
            if word.startswith(b"RANK="):
                found[int(word[5:])] = int(path.name)
    return found


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def is_listening(port: int) -> bool:
    """Whether somebody listens at a port."""
    with socket.socket() as client:
        return client.connect_ex(("localhost", port)) == 0


class FaultError(Exception):
    """A run did not end as it should."""


@dataclass
class Trial:
    """A run, the agents that work on it, and what they print."""

    words: list[str]
    folder: Path
    draw: random.Random
    agents: list[subprocess.Popen] = field(default_factory=list)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    endpoint: str = ""  # where two agents meet
    last_call: int = 60  # seconds that one agent waits for the other, where one would do

    @property
    def log(self) -> Path:
        """What all agents and processes print."""
        return self.folder.parent / f"{self.folder.name}.log"

    def start_two(self) -> tuple[subprocess.Popen, subprocess.Popen]:
        """Two agents of one process each; the first has the store where they meet."""
        port = free_port()
        self.endpoint = f"localhost:{port}"
        first = self.start(1)
        self.wait(lambda: is_listening(port), "the first agent")
        return first, self.start(1)

    def start(self, processes: int = 2) -> subprocess.Popen:
        """Starts or continues the run; with an endpoint, as one of up to two agents."""
        one = ["--standalone"]
        two = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}"]
        two += ["--rdzv-id=faults"]
        two += [f"--rdzv-conf=last_call_timeout={self.last_call},keep_alive_interval=1"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *(two if self.endpoint else one)]
        torchrun += ["--max-restarts=3", f"--nproc-per-node={processes}", "-m", "nestruct", "train"]
        words = [*self.words, "--run-dir", str(self.folder), "--continue"]
        settings = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "NESTRUCT_FAULTS": self.mark}
        if self.endpoint:  # see docs/many-processes.md
            settings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with self.log.open("ab") as log:
            agent = subprocess.Popen(
                [*torchrun, *words, f"--collective-timeout={TIMEOUT}", f"--max-steps={STEPS}"],
                env=os.environ | settings,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.agents.append(agent)
        return agent

    def lines(self) -> int:
        """How many lines the run's log has."""
        log = self.folder / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def wait(self, until: Callable[[], object], what: str) -> None:
        """Waits for something that must come before the run ends."""
        deadline = time.monotonic() + PATIENCE
        while not until():
            if time.monotonic() > deadline:
                raise FaultError(f"waited {PATIENCE:g} s for {what}")
            if all(agent.poll() is not None for agent in self.agents):
                raise FaultError(f"the run ended before {what}")
            time.sleep(0.002)

    def wait_for_line(self, line: int) -> None:
        """Waits until the run's log has so many lines."""
        self.wait(lambda: self.lines() >= line, f"line {line}")

    def hit(self, number: signal.Signals) -> None:
        """Sends a signal to one rank."""
        ranks = ranks_of(self.agents[-1])
        os.kill(ranks[self.draw.choice(sorted(ranks))], number)

    def finish(self) -> None:
        """Waits until every agent has ended; the last one must have succeeded."""
        deadline = time.monotonic() + PATIENCE
        for agent in self.agents:
            try:
                agent.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise FaultError(f"still running after {PATIENCE:g} s") from None
        if self.agents[-1].returncode != 0:
            raise FaultError(f"torchrun ended with status {self.agents[-1].returncode}")

    def clear(self) -> None:
        """Kills what is left of the processes that this trial started."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"NESTRUCT_FAULTS={self.mark}".encode() in (path / "environ").read_bytes()
                if ours and path.name != str(os.getpid()):
                    os.kill(int(path.name), signal.SIGKILL)
            except OSError:  # it is gone, or not ours
                continue
        for agent in self.agents:
            agent.wait()


# One function for each kind of fault; it returns once the run has ended.
def kill_a_rank(trial: Trial) -> None:
    trial.start()
    trial.wait_for_line(trial.draw.randrange(1, STEPS - 20))
    trial.hit(signal.SIGKILL)
    trial.finish()


def kill_three_times(trial: Trial) -> None:
    trial.start()
    for first in range(1, STEPS - 20, STEPS // 3):
        trial.wait_for_line(first + trial.draw.randrange(STEPS // 4))
        trial.hit(signal.SIGKILL)
    trial.finish()


def kill_while_it_restarts(trial: Trial) -> None:
    """The second kill comes while processes import, build or find each other."""
    agent = trial.start()
    trial.wait_for_line(trial.draw.randrange(1, STEPS - 20))
    before = set(ranks_of(agent).values())
    trial.hit(signal.SIGKILL)
    trial.wait(lambda: len(set(ranks_of(agent).values()) - before) == 2, "a restart")
    moment = time.monotonic() + trial.draw.uniform(0, 4)
    trial.wait(lambda: time.monotonic() > moment, "the second kill")
    trial.hit(signal.SIGKILL)
    trial.finish()


def terminate_a_rank(trial: Trial) -> None:
    trial.start()
    trial.wait_for_line(trial.draw.randrange(1, STEPS - 20))
    trial.hit(signal.SIGTERM)
    trial.finish()


def preempt(trial: Trial, processes: int = 2) -> None:
    """All get SIGTERM, as Slurm sends it; then the same command again."""
    agent = trial.start()
    trial.wait_for_line(trial.draw.randrange(1, STEPS - 20))
    for process in (agent.pid, *ranks_of(agent).values()):
        os.kill(process, signal.SIGTERM)
    agent.wait(PATIENCE)
    trial.start(processes)
    trial.finish()


def go_on_with_one(trial: Trial) -> None:
    preempt(trial, 1)


def go_on_with_three(trial: Trial) -> None:
    preempt(trial, 3)


def lose_the_agent(trial: Trial) -> None:
    """The only agent is killed, and the same command comes at once: its ranks may still run."""
    agent = trial.start()
    trial.wait_for_line(trial.draw.randrange(1, STEPS - 20))
    agent.kill()
    trial.start()
    trial.finish()


def hang_a_rank(trial: Trial) -> None:
    trial.start()
    trial.wait_for_line(trial.draw.randrange(1, STEPS - 20))
    trial.hit(signal.SIGSTOP)
    trial.finish()


def lose_one_of_two_agents(trial: Trial, *, node: bool = False, alone: int = 0) -> None:
    """The second agent is killed and comes back.

    Args:
        trial: The run.
        node: Whether its rank is killed with it.
        alone: Lines that the first agent logs before the second one comes back.
    """
    trial.last_call = 1 if alone else trial.last_call
    _, lost = trial.start_two()
    trial.wait_for_line(trial.draw.randrange(1, STEPS // 2))
    ranks = ranks_of(lost)
    lost.kill()
    for process in ranks.values() if node else ():
        os.kill(process, signal.SIGKILL)
    trial.agents.remove(lost)
    lost.wait()
    if alone:
        first = trial.log.read_text().count("Continuing at step")
        trial.wait(
            lambda: trial.log.read_text().count("Continuing at step") > first, "going on alone"
        )
        trial.wait_for_line(trial.lines() + alone)
    trial.start(1)
    trial.finish()


def lose_one_of_two_nodes(trial: Trial) -> None:
    lose_one_of_two_agents(trial, node=True)


def lose_one_of_two_nodes_for_long(trial: Trial) -> None:
    lose_one_of_two_agents(trial, node=True, alone=5)


def kill_a_rank_of_two_agents(trial: Trial) -> None:
    agents = trial.start_two()
    trial.wait_for_line(trial.draw.randrange(1, STEPS - 20))
    for process in ranks_of(trial.draw.choice(agents)).values():
        os.kill(process, signal.SIGKILL)
    trial.finish()


def lose_the_agent_with_the_store(trial: Trial) -> None:
    """Then the other agent ends too; the same two commands go on."""
    first, second = trial.start_two()
    trial.wait_for_line(trial.draw.randrange(1, STEPS - 20))
    first.kill()
    for agent in (first, second):
        agent.wait(PATIENCE)
    trial.agents.clear()
    trial.start_two()
    trial.finish()


SAME_BITS = [
    kill_a_rank,
    terminate_a_rank,
    kill_three_times,
    preempt,
    lose_one_of_two_agents,
    kill_while_it_restarts,
    lose_the_agent,
    lose_one_of_two_nodes,
    hang_a_rank,
    kill_a_rank_of_two_agents,
    lose_the_agent_with_the_store,
]
TO_ROUNDING = [go_on_with_one, go_on_with_three, lose_one_of_two_nodes_for_long]


@contextmanager
def trial_of(recipe: str, folder: Path, seed: int = 0) -> Iterator[Trial]:
    """A run in a new folder; what it started is gone at the end."""
    trial = Trial([*RECIPES[recipe], *_OFTEN], folder, random.Random(seed))
    try:
        yield trial
    finally:
        trial.clear()


def undisturbed(recipe: str, folder: Path) -> Path:
    """A run of two processes that nothing disturbs."""
    with trial_of(recipe, folder) as trial:
        trial.start()
        trial.finish()
    return folder


def compare(one: Path, two: Path) -> float:
    """The largest difference between the last parameters, over the largest parameter.

    Zero if, and only if, checkpoints and logs (but for timings) are the same bits.
    """
    ours, theirs = (load_file(run / "checkpoints/last/model.safetensors") for run in (one, two))
    largest = max(float(abs(value).max()) for value in theirs.values())
    off = max(float(abs(ours[name] - theirs[name]).max()) for name in theirs) / largest
    if off == 0:
        for name, part in itertools.product(("last", "best"), ("model", "optimizer", "estimator")):
            file = f"checkpoints/{name}/{part}.safetensors"
            if (one / file).read_bytes() != (two / file).read_bytes():
                raise FaultError(f"{file} differs")
        if _records(one) != _records(two):
            raise FaultError("metrics.jsonl differs")
    return off


def _records(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "timing"} for line in lines]


def check(trial: Trial, whole: Path, *, rounding: bool) -> float:
    """How far a run is from an undisturbed one; raises where that is too far.

    Also where a process ended in a traceback: the agents' own, which are torch's, are not meant.
    """
    text = trial.log.read_text()
    if "[rank" in text or "third_party/gloo" in text:
        raise FaultError("a process ended in a traceback")
    off = compare(trial.folder, whole)
    if off > (ROUNDING if rounding else 0):
        raise FaultError(f"parameters differ by {off:.1e}")
    return off


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--faults", type=int, default=39)
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--only", help="kinds of faults, by the names of their functions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the runs")
    options = parser.parse_args()
    kinds = [*SAME_BITS, *TO_ROUNDING]
    if options.only:
        kinds = [kind for kind in kinds if kind.__name__ in options.only.split(",")]
    recipes = [name for name in RECIPES if name in options.recipes.split(",")]
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        whole = {name: undisturbed(name, folder / f"whole-{name}") for name in recipes}
        for index in range(options.faults):
            kind = kinds[index % len(kinds)]
            recipe = recipes[(index + index // len(kinds)) % len(recipes)]
            seed = options.seed * 1000 + index
            with trial_of(recipe, folder / f"fault-{index}", seed) as trial:
                row = {"kind": kind.__name__, "recipe": recipe, "seed": seed}
                row |= try_fault(kind, trial, whole[recipe])
            rows.append(row)
            print("{recipe:16} {kind:32} {outcome:24} {seconds:6.1f} s".format(**row), flush=True)
            if options.json:
                options.json.write_text(json.dumps(describe(rows), indent=1) + "\n")
    good = sum(row["difference"] is not None for row in rows)
    print(f"{good} of {len(rows)} runs ended as undisturbed ones do.")
    return 0 if good == len(rows) else 1


def try_fault(kind: Callable[[Trial], None], trial: Trial, whole: Path) -> dict:
    """How a run with a fault ended."""
    started, off = time.monotonic(), None
    try:
        kind(trial)
        off = check(trial, whole, rounding=kind in TO_ROUNDING)
        outcome = "same bits" if off == 0 else f"differs by {off:.1e}"
    except (FaultError, OSError, LookupError, subprocess.TimeoutExpired) as error:
        outcome = f"FAILED: {error!r}"
    seconds = round(time.monotonic() - started, 1)
    return {"outcome": outcome, "difference": off, "seconds": seconds}


def describe(rows: list[dict]) -> dict:
    """What the JSON file says."""
    about = {
        "command": "python tests/rank_faults.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "steps": STEPS,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "good": sum(row["difference"] is not None for row in rows),
        "faults": len(rows),
    }
    return {"about": about, "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
