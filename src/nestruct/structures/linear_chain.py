"""Sequences of states: taggers, hidden Markov models, conditional random fields."""

import functools
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.structures.dynamic_programme import DynamicProgramme
from nestruct.structures.recurrence import Kernels, Recurrence
from nestruct.structures.relaxations.forward_backward import forward_backward
from nestruct.structures.solvers.viterbi import viterbi

_MANY_STATES = 5  # from so many on kernels of its own are faster


class LinearChain(DynamicProgramme):
    """A state for each of n positions; ``scores [..., n-1, num_states, num_states]`` are pairs.

    A part is (position, its state, the next position's state), so a member has n - 1 of them. The
    context ``lengths`` counts positions, two or more. `pair_scores` folds in scores of single
    states.

    Example:
        >>> import torch, nestruct
        >>> chain = nestruct.LinearChain(2)
        >>> states = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> chain.argmax(chain.pair_scores(states))  # states 0, 1, 1
        tensor([[[0., 1.],
                 [0., 0.]],
        <BLANKLINE>
                [[0., 0.],
                 [0., 1.]]])
    """

    length_axes = (("lengths", 0, -1),)

    def __init__(self, num_states: int) -> None:
        self.num_states = check_count("LinearChain", "num_states", num_states, 1)
        self.shape_in_words = f"[n-1, {num_states}, {num_states}] for n >= 2 positions"

    def __repr__(self) -> str:
        return f"LinearChain({self.num_states})"

    def shape(self, *sizes: int) -> tuple[int, ...]:
        """``(n - 1, num_states, num_states)`` for n positions."""
        return (sizes[0] - 1, self.num_states, self.num_states)

    def recurrence(self, *sizes: int) -> Recurrence:
        """Viterbi's: the node (t, k) is the best way to state k at position t."""
        return _recurrence(self.num_states, *sizes)

    @staticmethod
    def pair_scores(
        states: Tensor, transitions: Tensor | None = None
    ) -> Float[Tensor, "*batch pairs states states"]:
        """Scores of pairs from scores of single states, and of transitions if there are any.

        Args:
            states: ``[..., n, num_states]``.
            transitions: From a state to the next: ``[..., num_states, num_states]``, or
                ``[..., n-1, num_states, num_states]``. With n - 1 examples the first of these
                could be the second: write ``[..., 1, num_states, num_states]`` then.
        """
        if not isinstance(states, Tensor) or states.dim() < 2:
            raise InputError(
                "LinearChain.pair_scores: states must be a tensor [..., n, num_states], got "
                f"{_kind(states)}."
            )
        if states.shape[-2] < 2:
            raise InputError(
                "LinearChain: a chain of one position has no pairs; use Categorical for it."
            )
        pairs = states[..., 1:, None, :]
        first = torch.zeros_like(states[..., 1:, :, None])
        first = torch.cat([states[..., :1, :, None], first[..., 1:, :, :]], -3)
        pairs = pairs + first
        return pairs if transitions is None else pairs + _by_pair(transitions, pairs.shape)


def _by_pair(transitions: Any, pairs: torch.Size) -> Tensor:
    """Transitions with an axis of positions, as long as that of the pairs or 1."""
    if isinstance(transitions, Tensor) and transitions.dim() >= 2:
        found = transitions
        if found.dim() < len(pairs) and found.shape[-3:-2] != pairs[-3:-2]:
            found = found[..., None, :, :]
        lead = zip(reversed(found.shape[:-2]), reversed(pairs[:-2]), strict=False)
        fits = found.dim() <= len(pairs) and all(own in (1, size) for own, size in lead)
        if fits and found.shape[-2:] == pairs[-2:]:
            return found
    raise InputError(
        "LinearChain.pair_scores: transitions must be a tensor [..., num_states, num_states] or "
        f"[..., n-1, num_states, num_states] that fits pairs of shape {tuple(pairs)}, got "
        f"{_kind(transitions)}."
    )


def _kind(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


@functools.lru_cache(maxsize=32)
def _recurrence(num_states: int, positions: int) -> Recurrence:
    node = np.arange(positions * (num_states + 1)).reshape(positions, num_states + 1)
    part = np.arange((positions - 1) * num_states**2).reshape(-1, num_states, num_states)
    levels = [(node[t, :-1], node[t - 1, :-1], -1, part[t - 1].T) for t in range(1, positions)]
    levels.append((node[1:, -1], node[1:, :-1], -1, -1))  # a chain that ends at t, in any state
    goals = [-1, -1, *node[1:, -1]]
    if num_states < _MANY_STATES:
        return Recurrence(node.shape, part.size, levels, goals)
    own = Kernels(
        functools.partial(viterbi, num_states), functools.partial(forward_backward, num_states)
    )
    return Recurrence(node.shape, part.size, levels, goals, kernels=own)
