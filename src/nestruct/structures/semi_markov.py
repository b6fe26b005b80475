"""Sequences cut into labelled segments."""

import functools

import numpy as np

from nestruct.checks import check_count
from nestruct.structures.dynamic_programme import DynamicProgramme
from nestruct.structures.recurrence import Recurrence


class SemiMarkov(DynamicProgramme):
    """Segments that cover n positions; ``scores [..., n, max_length, num_states]``.

    A part is a segment: (its last position, its length - 1, its state). The context ``lengths``
    counts positions. An instance of no positions has one member, without segments. (S. Sarawagi and
    W. Cohen, "Semi-Markov conditional random fields", 2004; here without transitions.)

    Example:
        >>> import torch, nestruct
        >>> scores = torch.tensor([[1.0, 0.0], [1.0, 3.0], [1.0, 0.0]])[..., None]
        >>> nestruct.SemiMarkov(num_states=1, max_length=2).argmax(scores)[..., 0]
        tensor([[0., 0.],
                [0., 1.],
                [1., 0.]])
    """

    def __init__(self, num_states: int, max_length: int) -> None:
        self.num_states = check_count("SemiMarkov", "num_states", num_states, 1)
        self.max_length = check_count("SemiMarkov", "max_length", max_length, 1)
        self.shape_in_words = f"[n, {max_length}, {num_states}] for n positions"

    def __repr__(self) -> str:
        return f"SemiMarkov({self.num_states}, {self.max_length})"

    def shape(self, *sizes: int) -> tuple[int, ...]:
        """``(n, max_length, num_states)`` for n positions."""
        return (sizes[0], self.max_length, self.num_states)

    def recurrence(self, *sizes: int) -> Recurrence:
        """The node t is the best way to cover the first t positions."""
        return _recurrence(self.max_length, self.num_states, *sizes)


@functools.lru_cache(maxsize=32)
def _recurrence(max_length: int, num_states: int, positions: int) -> Recurrence:
    part = np.arange(positions * max_length * num_states).reshape(positions, max_length, num_states)
    before = np.arange(positions)[:, None] - np.arange(max_length)  # where a segment begins
    first = np.maximum(before, -1).repeat(num_states, 1)  # -1: no edge
    levels = [([t + 1], first[t][None], -1, part[t].reshape(1, -1)) for t in range(positions)]
    return Recurrence((positions + 1,), part.size, levels, np.arange(positions + 1))
