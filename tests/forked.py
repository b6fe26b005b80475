"""Commands of nestruct as processes of their own, forked from a server that has it all loaded.

A new interpreter works for some six seconds until nestruct trains; a fork works for none. They are
real processes: they are waited for, sent signals and killed. What they say is in two files.
"""

import multiprocessing
import os
import resource
import sys
from pathlib import Path

import torch

from nestruct import cli

_SERVER = multiprocessing.get_context("forkserver")
# torch imports its compiler with the first optimizer; the others load parts when a run needs them.
_SERVER.set_forkserver_preload(["nestruct.cli", "nestruct.training.recipes", "torch._dynamo"])


class Command:
    """``nestruct WORDS`` in a process that has begun.

    Args:
        *words: The verb and what follows it.
        said: Its output goes to this path with the suffix ``.out``, its errors to ``.err``.
        file_size: The most bytes that a file of its may have; a full disk, in effect.
    """

    def __init__(self, *words: object, said: Path, file_size: int | None = None) -> None:
        self._files = [said.with_suffix(suffix) for suffix in (".out", ".err")]
        given = [str(word) for word in words], [str(file) for file in self._files], file_size
        self._process = _SERVER.Process(target=_run, args=given)
        self._process.start()

    def poll(self) -> int | None:
        """Its status; that of a signal is negative, None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Waits until it has ended; its status."""
        self._process.join(240)
        status = self.poll()
        assert status is not None, "a command has not ended after four minutes"
        return status

    def send(self, number: int) -> None:
        """Sends a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._files[0].read_text()

    @property
    def errors(self) -> str:
        """What it has printed as errors."""
        return self._files[1].read_text()


def _run(words: list[str], files: list[str], file_size: int | None) -> None:
    for file, number in zip(files, (1, 2), strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    torch.set_num_threads(1)
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    cli.main(words)
