"""What callbacks of `fit` are called with: a record, and the model that it is about."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from nestruct.errors import InputError
from nestruct.training.run import Record


class Event(dict[str, Any]):
    """A record of ``metrics.jsonl``, which has the model at hand and can stop the training.

    Args:
        record: The record; ``event["loss"]`` is an entry.
        model: The model, as it is at this step.
        step: Steps done.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> vae = nestruct.StructuredVAE(mlp(6, 4), mlp(4, 6), nestruct.Categorical(4))
        >>> nes = nestruct.NES(sigma=0.1, population_size=8)
        >>> adam = torch.optim.Adam(vae.parameters(), lr=0.01)
        >>> def callback(event):
        ...     if event.step == 5:
        ...         event.stop()
        >>> options = {"max_steps": 100, "callbacks": [callback], "progress": False}
        >>> result = nestruct.fit(vae, nes, adam, torch.ones(10, 6), **options)
        >>> result.reason, result.step
        ('stopped by a callback', 5)
    """

    def __init__(self, record: Record, *, model: nn.Module, step: int) -> None:
        super().__init__(record)
        self.model, self.step = model, step
        self.stopped = False

    def stop(self) -> None:
        """Ends the training before its next step, as an early stop does, in all processes."""
        self.stopped = True


Callback = Callable[[Event], Any]


def check_callbacks(callbacks: Any) -> None:
    """Raises unless it is a list of functions."""
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputError(
            f"callbacks must be a list of functions of an event, like [callback]; got "
            f"{callbacks!r}."
        )


def call(callbacks: Sequence[Callback], event: Event) -> None:
    """Calls them one after the other; an error says whose it is."""
    for callback in callbacks:
        try:
            callback(event)
        except Exception as error:
            error.add_note(f"This was raised by the callback {_name(callback)} at {_place(event)}.")
            raise


def _name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", type(callback).__qualname__)


def _place(event: Event) -> str:
    return f"step {event.step}, in the {event['split']} record"
