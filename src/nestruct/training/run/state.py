"""Where a run is, and the logs that it keeps."""

from dataclasses import dataclass, field
from typing import Any

import torch

Record = dict[str, Any]  # one line of a log
LOGS = ("metrics.jsonl", "structures.jsonl")


@dataclass
class Progress:
    """Where a run is; saved with every checkpoint."""

    step: int = 0
    evaluations: int = 0
    decoded: int | None = 0  # None where unknown
    solved: int | None = 0
    failed: int = 0
    seconds: float = 0.0
    initial: dict[str, float] | None = None
    best: dict[str, float] | None = None
    best_step: int | None = None
    unimproved: int = 0  # evaluations since the best
    test: dict[str, float] | None = None
    reason: str | None = None  # why it ended; None while it goes on
    threads: int = field(default_factory=torch.get_num_threads)
    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    digests: dict[str, str] = field(default_factory=dict)  # the SHA-256 of those lines
    whole_logs: dict[str, str] | None = None  # the SHA-256 of each whole log; None before the end
