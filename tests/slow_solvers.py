"""Solvers for worker processes, in a file of their own: workers import it, and no torch with it."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

CRASH, HANG, RAISE, ODD = 100.0, 200.0, 300.0, 400.0  # what the first score of an instance asks for


class OddError(Exception):
    """One that cannot be pickled and read back."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"{why} {row}")


def positive(scores, shift=0.0):
    """One instance. Edits what it is given. The shift may ask for something too."""
    asked = (scores[0], shift)
    if CRASH in asked:
        os.kill(os.getpid(), signal.SIGKILL)
    if HANG in asked:
        time.sleep(600)
    if RAISE in asked:
        raise ZeroDivisionError("no division\nby zero.")
    if ODD in asked:
        raise OddError(3, "odd")
    scores += shift
    return scores > 0


def all_positive(scores):
    """All rows at once, numpy or torch."""
    first = scores[:, 0]
    if (first == CRASH).any():
        os.kill(os.getpid(), signal.SIGKILL)
    if (first == HANG).any():
        time.sleep(600)
    if (first == RAISE).any():
        raise ZeroDivisionError("no division by zero")
    return scores > 0


def crash_once(scores, file):
    """Ends its process the first time that it meets an instance; ``file`` numbers a file for it."""
    path = Path(os.environ["SLOW_SOLVERS_FOLDER"]) / str(int(file))
    if not path.exists():
        path.write_text("met", encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)
    return scores > 0


def surroundings(scores):
    """Whether torch is there, how many threads there are, and the process's number in bits."""
    bits = [int(bit) for bit in f"{os.getpid():024b}"]
    return np.array(["torch" in sys.modules, os.environ["OMP_NUM_THREADS"] == "1", *bits])


def note_and_hang(scores):
    """Writes down the process's number, then takes ten minutes."""
    Path(os.environ["SLOW_SOLVERS_FOLDER"], str(os.getpid())).touch()
    time.sleep(600)
    return scores > 0


def needs_its_file(scores):
    """One that no worker finds: see `test_solver_pool.py`."""
    return scores > 0
