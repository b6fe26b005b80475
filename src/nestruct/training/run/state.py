"""Where a run is, and the logs that it keeps."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from nestruct.checks import check_value
from nestruct.errors import InputError

Record = dict[str, Any]  # one line of a log
Reason = Literal[
    "finished", "stopped early", "stopped in time", "stopped by a callback", "interrupted"
]
LOGS = ("metrics.jsonl", "structures.jsonl")
MOST_THREADS = 1024  # more would end the process before it begins


@dataclass
class Progress:
    """Where a run is; saved with every checkpoint."""

    step: int = 0
    evaluations: int = 0
    decoded: int | None = 0  # None where unknown
    solved: int | None = 0
    looked_up: int | None = 0
    failed: int = 0
    seconds: float = 0.0
    initial: dict[str, float] | None = None
    best: dict[str, float] | None = None
    best_step: int | None = None
    unimproved: int = 0  # evaluations since the best
    test: dict[str, float] | None = None
    # Why it ended; None while it goes on.
    reason: Reason | None = None
    threads: int = field(default_factory=torch.get_num_threads)
    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    digests: dict[str, str] = field(default_factory=dict)  # the SHA-256 of those lines
    whole_logs: dict[str, str] | None = None  # the SHA-256 of each whole log; None before the end

    @classmethod
    def from_loop(cls, loop: dict[str, Any]) -> "Progress":
        """From what a checkpoint says, of which nothing is taken for granted.

        Raises:
            InputError: A value has a type or a size that it cannot have.
        """
        hints = get_type_hints(cls)
        for name, value in loop.items():
            if name not in hints:
                raise InputError(f"the entry {name!r} is not known")
            check_value(name, value, hints[name])
            _check_numbers(name, value, hints[name])
        # What earlier versions did not count is not known.
        now = cls(**({"decoded": None, "solved": None, "looked_up": None} | loop))
        if now.reason == "interrupted":
            raise InputError("a run that was interrupted has not ended")
        if not 1 <= now.threads <= MOST_THREADS:
            raise InputError(f"threads must be from 1 to {MOST_THREADS}, got {now.threads}")
        return now


def _check_numbers(name: str, value: Any, hint: Any) -> None:
    """Raises where a count or a time is below 0, or an entry of a table is no number."""
    if isinstance(value, dict):
        kinds = [
            get_args(option)[1] for option in (hint, *get_args(hint)) if get_origin(option) is dict
        ]
        for key, entry in value.items():
            check_value(f"{name}.{key}", entry, kinds[0])
            if kinds[0] is int and entry < 0:
                raise InputError(f"{name}.{key} must not be below 0, got {entry}")
    elif isinstance(value, int | float) and not 0 <= value < math.inf:
        raise InputError(f"{name} must be a finite number of at least 0, got {value}")
