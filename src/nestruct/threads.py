"""Pools of Python threads for work that releases the GIL."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor


def thread_pool(size: int) -> ThreadPoolExecutor:
    """A pool of this many threads, kept for the life of the process."""
    return _pool(os.getpid(), size)


@functools.lru_cache(maxsize=8)
def _pool(pid: int, size: int) -> ThreadPoolExecutor:
    # Keyed by process: threads do not survive a fork (a DataLoader worker that calls a solver).
    return ThreadPoolExecutor(size, thread_name_prefix="nestruct")
