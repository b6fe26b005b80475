"""One worker process of a `SolverPool`, as its parent sees it.

The process is `solver_worker.py` in a fresh interpreter, and in a session of its own, so that a
terminal's Ctrl-C reaches the parent alone. It is started by `subprocess` and not by
`multiprocessing.Process`: environment, session and whether the parent's script is imported can then
be chosen without touching the parent's own.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import time
from multiprocessing import spawn
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("solver_worker.py")
_INSIDE = "NESTRUCT_SOLVER_WORKER"  # set in a worker's environment
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class RemoteError(Exception):
    """Where in a worker the solver raised, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'

    @property
    def last_line(self) -> str:
        """What was raised, without where."""
        return self.args[0].strip().splitlines()[-1]


def describe(error: BaseException | None) -> str:
    """What a solver raised, on one line, without a full stop."""
    if isinstance(error, RemoteError):
        return error.last_line.rstrip(".")
    said = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {said}' if said else ''}".rstrip(".")


class Worker:
    """A process, and what it is doing.

    Args:
        setup: What `solver_worker.py` reads first.
    """

    def __init__(self, setup: bytes) -> None:
        self.connection, theirs = Pipe()
        environment = dict.fromkeys(_THREADS, "1") | os.environ | {_INSIDE: "1"}
        command = [spawn.get_executable(), "-P", str(_PROGRAM), str(theirs.fileno())]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self.is_ready = False
        self.task: int | None = None
        self.deadline: float | None = None
        self._send(setup)

    def hand_out(self, index: int, message: Any, limit: float | None) -> None:
        """Gives it a task, by number, and seconds that it may take."""
        self.task, self.deadline = index, None if limit is None else time.monotonic() + limit
        self._send(pickle.dumps(message, protocol=5))

    def _send(self, data: bytes) -> None:
        # One that has ended shows when it is listened to.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(data)

    def receive(self) -> tuple[Any, ...] | None:
        """What it answers; None if it has ended."""
        try:
            data = self.connection.recv_bytes()
        except (EOFError, OSError):
            return None
        answer = pickle.loads(data)
        self.is_ready, self.task, self.deadline = answer[0] != "refused", None, None
        return answer

    def is_late(self) -> bool:
        """Whether its time is over, and it has not answered."""
        over = self.deadline is not None and time.monotonic() >= self.deadline
        return over and not self.connection.poll()

    def kill(self) -> None:
        """Ends it, and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()


def is_worker() -> bool:
    """Whether this process is a worker."""
    return _INSIDE in os.environ


def remote_error(payload: bytes | None, text: str) -> Exception:
    """What a worker raised, chained to the traceback there."""
    if payload is None:
        return RemoteError(text)
    error = pickle.loads(payload)
    error.__cause__ = RemoteError(text)
    return error
