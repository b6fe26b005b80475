"""Runs side by side, each a process of its own: resumed where it stood, stopped with the others.

Ctrl-C and SIGTERM, which is what Slurm and ``timeout`` send, stop and save all of them. Where this
process is killed they notice: their standard input, a pipe from here, ends.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nestruct.reports import read_run
from nestruct.training.interrupt import catch_interrupt
from nestruct.training.recipes import names_in
from nestruct.training.recipes.names import Trust, is_trusted
from nestruct.training.run import is_run, read_config
from nestruct.wording import number

_PATIENCE = 0.1  # seconds between looks at the processes
_THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")  # what torch and our solvers go by
_QUEUED = "NESTRUCT_QUEUED"  # in the environment of a run that is one of several


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A training that `run_jobs` starts, or continues where its folder has a beginning.

    Args:
        folder: The run folder; what the run prints is appended to ``FOLDER.log``.
        words: What ``nestruct train`` takes for a new run, besides the folder.
        max_steps: How far a finished run is continued; as far as it was asked to, when None.
        device: Where a run goes on that is continued; where it was, when None.
        after: A job whose best parameters are the first ones of this.
        processes: How many share the run's work, under torchrun.
        setting: What it tries, of its words; empty where it tries nothing.
        best_of: Jobs that try something; the one that is best on validation data gives its setting.
        trust: Which names of the form ``module:Class`` may be imported: all, none, or these.
    """

    folder: Path
    words: Sequence[str]
    max_steps: int | None = None
    device: str | None = None
    after: "Job | None" = None
    processes: int = 1
    setting: Sequence[str] = ()
    best_of: "Sequence[Job]" = ()
    trust: Trust = False

    @property
    def log(self) -> Path:
        """Where the output goes."""
        return self.folder.parent / f"{self.folder.name}.log"

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        if not (self.folder / "metrics.jsonl").exists():
            return False
        run = read_run(self.folder)
        return run.finished and (self.max_steps is None or (run.max_steps or 0) >= self.max_steps)

    @property
    def command(self) -> list[str]:
        """What starts or continues the run."""
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        train = [
            sys.executable,
            *["-m", *torchrun] * (self.processes > 1),
            "-m",
            "nestruct",
            "train",
        ]
        if is_run(self.folder):
            steps = [] if self.max_steps is None else ["--max-steps", str(self.max_steps)]
            device = [] if self.device is None else ["--device", self.device]
            asked = read_config(self.folder) if self.trust else {}
            named = names_in(asked) and all(is_trusted(n, self.trust) for n in names_in(asked))
            trust = ["--trust"] * bool(named)
            return [*train, "--resume", str(self.folder), *steps, *device, *trust]
        first = [] if self.after is None else ["--init-from", str(self.after.folder)]
        option = "--run" if self.processes == 1 else "--run-dir"  # torchrun has a --run too
        trust = ["--trust"] * (self.trust is True)
        return [*train, *self.words, *self.chosen(), option, str(self.folder), *first, *trust]

    def chosen(self) -> Sequence[str]:
        """The setting of the best of what was tried; empty where nothing was."""
        tried = [(job.score(), job) for job in self.best_of]
        known = [(score, job) for score, job in tried if score is not None]
        return max(known, key=lambda pair: pair[0])[1].setting if known else ()

    def score(self) -> float | None:
        """How good it is on validation data, more is better; None where that is not known."""
        if not self.is_done:
            return None
        run = read_run(self.folder)
        value = run.value("best", str(run.option("training.metric")))
        return value if value is None or run.option("training.maximize") else -value

    def outcome(self, status: int) -> str:
        """How the run ended, in a few words."""
        if status == 130:
            return "stopped, saved"
        if status:
            return f"failed (status {status}); see {self.log}"
        run = read_run(self.folder)
        metric = str(run.option("training.metric"))
        best = run.value("best", metric)
        return "done" if best is None else f"best validation {metric} {number(best)}"

    def outcome_of_stop(self, status: int) -> str:
        """How the run ended that was asked to stop: while it loads its parts, in any way."""
        if status and not (self.folder / "config.toml").exists():
            return "stopped before it began"
        # torchrun has no status of its own for processes that were asked to stop.
        asked = status == -signal.SIGTERM or self.processes > 1
        return self.outcome(130 if status and asked else status)


class Ended(NamedTuple):
    """How jobs ended: how many failed, and whether they were stopped (a signal, the deadline)."""

    failed: int
    stopped: bool


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    *,
    tell: Callable[[str], None],
    deadline: float | None = None,
    look: Callable[[Sequence[Job]], None] = lambda running: None,
) -> Ended:
    """Runs jobs, the first ones first. Those that are stopped are saved.

    Jobs side by side share the machine's cores: each has as many threads as there are for it.

    Args:
        jobs: What to run; one that another starts from must be among them, and before it.
        at_once: Jobs at a time.
        tell: Called with a line when a job ends.
        deadline: When to stop, by `time.monotonic`.
        look: Called with the jobs that are running, again and again.
    """
    waiting, running = list(jobs), dict[Job, subprocess.Popen]()
    good, failed = set[Job](), set[Job]()
    workers = at_once * max((job.processes for job in jobs), default=1)
    threads = max(1, cores() // workers) if workers > 1 else None
    with ExitStack() as stack, catch_interrupt(twice=True) as interrupt:
        while waiting or running:
            for job, process in list(running.items()):
                status = process.poll()
                if status is not None:
                    del running[job]
                    (failed if status else good).add(job)
                    tell(f"{job.folder}: {job.outcome(status)}")
            for job in list(waiting):
                before = {*job.best_of, *([] if job.after is None else [job.after])}
                if job.after in failed or (job.best_of and failed >= set(job.best_of)):
                    waiting.remove(job)
                    failed.add(job)
                    lost = job.after or job.best_of[0]
                    tell(f"{job.folder}: left out, for {lost.folder} failed")
                elif job.is_done:
                    waiting.remove(job)
                    good.add(job)
                    tell(f"{job.folder}: already done, {job.outcome(0)}")
                elif len(running) < at_once and before <= good | failed:
                    waiting.remove(job)
                    running[job] = _start(job, stack, threads)
            if interrupt or (deadline is not None and time.monotonic() > deadline):
                for process in running.values():
                    process.terminate()
                for job, process in running.items():
                    tell(f"{job.folder}: {job.outcome_of_stop(process.wait())}")
                return Ended(len(failed), stopped=True)
            look(list(running))
            time.sleep(_PATIENCE)
        return Ended(len(failed), stopped=bool(interrupt))


def stop_when_orphaned() -> None:
    """Sends SIGTERM to this run once the process that started it, for `run_jobs`, is gone."""

    def wait() -> None:
        os.read(0, 1)  # nothing is ever written: it returns when the other end is closed
        os.kill(os.getpid(), signal.SIGTERM)

    if _QUEUED in os.environ:
        threading.Thread(target=wait, daemon=True).start()


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start(job: Job, stack: ExitStack, threads: int | None) -> subprocess.Popen:
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    log = stack.enter_context(job.log.open("ab"))
    # Threads that wait for a core that another run has cost more than they do.
    few = {} if threads is None else {name: str(threads) for name in _THREADS}
    # A session of its own: Ctrl-C reaches a run once, through us.
    process = subprocess.Popen(
        job.command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=few | os.environ | {_QUEUED: "1"},
    )
    return stack.enter_context(process)
