"""The paired bootstrap against cases whose answer is known."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from nestruct.reports.paper.bootstrap import _draws, paired_bootstrap


def test_all_resamples_of_three_sentences():
    """27 equally likely resamples: shares and ends of the interval by listing them."""
    first, second, counts = [3, 1, 4], [1, 2, 4], [4, 3, 5]
    drawn = []
    for sample in product(range(3), repeat=3):
        gain = sum(first[k] - second[k] for k in sample)
        drawn.append(gain / sum(counts[k] for k in sample))
    found = paired_bootstrap([first], [second], counts)
    assert found.value == pytest.approx(1 / 12)
    expected = np.mean([(d > 0) + (d == 0) / 2 for d in drawn])
    assert found.share == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 10_000))
    # Both ends are values that more than 2.5 % of the resamples have.
    assert (found.low, found.high) == pytest.approx((min(drawn), max(drawn)))


def test_many_sentences_are_nearly_normal():
    generator = np.random.default_rng(3)
    counts = np.full(900, 10)
    gain = generator.integers(-2, 4, 900)
    found = paired_bootstrap([(5 + gain).tolist()], [[5] * 900], counts.tolist())
    error = gain.std() / np.sqrt(900) / 10
    assert found.value == pytest.approx(gain.mean() / 10)
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.08 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.08 * error)
    assert found.share == 1.0


def test_pairing_counts():
    """One word more in every sentence is certain, however much sentences differ."""
    counts = list(range(2, 60))
    second = [count // 2 for count in counts]
    found = paired_bootstrap([[right + 1 for right in second]], [second], counts)
    assert found.low > 0
    assert found.share == 1.0


def test_sides_are_means_over_their_runs():
    counts = [5, 5, 5, 5]
    one, two, other = [1, 2, 3, 4], [3, 2, 3, 0], [0, 1, 2, 3]
    mean: Any = [[(a + b) / 2 for a, b in zip(one, two, strict=True)]]
    assert paired_bootstrap([one, two], [other], counts) == paired_bootstrap(mean, [other], counts)


def test_equal_sides_and_no_words():
    same = paired_bootstrap([[1, 2], [2, 1]], [[2, 1], [1, 2]], [3, 3])
    assert (same.value, same.low, same.high, same.share) == (0, 0, 0, 0.5)
    assert paired_bootstrap([[]], [[]], []).share == 0.5
    assert paired_bootstrap([[0]], [[0]], [0]).value == 0


def test_draws_depend_on_the_seed_only():
    words = [10, 20, 30, 40]
    first = paired_bootstrap([[5, 9, 20, 21]], [[4, 10, 18, 22]], words)
    _draws.cache_clear()
    assert paired_bootstrap([[5, 9, 20, 21]], [[4, 10, 18, 22]], words) == first
    other = paired_bootstrap([[5, 9, 20, 21]], [[4, 10, 18, 22]], words, seed=1)
    assert other.value == first.value
    assert other != first
    assert (_draws(300, 1000, 0).sum(1) == 300).all()
