"""Processes of their own, forked from a server that has nestruct loaded.

A new interpreter works for some six seconds until nestruct trains; a fork works for none. They are
real processes: they are waited for, sent signals and killed. What they say is in two files.
"""

import multiprocessing
import os
import resource
import runpy
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from nestruct import cli

_SERVER = multiprocessing.get_context("forkserver")
# torch imports its compiler with the first optimizer.
_SERVER.set_forkserver_preload(["nestruct.cli", "torch._dynamo"])


class Forked:
    """A process that has begun to call a function.

    Args:
        function: Of a module that can be imported.
        *words: What it is given.
        said: What it prints goes to this path with the suffix ``.out``, errors to ``.err``.
    """

    def __init__(self, function: Any, *words: Any, said: Path) -> None:
        self._files = [said.with_suffix(suffix) for suffix in (".out", ".err")]
        files = [str(file) for file in self._files]
        self._process = _SERVER.Process(target=_call, args=(files, function, words))
        self._process.start()

    def poll(self) -> int | None:
        """Its status; that of a signal is negative, None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Waits until it has ended; its status."""
        self._process.join(240)
        status = self.poll()
        assert status is not None, "a process has not ended after four minutes"
        return status

    def send(self, number: int) -> None:
        """Sends a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kills it, if it still runs."""
        self._process.kill()
        self._process.join()

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._files[0].read_text()

    @property
    def errors(self) -> str:
        """What it has printed as errors."""
        return self._files[1].read_text()


class Command(Forked):
    """``nestruct WORDS``; a file of its may have so many bytes: a full disk, in effect."""

    def __init__(self, *words: object, said: Path, file_size: int | None = None) -> None:
        super().__init__(_command, [str(word) for word in words], file_size, said=said)


def run_on_ranks(processes: int, script: Path, *words: object) -> None:
    """Runs a script in so many processes, with the environment that torchrun gives them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    given = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            Forked(_rank, str(script), given, rank, processes, port, said=Path(folder, str(rank)))
            for rank in range(processes)
        ]
        try:
            until = time.monotonic() + 240
            while any(rank.poll() is None for rank in ranks) and time.monotonic() < until:
                # One that failed leaves the others waiting for it.
                assert not any(rank.poll() for rank in ranks), "\n".join(r.errors for r in ranks)
                time.sleep(0.01)
            assert [rank.poll() for rank in ranks] == [0] * processes
        finally:
            for rank in ranks:
                rank.kill()


def _call(files: list[str], function: Any, words: tuple[Any, ...]) -> None:
    for file, number in zip(files, (1, 2), strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    torch.set_num_threads(1)
    function(*words)


def _command(words: list[str], file_size: int | None) -> None:
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    cli.main(words)


def _rank(script: str, words: list[str], rank: int, processes: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")
