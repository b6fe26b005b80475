"""Runs nestruct on crafted files, each time in a child of its own, and tells what it did.

``python harmless.py`` reads a JSON list of jobs from standard input and writes one JSON line for
each. A job has ``words``, the words of a command line, or of ``load``. Children are forked from
this process, which has imported everything: one that is killed, or that crashes, hurts nobody.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

LIMIT = 30.0  # seconds that a job may take
MEMORY = 6 * 2**30  # bytes that it may allocate


def main() -> None:
    import torch

    import nestruct
    from nestruct.cli import main as command
    from nestruct.errors import NestructError

    torch.set_num_threads(1)  # a thread pool would not survive the fork

    def act(words: list[str]) -> None:
        if words[0] != "load":
            command(words)
        try:
            nestruct.load(words[1])
        except NestructError as error:
            print(f"nestruct: {error}", file=sys.stderr)
            sys.exit(1)

    jobs = json.load(sys.stdin)
    for words in jobs.pop(0):  # kernels are loaded once
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
            act(words)
    for job in jobs:
        print(json.dumps(_watched(act, job)), flush=True)


def _watched(act, job: dict) -> dict:
    folder = Path(job["folder"])
    said = folder / "said.txt"
    started = time.monotonic()
    child = os.fork()
    if not child:
        try:
            _confine(said, folder)
            act(job["words"])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 70
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    status: int | None = None
    while status is None and time.monotonic() - started < LIMIT:
        done, found = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(found) if done else None
        time.sleep(0.0005)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return job | {
        "status": status,
        "said": said.read_text(errors="replace"),
        "seconds": time.monotonic() - started,
    }


def _confine(said: Path, folder: Path) -> None:
    """What the child says goes to a file, and it can have no more than its share of memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("default")  # as on the command line
    os.chdir(folder)
    sys.path.insert(0, str(folder))  # as ``python -m`` does
    os.environ |= {"TMPDIR": str(folder / "tmp"), "NESTRUCT_CACHE": str(folder / "cache")}
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(descriptor, 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main()
