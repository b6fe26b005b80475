"""Paired bootstrap over test sentences: is one parser better than another on the same text?

P. Koehn, "Statistical Significance Tests for Machine Translation Evaluation", 2004: draw as many
sentences as there are, with replacement, and score both parsers on them; again and again. Words of
one sentence are not independent, sentences nearly are. What another seed of the training would
have given is not in the interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

RESAMPLES = 10_000
SEED = 0
_AT_ONCE = 500  # resamples; a row of weights per sentence each


@dataclass(frozen=True)
class Difference:
    """How much better one side scores than the other.

    Attributes:
        value: On the sentences as they are.
        low: Where the middle 95 % of the resamples begin; ``high``: where they end.
        share: Of resamples in which the first side is better; equal ones count half.
    """

    value: float
    low: float
    high: float
    share: float


def paired_bootstrap(
    first: Sequence[Sequence[int]],
    second: Sequence[Sequence[int]],
    counts: Sequence[int],
    *,
    num_resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Difference:
    """The difference of two shares of right words, each the mean over its runs.

    Args:
        first: For each run of one side, the right words of each sentence.
        second: The same of the other side.
        counts: Words of each sentence that count.
        num_resamples: How often sentences are drawn.
        seed: Of the draws.

    Example:
        >>> found = paired_bootstrap([[3, 2]], [[1, 2]], [4, 4])
        >>> found.value, found.low, found.high
        (0.25, 0.0, 0.5)
    """
    gain = np.mean(np.asarray(first, float), 0) - np.mean(np.asarray(second, float), 0)
    words = np.asarray(counts, float)
    total = words.sum()
    if not len(words) or total == 0:
        return Difference(0.0, 0.0, 0.0, 0.5)
    sums = _resampled(np.stack([gain, words], 1), num_resamples, seed)
    drawn = sums[:, 0] / np.maximum(sums[:, 1], 1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    # Sums of the same numbers in another order differ in their last bits.
    close = 1e-12 * (1 + np.abs(gain).sum())
    share = np.mean(sums[:, 0] > close) + np.mean(np.abs(sums[:, 0]) <= close) / 2
    return Difference(float(gain.sum() / total), float(low), float(high), float(share))


def _resampled(values: Any, num_resamples: int, seed: int) -> Any:
    """Sums over drawn sentences of values ``[sentences, columns]``: ``[resamples, columns]``."""
    times = _draws(len(values), num_resamples, seed)
    pieces = range(0, num_resamples, _AT_ONCE)
    return np.concatenate([times[k : k + _AT_ONCE].astype(float) @ values for k in pieces])


@lru_cache(maxsize=8)
def _draws(size: int, num_resamples: int, seed: int) -> Any:
    """How often each resample has each sentence; the same for all comparisons on a treebank."""
    generator = np.random.default_rng(seed)
    # A byte suffices: a sentence in 255 and more is drawn about once in the mean.
    times = np.empty((num_resamples, size), np.uint8)
    for start in range(0, num_resamples, _AT_ONCE):
        part = times[start : start + _AT_ONCE]
        drawn = generator.integers(0, size, part.shape)
        drawn += np.arange(len(part))[:, None] * size
        part[:] = np.bincount(drawn.ravel(), minlength=part.size).reshape(part.shape)
    return times
