"""How the function of a `BlackBox` is called: instance by instance, in this process or in others.

Before an instance is solved it is looked up (`solution_cache.py`); what is left goes to the
function, or to worker processes (`solver_pool.py`).
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestruct.errors import InputError, is_out_of_memory
from nestruct.structures.instances import Instance
from nestruct.structures.solution_cache import (
    SolutionCache,
    SolutionPool,
    digest,
    is_estimating,
    looks_up,
)
from nestruct.structures.solver_pool import Lost, SolverPool, Task, TaskError
from nestruct.structures.solver_process import describe
from nestruct.structures.solvers.clock import count_looked_up, count_solved

CACHE_BYTES = 64 * 2**20

log = logging.getLogger(__name__)


class SolverError(Exception):
    """The solver raised ``__cause__`` at these instances: at one, or in a call for many."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(rows)
        self.rows = rows

    def sentence(self, owner: str, indices: Sequence[Any], names: Sequence[str]) -> InputError:
        """What to tell the user.

        Args:
            owner: Whose solver it is.
            indices: The first and the last row, by their index in the leading axes, if any.
            names: The context.
        """
        first, last = indices
        where = f" on row {first}" if first == last else f" on rows {first} to {last}"
        context = f" with the context {', '.join(names)}" if names else ""
        where = "" if first is None else where
        return InputError(
            f"{owner}: the function failed{where}{context}: {describe(self.__cause__)}."
        )


class SolverCalls:
    """Calls a solver, and keeps what it returned.

    Args:
        owner: Whose solver it is, for messages.
        solve: The solver.
        batched: Whether it takes many instances in one call.
        backend: The kind of array that it takes.
        workers: How many processes it runs in; 0 for this one.
        timeout: Seconds that an instance may take.
        pool_share: For which share of the instances in training a stored solution will do.
        cache_bytes: How much solutions that are looked up may take.
    """

    def __init__(
        self,
        owner: str,
        solve: Callable[..., Any],
        *,
        batched: bool,
        backend: str,
        workers: int,
        timeout: float | None,
        pool_share: float,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._options = {name: value for name, value in locals().items() if name != "self"}
        self.owner, self.solve, self.batched, self.backend = owner, solve, batched, backend
        self.pool_share, self.num_workers = pool_share, workers
        self.counts = dict.fromkeys(("solved", "looked_up", "pooled", "timed_out", "crashed"), 0)
        self.cache, self.pool = SolutionCache(cache_bytes), SolutionPool(CACHE_BYTES)
        self.workers: SolverPool | None = None
        if workers or timeout is not None:
            self.num_workers = max(1, workers)
            self.workers = SolverPool(
                owner, solve, workers=self.num_workers, timeout=timeout, backend=backend
            )

    def __getstate__(self) -> dict[str, Any]:
        options = self._options | {"cache_bytes": self.cache.most_bytes}
        return options  # copies start workers of their own, and know no solutions

    def __setstate__(self, options: dict[str, Any]) -> None:
        self.__init__(**options)  # type: ignore[misc]

    def close(self) -> None:
        """Ends the workers, if there are any."""
        if self.workers is not None:
            self.workers.close()

    @property
    def by_instance(self) -> bool:
        """Whether instances are told apart; False where all go to one call in this process."""
        return not self.batched or self.workers is not None or self.pool_share > 0

    @property
    def needs_host(self) -> bool:
        """Whether scores must be on the CPU, wherever the solver works."""
        return self.backend == "numpy" or self.workers is not None or self.pool_share > 0

    def __call__(self, instances: list[Instance], check: Callable[..., Tensor]) -> list[Any]:
        """What the solver returns for each of several instances; a `Lost` where it does not.

        Args:
            instances: What to solve.
            check: Makes a tensor of what a call for so many instances returned.

        Raises:
            SolverError: The solver raised.
        """
        # Scores that serve a gradient do not come again: only a pool can stand in for them.
        keeps = self.pool_share or (self.cache.most_bytes and not is_estimating())
        if not keeps or not looks_up() or _on_gpu(instances[0]):
            return self._solve(instances, list(range(len(instances))), check)
        results: list[Any] = []
        missed: dict[int, tuple[bytes, bytes]] = {}
        for row, (scores, context) in enumerate(instances):
            given = _as_array(scores)
            of_context = digest({name: _as_array(value) for name, value in context.items()})
            key = digest({"scores": given, "context": np.frombuffer(of_context, np.uint8)})
            results.append(self._look_up(key, of_context, given))
            if results[row] is None:
                missed[row] = key, of_context
        rows = list(missed)
        solved = self._solve([instances[row] for row in rows], rows, check)
        for row, result in zip(rows, solved, strict=True):
            results[row] = result
            self._keep(*missed[row], result)
        count_looked_up(len(instances) - len(rows))
        return results

    def _look_up(self, key: bytes, context: bytes, scores: np.ndarray) -> np.ndarray | None:
        """A solution from an earlier call: of this instance, or one that may stand in for it."""
        known, kind = self.cache.get(key), "looked_up"
        if known is None and self._may_stand_in(key):
            known, kind = self.pool.best(context, scores), "pooled"
        if known is not None:
            self.counts[kind] += 1
        return known

    def all_at_once(self, scores: Any, context: dict[str, Any], instances: int) -> Any:
        """What the solver returns for all instances in one call, in this process."""
        count_solved(instances)
        self.counts["solved"] += instances
        try:
            return _call(self.solve, 0, Task(scores, context, instances))
        except TaskError as failure:
            raise SolverError(range(instances)) from failure.__cause__

    def _may_stand_in(self, key: bytes) -> bool:
        """Whether this instance is one of the share: decided by its bits, so the same each time."""
        if not self.pool_share or not is_estimating():
            return False
        return int.from_bytes(key[:8], "little") < self.pool_share * 2.0**64

    def _keep(self, key: bytes, context: bytes, result: Any) -> None:
        solution = None if isinstance(result, Lost) else _plain(result)
        if solution is None:
            return
        if not is_estimating():  # else noise made it, and others would have to go for it
            self.cache.put(key, solution)
        if self.pool_share and not np.isnan(solution).any():
            self.pool.put(context, solution)

    def _solve(
        self, instances: list[Instance], rows: list[int], check: Callable[..., Tensor]
    ) -> list[Any]:
        """As `__call__`, of instances that are not known; ``rows`` is which of all they are."""
        if not instances:
            return []
        count_solved(len(instances))
        self.counts["solved"] += len(instances)
        # In slices if it is batched: one for each worker.
        parts = max(1, self.num_workers) if self.batched else len(instances)
        results = self._solve_in(min(parts, len(instances)), instances, rows, check)
        for result in results:
            if isinstance(result, Lost):
                self._note(result)
        return results

    def _solve_in(
        self, parts: int, instances: list[Instance], rows: list[int], check: Callable[..., Tensor]
    ) -> list[Any]:
        """As `_solve`, in so many calls."""
        edges = [len(instances) * part // parts for part in range(parts + 1)]
        pieces = [slice(*pair) for pair in itertools.pairwise(edges)]
        try:
            found = self._run([self._task(instances[piece]) for piece in pieces])
        except TaskError as failure:
            raise SolverError(rows[pieces[failure.index]]) from failure.__cause__
        if not self.batched:
            return found
        results: list[Any] = []
        for piece, result in zip(pieces, found, strict=True):
            mine = instances[piece]
            if not isinstance(result, Lost):
                results += check(result, len(mine))
            elif len(mine) == 1:
                results.append(result)
            else:  # which of them it was shows when each has a call of its own
                results += self._solve_in(len(mine), mine, rows[piece], check)
        return results

    def _task(self, instances: list[Instance]) -> Task:
        if not self.batched:
            return Task(*instances[0])
        scores = _stack([scores for scores, _ in instances])
        names = instances[0][1]
        context = {name: _stack([more[name] for _, more in instances]) for name in names}
        return Task(scores, context, len(instances))

    def _run(self, tasks: list[Task]) -> list[Any]:
        if self.workers is not None:
            return self.workers.run([_as_arrays(task) for task in tasks])
        return [_call(self.solve, index, task) for index, task in enumerate(tasks)]

    def _note(self, lost: Lost) -> None:
        """Counts what came to nothing, and says so the first, tenth, hundredth ... time."""
        self.counts[lost.name.lower()] += 1
        count = self.counts[lost.name.lower()]
        if count == 10 ** (len(str(count)) - 1):
            many = "an instance" if count == 1 else f"{count:,} instances so far"
            log.info("%s: %s %s; that counts as no answer.", self.owner, many, lost.value)


def _call(solve: Callable[..., Any], index: int, task: Task) -> Any:
    """What the solver returns in this process.

    Raises:
        TaskError: It raised.
    """
    try:
        return solve(task.scores, **task.context)
    except Exception as error:
        if is_out_of_memory(error):  # a population then goes on in smaller chunks
            raise
        raise TaskError(index) from error


def _on_gpu(instance: Instance) -> bool:
    """Whether looking an instance up would wait for the device."""
    scores, context = instance
    return any(isinstance(v, Tensor) and v.is_cuda for v in (scores, *context.values()))


def _as_array(value: Any) -> Any:
    """A tensor as numpy's array or scalar; both are what they were otherwise."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _as_arrays(task: Task) -> Task:
    context = {name: _as_array(value) for name, value in task.context.items()}
    return task._replace(scores=_as_array(task.scores), context=context)


def _stack(values: list[Any]) -> Any:
    return torch.stack(values) if isinstance(values[0], Tensor) else np.stack(values)


def _plain(result: Any) -> np.ndarray | None:
    """A copy of a solution, to keep; None of what is no solution."""
    try:
        array = np.array(_as_array(result))
    except (TypeError, ValueError):
        return None
    return array if array.dtype.kind in "biuf" else None
