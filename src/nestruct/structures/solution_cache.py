"""Solutions that are kept: by the exact bits of an instance, and by its context alone.

The first kind is looked up instead of solving the same instance again. The second, the solutions
that an instance's context has had so far, stands in for a share of the calls in training: the pool
of M. Mulamba et al., "Contrastive Losses and Solution Caching for Predict-and-Optimize", 2021.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

Key = bytes
_OVERHEAD = 250  # bytes of a key, an array's header and their places in a dictionary
MOST_SOLUTIONS = 64  # of one context

_looks_up: ContextVar[bool] = ContextVar("nestruct_looks_up", default=True)
_estimating: ContextVar[bool] = ContextVar("nestruct_estimating", default=False)


@contextmanager
def estimating(value: bool = True) -> Iterator[None]:
    """Within this context an argmax serves a gradient, at scores that will not come again.

    `SolutionPool` may stand in for it, and `SolutionCache` does not keep it. With False inside of
    that: for what must be exact and comes again, such as the solution at true costs.
    """
    token = _estimating.set(value)
    try:
        yield
    finally:
        _estimating.reset(token)


def is_estimating() -> bool:
    """Whether an argmax serves a gradient."""
    return _estimating.get()


@contextmanager
def without_lookups() -> Iterator[None]:
    """Within this context every instance is solved and none is kept: for what is timed."""
    token = _looks_up.set(False)
    try:
        yield
    finally:
        _looks_up.reset(token)


def looks_up() -> bool:
    """Whether solutions may be looked up."""
    return _looks_up.get()


def digest(arrays: Mapping[str, Any]) -> Key:
    """What tells named arrays apart: their names, types, shapes and bits."""
    summary = hashlib.blake2b(digest_size=16)
    for name, value in sorted(arrays.items()):
        array = np.ascontiguousarray(value)
        summary.update(f"{name} {array.dtype.str} {np.shape(value)} ".encode())
        summary.update(array.tobytes())
    return summary.digest()


class SolutionCache:
    """Solutions by instance; the ones longest unused go first.

    Args:
        most_bytes: How much they may take.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._solutions: OrderedDict[Key, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._solutions)

    def get(self, key: Key) -> np.ndarray | None:
        """A copy of the solution; None if it is not there."""
        with self._lock:
            solution = self._solutions.get(key)
            if solution is None:
                return None
            self._solutions.move_to_end(key)
            return solution.copy()

    def put(self, key: Key, solution: np.ndarray) -> None:
        """Keeps a solution, at the cost of others."""
        with self._lock:
            if key in self._solutions:
                return
            self._solutions[key] = solution
            self.bytes += solution.nbytes + _OVERHEAD
            while self.bytes > self.most_bytes:
                _, oldest = self._solutions.popitem(last=False)
                self.bytes -= oldest.nbytes + _OVERHEAD


class SolutionPool:
    """The latest different solutions of each context; contexts longest unused go first.

    Args:
        most_bytes: How much they may take.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._contexts: OrderedDict[Key, OrderedDict[bytes, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def best(self, context: Key, scores: np.ndarray) -> np.ndarray | None:
        """The solution with the largest ``scores . z``; None if there is none that is allowed."""
        with self._lock:
            known = self._contexts.get(context)
            if known is None:
                return None
            self._contexts.move_to_end(context)
            solutions = np.stack(list(known.values()))
        found = solutions.reshape(len(solutions), -1)
        scores = scores.reshape(-1).astype(np.float64)
        forbidden = scores == -np.inf
        values = found @ np.where(forbidden, 0.0, scores)
        values[(found[:, forbidden] != 0).any(1)] = -np.inf
        best = int(values.argmax())
        return None if values[best] == -np.inf else solutions[best]

    def put(self, context: Key, solution: np.ndarray) -> None:
        """Adds a solution to those of its context."""
        with self._lock:
            known = self._contexts.setdefault(context, OrderedDict())
            bits = solution.tobytes()
            self._contexts.move_to_end(context)
            if bits in known:
                known.move_to_end(bits)
                return
            known[bits] = solution
            self.bytes += 2 * solution.nbytes + _OVERHEAD
            if len(known) > MOST_SOLUTIONS:
                self._forget(known)
            while self.bytes > self.most_bytes:
                oldest, theirs = next(iter(self._contexts.items()))
                self._forget(theirs)
                if not theirs:
                    del self._contexts[oldest]

    def _forget(self, known: "OrderedDict[bytes, np.ndarray]") -> None:
        _, oldest = known.popitem(last=False)
        self.bytes -= 2 * oldest.nbytes + _OVERHEAD
