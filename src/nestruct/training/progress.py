"""What a person sees while a model trains: a live line on a terminal, plain lines elsewhere."""

import contextlib
import logging
import time
from typing import Any

import rich.console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from nestruct.training.run import Record
from nestruct.wording import duration, number, short_time

_COUNTS = ("step", "solved", "looked_up")
_SILENCE = 2.0  # seconds between plain lines


class Display:
    """Shows steps, evaluations and notes; silent where ``console`` is None.

    Args:
        console: Where to write.
        max_steps: Where the bar ends.
        metric: The validation metric to show.
    """

    def __init__(
        self, console: rich.console.Console | None, *, max_steps: int, metric: str = "loss"
    ) -> None:
        self.console, self.max_steps, self.metric = console, max_steps, metric
        self.first_step, self.started = 0, time.monotonic()
        self.evaluation = ""
        self._spoke = self.started
        self._before: list[Any] | None = None  # the last record's counts
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._handler = _Notes(self)

    def __enter__(self) -> "Display":
        if self.console is None:
            return self
        log = logging.getLogger("nestruct")
        self._level = log.level
        log.addHandler(self._handler)
        log.setLevel(logging.INFO)
        if self.console.is_terminal:
            bar = BarColumn(bar_width=20 if self.console.width > 120 else 8)
            text = TextColumn("{task.description}", markup=False)
            self._bar = Progress(bar, text, console=self.console, refresh_per_second=4)
            self._task = self._bar.add_task("starting", total=self.max_steps)
            self._bar.start()
        return self

    def begin(self, step: int) -> None:
        """Training starts now, at this step."""
        self.first_step, self.started = step, time.monotonic()
        self._before = None if step else [0] * len(_COUNTS)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()
        log = logging.getLogger("nestruct")
        if self._handler in log.handlers:
            log.removeHandler(self._handler)
            log.setLevel(self._level)

    def note(self, text: str) -> None:
        """A sentence that stays on the screen."""
        if self.console is None:
            return
        try:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        except OSError:  # nobody reads any more, or the disk is full: training goes on
            self.console = None

    def step(self, record: Record) -> None:
        """A training record."""
        line = self._describe(record)
        if self._bar is not None:
            self._bar.update(self._task, completed=record["step"], description=line)
        elif time.monotonic() - self._spoke > _SILENCE or record["step"] == self.max_steps:
            self._spoke = time.monotonic()
            self.note(line)

    def evaluated(self, record: Record) -> None:
        """A validation or test record."""
        values = {k: v for k, v in record.items() if isinstance(v, float)}
        if record["split"] == "validation" and self.metric in values:
            self.evaluation = f"validation {self.metric} {number(values[self.metric])}"
        if self._bar is None or record["split"] == "test":
            text = "  ".join(f"{name} {number(value)}" for name, value in values.items())
            best = record.get("best_step")  # whose parameters are tested
            self.note(f"step {record['step'] if best is None else best} {record['split']}: {text}")

    def _describe(self, record: Record) -> str:
        """What matters most comes first: a narrow terminal shows as much as fits."""
        timing: dict[str, Any] = record["timing"]
        done = record["step"] - self.first_step
        left = (time.monotonic() - self.started) / max(done, 1) * (self.max_steps - record["step"])
        parts = [
            f"step {record['step']}/{self.max_steps}",
            f"loss {number(record['loss'])} +- {number(record['loss_std'])}",
            f"{duration(left)} left",
            f"{timing['evaluations_per_second']:,.0f} evals/s",
        ]
        if timing["solver_share"] is not None:
            parts.append(f"solver {timing['solver_share']:.0%}{self._calls(record)}")
        if record["failed"]:
            parts.append(f"{record['failed']} members failed")
        return " | ".join([*parts, self.evaluation] if self.evaluation else parts)

    def _calls(self, record: Record) -> str:
        """Calls of the solver and seconds in it, of a step since the last record."""
        counts = [record.get(name) for name in _COUNTS]
        before, self._before = self._before, counts
        if before is None or None in (*before, *counts):
            return ""
        steps, solved, known = (now - then for now, then in zip(counts, before, strict=True))
        if not steps or not solved + known:
            return ""
        seconds = short_time(record["timing"]["solver_seconds_per_step"])
        more = f", {known / steps:,.0f} looked up" if known else ""
        return f" ({solved / steps:,.0f} calls, {seconds}{more} a step)"


class Console(rich.console.Console):
    """A console whose reader may go away."""

    def on_broken_pipe(self) -> None:
        """Leaves it to the caller; rich would end the program."""
        raise BrokenPipeError


class _Notes(logging.Handler):
    """Shows what the library logs (how members are evaluated, say) among the lines."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.INFO)
        self.display = display

    def emit(self, record: logging.LogRecord) -> None:
        self.display.note(record.getMessage())
