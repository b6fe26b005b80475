"""Long work shows that it lives."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

_SILENCE = 10.0  # seconds of work after which a person wants to know that it goes on


@contextlib.contextmanager
def signs_of_life(say: Callable[[], str | None]) -> Iterator[None]:
    """Prints on standard error, now and then, what ``say`` gives; nothing where it gives None."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SILENCE):
            text = say()
            if text is not None:
                print(text, file=sys.stderr, flush=True)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
