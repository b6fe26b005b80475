"""Joining the processes that torchrun started, and leaving them.

torchrun restarts all processes when one fails, but the store through which they find each other
outlives them: torch's own ``init_process_group`` then reads the addresses of processes that are
gone, and hangs. Here every start agrees on a name of its own for its keys.
"""

import contextlib
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from nestruct.errors import InputError, NestructError
from nestruct.processes import is_lost_process

COLLECTIVE_TIMEOUT = 600.0
_JOINING = 600.0  # seconds: processes may start far apart, on a busy node
_LEAVING = 10.0  # seconds
_LOOK = 0.02  # seconds between looks at the store
_WATCH = 1.0  # seconds between looks at the parent


class LostProcessError(NestructError):
    """Another process of this run ended, or hangs."""


@contextlib.contextmanager
def join_processes(device: str = "auto", *, timeout: float = COLLECTIVE_TIMEOUT) -> Iterator[str]:
    """Shares the work of the block with the other processes that torchrun started.

    Without torchrun nothing happens.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``. GPUs talk by nccl, one for each process, and
            processors by gloo.
        timeout: How many seconds a process waits for the others before it takes one for hanging.

    Yields:
        The device of this process.

    Raises:
        LostProcessError: Another process ended or hangs, so that the block cannot go on.

    Example:
        >>> with join_processes("cpu") as device:
        ...     device
        'cpu'
    """
    if not timeout > 0:
        raise InputError(f"The time limit on collectives must be above 0 seconds, got {timeout}.")
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield device
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(torch.device(device))
    agent = os.getppid()
    _stop_with_agent(agent)
    try:
        store, rank, world = _agree()
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout),
        )
        yield device
        if os.getppid() == agent or not _agent_has_store():
            _leave_together(store, rank, world)
    except RuntimeError as error:
        if not is_lost_process(error):
            raise
        late = re.search("timed? ?out", str(error), re.IGNORECASE)
        what = f"did not answer for {timeout:g} seconds (--collective-timeout)"
        raise LostProcessError(
            f"Another process of this run {what if late else 'ended'}, so this one stops: "
            "torchrun --max-restarts, or the same command with --continue, goes on from the last "
            "checkpoint."
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _agree() -> tuple[dist.Store, int, int]:
    """A store whose keys only the processes of this start use; this one's rank, and their number.

    torchrun's count of restarts does not name a start: each of its agents has its own. So rank 0
    makes up a name and tells it to those that greet it. It may answer a process that is gone, too:
    it goes on until each rank has confirmed the name.
    """
    shared, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=_JOINING)))
    shared = dist.PrefixStore("nestruct", shared)
    token, deadline = uuid.uuid4().hex, time.monotonic() + _JOINING
    if rank:
        shared.set(f"hello/{rank}", token)
        if not _wait_for(shared, [f"name/{token}"], _JOINING):
            raise _missing(world)
        token = shared.get(f"name/{token}").decode()
        shared.set(f"{token}/{rank}", "here")
    missing = set() if rank else set(range(1, world))
    while missing:
        for other in sorted(missing):
            if shared.check([f"hello/{other}"]):
                shared.set(f"name/{shared.get(f'hello/{other}').decode()}", token)
            if shared.check([f"{token}/{other}"]):
                missing.remove(other)
        if time.monotonic() > deadline:
            raise _missing(world)
        time.sleep(_LOOK)
    return dist.PrefixStore(token, shared), rank, world


def _leave_together(store: dist.Store, rank: int, world: int) -> None:
    """Returns once all are here: who leaves early may cut off what another has not read yet.

    Rank 0 is the last one, as it may have the store. Nobody waits for long: a process that ended
    meanwhile has no share in the work that is left.
    """
    others = range(1, world)
    with contextlib.suppress(RuntimeError):
        store.set(f"done/{rank}", "")
        if rank:
            _wait_for(store, ["all done"], _LEAVING)
            store.set(f"gone/{rank}", "")
        elif _wait_for(store, [f"done/{other}" for other in others], _LEAVING):
            store.set("all done", "")
            _wait_for(store, [f"gone/{other}" for other in others], _LEAVING)


def _wait_for(store: dist.Store, keys: Sequence[str], seconds: float) -> bool:
    """Whether the store has all keys by then; torch's own wait prints its stack where it fails."""
    deadline = time.monotonic() + seconds
    while keys and not store.check(list(keys)):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK)
    return True


def _stop_with_agent(agent: int) -> None:
    """Sends SIGTERM to this process once torchrun's agent, which started it, is gone."""

    def watch() -> None:
        while os.getppid() == agent:
            time.sleep(_WATCH)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _agent_has_store() -> bool:
    """Whether the processes meet at a store of torchrun's, not of rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def _missing(world: int) -> LostProcessError:
    return LostProcessError(
        f"Not all {world} processes of this run started within {_JOINING:g} seconds."
    )
