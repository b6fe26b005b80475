"""Does a solver maximise, or was it given scores for costs?

Of two instances with the same members each answer must be the better one for its own scores:

    (h1 - h2) . (z1 - z2) >= 0.

For a solver that minimises it is the other way round, for every two answers that differ. So a few
of them tell the two apart, and a heuristic, which is wrong now and then, is told from both.
"""

import torch
from torch import Tensor

_ROWS = 64  # of a call that are looked at
_ENOUGH = 5  # pairs of answers that differ
_ROUNDING = 1e-6  # of the scores: a solver that adds them in float32 may err by that much


class Direction:
    """Looks at what a solver returns until it is known to maximise, or seen to minimise."""

    def __init__(self) -> None:
        self._rising = self._falling = 0

    @property
    def is_known(self) -> bool:
        """Whether some answers were better for their own scores: that is no minimiser."""
        return self._rising > 0

    def minimises(self, scores: Tensor, z: Tensor, repeats: int) -> bool:
        """Whether all answers so far, and enough of them, were worse for their own scores.

        Args:
            scores: ``[rows, ...]``.
            z: The answers; rows of NaN have none.
            repeats: After how many rows the same instance comes again, with other scores.
        """
        rows = min(len(z), _ROWS + repeats)
        if self.is_known or rows <= repeats:
            return False
        scores, z = scores[:rows].flatten(1).double(), z[:rows].flatten(1).double()
        one, other, change = scores[repeats:], scores[:-repeats], z[repeats:] - z[:-repeats]
        gains = torch.where(change == 0, 0.0, (one - other) * change).sum(1)
        sizes = torch.where(change == 0, 0.0, (one.abs() + other.abs()) * change.abs()).sum(1)
        # NaN where there is no answer, or a score is infinite: neither of the two is counted then.
        self._rising += int((gains > _ROUNDING * sizes).sum())
        self._falling += int((gains < -_ROUNDING * sizes).sum())
        return not self.is_known and self._falling >= _ENOUGH
