"""Ctrl-C and termination as a question that the loop asks between steps."""

import contextlib
import signal
from collections.abc import Iterator


class Interrupt:
    """True once the process was asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    def __bool__(self) -> bool:
        return self.requested


@contextlib.contextmanager
def catch_interrupt(*, twice: bool) -> Iterator[Interrupt]:
    """Turns SIGINT and SIGTERM into a flag while the block runs.

    Args:
        twice: Whether a second Ctrl-C stops at once. Under torchrun it must not: the terminal and
            the launcher both pass the first one on.
    """
    interrupt = Interrupt()

    def ask(number: int, frame: object) -> None:
        if interrupt.requested and twice and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.requested = True

    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, ask)
    except ValueError:  # not in the main thread: whoever started it decides
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
