"""How far runs side by side are: bars on a terminal, a line now and then elsewhere."""

import os
import time
from collections.abc import Sequence

import rich.console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from nestruct.cli.queue import Job
from nestruct.training import read_recipe
from nestruct.untrusted import parse_json

_SILENCE = 30.0  # seconds between plain lines about what is running


class QueueDisplay:
    """How far all runs are, and each of those that are running."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.console = rich.console.Console()
        self.jobs = jobs
        self.ended = 0
        self.spoke = time.monotonic()
        text = TextColumn("{task.description}", markup=False)
        self.bars = Progress(BarColumn(bar_width=20), text, console=self.console)
        self.tasks: dict[Job, TaskID] = {}
        self.all = self.bars.add_task(f"0 of {len(jobs)} runs", total=len(jobs))

    def __enter__(self) -> "QueueDisplay":
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def tell(self, text: str) -> None:
        """A run has ended."""
        self.ended += 1
        self.bars.update(
            self.all, completed=self.ended, description=f"{self.ended} of {len(self.jobs)} runs"
        )
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.console.file.flush()

    def look(self, running: Sequence[Job]) -> None:
        """Shows how far the runs are."""
        now = time.monotonic()
        if now - self.spoke < (1.0 if self.console.is_terminal else _SILENCE):
            return
        self.spoke = now
        if not self.console.is_terminal:
            states = ", ".join(f"{job.folder.name} {_share(job):.0%}" for job in running)
            print(f"{self.ended} of {len(self.jobs)} runs; {states}", flush=True)
            return
        for job in set(self.tasks) - set(running):
            self.bars.remove_task(self.tasks.pop(job))
        for job in running:
            if job not in self.tasks:
                self.tasks[job] = self.bars.add_task(job.folder.name, total=1.0)
            self.bars.update(self.tasks[job], completed=_share(job))


def _share(job: Job) -> float:
    """How much of a run is done: from the last line of its log of metrics."""
    try:
        with (job.folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
        config = read_recipe(str(job.folder / "config.toml"))
        step = max(parse_json(line.encode())["step"] for line in lines[-3:] if line.endswith("}"))
        return min(1.0, step / max(1, config["training"]["max_steps"]))
    except (OSError, ValueError, LookupError, TypeError):
        return 0.0
