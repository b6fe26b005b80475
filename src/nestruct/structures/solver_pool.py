"""Processes that a slow solver runs in: started once, replaced when they crash or take too long.

`solver_process.py` is one of them as seen from here, `solver_worker.py` what runs there.
"""

import os
import pickle
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from multiprocessing import spawn
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from nestruct.errors import InputError
from nestruct.structures.solver_process import Worker, describe, is_worker, remote_error

_GUARD = "in a script, put what runs under `if __name__ == '__main__':`"


class Lost(Enum):
    """Why a task has no result."""

    TIMED_OUT = "took longer than the timeout"
    CRASHED = "ended its worker process twice"


class Task(NamedTuple):
    """A call of the solver: scores and context, as arrays, and how many instances they are."""

    scores: Any
    context: dict[str, Any]
    instances: int = 1


class TaskError(Exception):
    """The solver raised; ``__cause__`` is what it raised.

    Args:
        index: Of the task.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class SolverPool:
    """Worker processes for one solver.

    Args:
        owner: Whose solver it is, for messages.
        solve: The solver; pickled at the first call.
        workers: How many processes.
        timeout: Seconds that one instance may take.
        backend: The kind of array that the solver takes, ``torch`` or ``numpy``.
    """

    def __init__(
        self,
        owner: str,
        solve: Callable[..., Any],
        *,
        workers: int,
        timeout: float | None,
        backend: str,
    ) -> None:
        self.owner, self.solve, self.size = owner, solve, workers
        self.timeout, self.backend = timeout, backend
        self._setup = b""
        self._begin()

    def _begin(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._workers: list[Worker] = []
        self._failed_starts = 0
        # At the end of the structure and at exit; a killed parent's workers end by themselves.
        self._finalizer = weakref.finalize(self, _close, self._workers, self._process)

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        """The solver's results in the order of the tasks; a `Lost` where there is none.

        Raises:
            TaskError: The solver raised at a task; the first of those.
            InputError: No worker can start.
        """
        if os.getpid() != self._process:  # a fork: the workers are another process's
            self._finalizer.detach()
            for worker in self._workers:
                worker.process.returncode = 0  # not ours to wait for
            self._begin()
        with self._lock:
            try:
                while len(self._workers) < self.size:
                    self._workers.append(self._start())
                return self._run(_Work(tasks))
            except BaseException:  # Ctrl-C: what busy workers answer would come too late
                for worker in [w for w in self._workers if w.task is not None]:
                    self._drop(worker)
                raise

    def close(self) -> None:
        """Ends the workers; the next call starts others."""
        _close(self._workers, self._process)

    def _run(self, work: "_Work") -> list[Any]:
        while True:
            for worker in self._workers:
                if work.waiting and worker.is_ready and worker.task is None:
                    index = work.waiting.popleft()
                    scores, context, instances = work.tasks[index]
                    limit = None if self.timeout is None else self.timeout * instances
                    worker.hand_out(index, (scores, context), limit)
            if not work.waiting and all(worker.task is None for worker in self._workers):
                return work.finish()
            for worker in self._wait():
                self._listen(worker, work)
            for worker in [worker for worker in self._workers if worker.is_late()]:
                work.lost(worker.task, Lost.TIMED_OUT)
                self._replace(worker)

    def _listen(self, worker: Worker, work: "_Work") -> None:
        index, was_ready = worker.task, worker.is_ready
        answer = worker.receive()
        if answer is None:  # it has ended
            self._failed_starts += not was_ready
            if self._failed_starts > self.size:
                self._drop(worker)
                raise self._refuse(f"worker processes end as they start; {_GUARD}")
            work.crashed(index)
            self._replace(worker)
        elif answer[0] == "ready":
            self._failed_starts = 0
        elif answer[0] == "refused":
            self._drop(worker)
            error = remote_error(*answer[1:])
            raise self._refuse(_cannot_load(error)) from error
        elif answer[0] == "done":
            work.results[index] = answer[1]
        else:
            work.raised(index, remote_error(*answer[1:]))

    def _wait(self) -> list[Worker]:
        """The workers that have something to say, once one has or is late."""
        deadlines = [worker.deadline for worker in self._workers if worker.deadline is not None]
        patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        ready = wait([worker.connection for worker in self._workers], patience)
        return [worker for worker in self._workers if worker.connection in ready]

    def _start(self) -> Worker:
        if is_worker():
            raise self._refuse(f"a worker process cannot have workers of its own; {_GUARD}")
        if not self._setup:
            self._setup = self._pickle()
        return Worker(self._setup)

    def _pickle(self) -> bytes:
        """What a worker needs at first: where to find modules, and the solver."""
        try:
            solver = pickle.dumps(self.solve)
        except Exception as error:
            raise self._refuse(unpicklable(self.solve)) from error
        surroundings = spawn.get_preparation_data("nestruct solver")
        kept = ["sys_path", "dir", "orig_dir"]
        if b"__main__" in solver:
            kept += ["init_main_from_name", "init_main_from_path"]
        surroundings = {name: surroundings[name] for name in kept if name in surroundings}
        name = getattr(self.solve, "__module__", None) or type(self.solve).__module__
        file = name, getattr(sys.modules.get(name), "__file__", None)
        return pickle.dumps((surroundings, file, solver, self.backend))

    def _refuse(self, why: str) -> InputError:
        return InputError(f"{self.owner}: {why}.")

    def _replace(self, worker: Worker) -> None:
        self._drop(worker)
        self._workers.append(self._start())

    def _drop(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.kill()


class _Work:
    """Tasks, and how far they are. Results do not depend on which worker was the faster."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks, self.waiting = tasks, deque(range(len(tasks)))
        self.results: dict[int | None, Any] = {}
        self._crashed: set[int | None] = set()
        self._failure: TaskError | None = None

    def lost(self, index: int | None, why: Lost) -> None:
        """A task has no result."""
        self.results[index] = why

    def crashed(self, index: int | None) -> None:
        """The worker of a task, if it had one, has ended."""
        if index is None:
            return
        if index in self._crashed:
            self.lost(index, Lost.CRASHED)
        elif self._failure is None or index < self._failure.index:
            self._crashed.add(index)
            self.waiting.appendleft(index)

    def raised(self, index: int | None, error: Exception) -> None:
        """The solver raised: the first task of all at which it does is what is reported."""
        if index is not None and (self._failure is None or index < self._failure.index):
            self._failure = TaskError(index)
            self._failure.__cause__ = error
            self.waiting = deque(other for other in self.waiting if other < index)

    def finish(self) -> list[Any]:
        """The results in the order of the tasks, or the failure."""
        if self._failure is not None:
            raise self._failure
        return [self.results[index] for index in range(len(self.tasks))]


def unpicklable(solve: Any) -> str:
    """What is wrong with a solver that workers cannot import."""
    name = getattr(solve, "__qualname__", type(solve).__qualname__)
    return (
        f"worker processes cannot import {name}, which workers= and timeout= need; define the "
        "solver with def at the top level of a module"
    )


def _cannot_load(error: Exception) -> str:
    """What went wrong in a worker before it was given anything to solve."""
    why = str(error).rstrip(".") if isinstance(error, InputError) else describe(error)
    return f"a worker process cannot load the solver ({why}); define it in a file of its own"


def is_local(solve: Any) -> bool:
    """Whether a function can be seen to be a lambda or a function's own."""
    name = getattr(solve, "__qualname__", "")
    return "<lambda>" in name or "<locals>" in name


def _close(workers: list[Worker], process: int) -> None:
    if os.getpid() == process:
        while workers:
            workers.pop().kill()
