"""Wall-clock, speed, share of the solver and memory: what is machine-dependent about a record."""

import resource
import sys
import time
from typing import Any

import torch


class Stopwatch:
    """Times a session of a run.

    Args:
        seconds: What earlier sessions took.
        device: Whose memory is reported.
    """

    def __init__(self, seconds: float, device: torch.device) -> None:
        self._begin = time.monotonic() - seconds
        self._device = device
        self._solver: float | None = None
        self._reset()

    @property
    def seconds(self) -> float:
        """Wall-clock of all sessions."""
        return time.monotonic() - self._begin

    def count(self, report: Any) -> None:
        """Adds a step's report to the current interval."""
        self._steps += 1
        self._evaluations += int(report.num_evaluations)
        if report.solver_seconds is None:
            self._solver = None
        elif self._solver is not None:
            self._solver += float(report.solver_seconds)

    def read(self) -> dict[str, Any]:
        """What happened since the last reading."""
        elapsed = max(time.monotonic() - self._since, 1e-9)
        timing = {
            "seconds": round(self.seconds, 3),
            "evaluations_per_second": round(self._evaluations / elapsed, 1),
            "solver_share": None if self._solver is None else round(self._solver / elapsed, 4),
            "solver_seconds_per_step": None if self._solver is None else self._per_step(),
            "memory_bytes": self._memory(),
        }
        self._reset()
        return timing

    def _per_step(self) -> float:
        return round((self._solver or 0.0) / max(self._steps, 1), 6)

    def _reset(self) -> None:
        self._steps = 0
        self._since = time.monotonic()
        self._evaluations = 0
        self._solver = 0.0

    def _memory(self) -> int:
        """The most that was in use: of the GPU, or of the process."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
