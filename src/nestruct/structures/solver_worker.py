"""A worker of a `BlackBox`: this file is run as a program, in a fresh interpreter.

It imports nothing but the standard library, so a worker with a numpy solver starts in a fifth of a
second; torch and nestruct are imported where the solver's own file does. Messages are pickled:
parent and worker are one program, and nothing of it is ever a file.
"""

import contextlib
import importlib.util
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    """Loads the solver, then solves one task after the other until the parent goes."""
    # Ctrl-C and termination are for the parent to handle: it finishes its step first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, messages), daemon=True).start()
    surroundings, file, payload, backend = pickle.loads(messages.get())
    try:
        spawn.prepare(surroundings)  # sys.path, and the parent's script where the solver is in it
        solve = _load(payload, *file)
        if backend == "torch":
            import torch  # noqa: F401 (now, so that no instance waits for it)
    except BaseException as error:
        connection.send_bytes(pickle.dumps(("refused", *_describe(error))))
        return
    connection.send_bytes(pickle.dumps(("ready",)))
    while True:
        connection.send_bytes(_answer(solve, backend, messages.get()))


def _load(payload: bytes, name: str, path: str | None) -> Callable[..., Any]:
    """The solver; where no module has the name of its own, that one's file is read."""
    try:
        return pickle.loads(payload)
    except ModuleNotFoundError:
        spec = importlib.util.spec_from_file_location(name, path) if path else None
        if spec is None or spec.loader is None or name in sys.modules:
            raise
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return pickle.loads(payload)


def _read(connection: Connection, messages: "queue.SimpleQueue[bytes]") -> None:
    """Takes messages while the solver runs; ends this process, and what it started, at the end.

    The end is a parent that has closed the connection, or was killed.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv_bytes())
    os.killpg(os.getpid(), signal.SIGKILL)


def _answer(solve: Callable[..., Any], backend: str, message: bytes) -> bytes:
    """What the solver returned or raised, as a message."""
    scores, context = pickle.loads(message)
    try:
        if backend == "torch":
            import torch

            scores = torch.as_tensor(scores)
            context = {name: torch.as_tensor(value) for name, value in context.items()}
        result = solve(scores, **context)
        if "torch" in sys.modules and isinstance(result, sys.modules["torch"].Tensor):
            result = result.detach().cpu()
            if result.dtype is sys.modules["torch"].bfloat16:  # which numpy does not have
                result = result.float()
            result = result.numpy()
        return pickle.dumps(("done", result), protocol=5)
    except Exception as error:
        return pickle.dumps(("raised", *_describe(error)))


def _describe(error: BaseException) -> tuple[bytes | None, str]:
    """An exception, pickled where that is possible, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        payload = pickle.dumps(error)
        pickle.loads(payload)
    except Exception:
        return None, text
    return payload, text


if __name__ == "__main__":
    main()
