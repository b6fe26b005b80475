"""Sums over sequences of states, where the states are many: the forward-backward algorithm.

It computes what `inside_outside` computes for a chain's recurrence, with the same formulas. Lanes
are the next states of one row. The chance p of each state before a next one is computed once, with
one exponential per pair, and kept for the way down.
"""

import functools

import numpy as np

from nestruct.kernels import jit
from nestruct.structures.relaxations.exponential import exponentiate
from nestruct.structures.solvers.viterbi import all_below_infinity

# Of numbers that are all finite: several partial sums at a time, which is twice as fast.
sums_in_any_order = functools.partial(jit, fastmath=True)


@jit
def forward_backward(num_states, rows, goals, slopes, out, values):
    """CPU kernel; what is asked shows in the shapes, as in `inside_outside`."""
    area = num_states * num_states
    most = rows.shape[1] // area
    chances, means = np.empty((most, area)), np.zeros((most + 1, num_states))
    inside, work = np.empty(num_states), np.empty((3, num_states))
    share, pull = np.empty(num_states), np.zeros(num_states)
    for row in range(rows.shape[0]):
        out[row] = 0
        steps = max(goals[row], 0) // (num_states + 1)
        scores = rows[row, : steps * area]
        if goals[row] < 0 or not all_below_infinity(scores):
            values[row] = np.nan
            continue
        inside[:] = 0.0
        for t in range(steps):
            _step(num_states, scores[t * area : (t + 1) * area], inside, work, chances[t])
        top, total = inside.max(), 0.0
        for j in range(num_states):
            share[j] = np.exp(inside[j] - top)
            total += share[j]
        values[row] = top + np.log(total)
        if out.shape[1] == 0:
            continue
        share /= total
        if slopes.shape[1] == 0:
            for t in range(steps - 1, -1, -1):
                _share_out(num_states, chances[t], share, inside, out[row, t * area :])
            continue
        means[0] = 0.0
        for t in range(steps):
            _mean(num_states, chances[t], slopes[row, t * area :], means[t], means[t + 1])
        pull[:] = share * (means[steps] - (share * means[steps]).sum())
        for t in range(steps - 1, -1, -1):
            g, found = slopes[row, t * area :], out[row, t * area :]
            _pull(num_states, chances[t], g, means[t], means[t + 1], share, pull, work, found)


@jit
def _step(num_states, scores, inside, work, chances):
    """Moves the sums over all ways to a state one position on; ``chances`` of the state before."""
    top, scale = work[0], work[1]
    top[:] = -np.inf
    for i in range(num_states):
        value, at = inside[i], i * num_states
        for j in range(num_states):
            total = value + max(scores[at + j], -1e30)  # FORBIDDEN
            chances[at + j] = total
            top[j] = total if total > top[j] else top[j]
    for i in range(num_states):
        at = i * num_states
        for j in range(num_states):
            chances[at + j] -= top[j]
    exponentiate(chances)
    scale[:] = 0.0
    for i in range(num_states):
        at = i * num_states
        for j in range(num_states):
            scale[j] += chances[at + j]
    for j in range(num_states):
        inside[j] = top[j] + np.log(scale[j])
        scale[j] = 1.0 / scale[j]
    for i in range(num_states):
        at = i * num_states
        for j in range(num_states):
            chances[at + j] *= scale[j]


@sums_in_any_order
def _share_out(num_states, chances, share, before, found):
    """Hands the share of each next state on to those before; the pairs' go to ``found``, if any."""
    for i in range(num_states):
        at, total = i * num_states, 0.0
        for j in range(num_states):
            both = chances[at + j] * share[j]
            total += both
            chances[at + j] = both
        before[i] = total
    if len(found) > 0:
        for pair in range(num_states * num_states):
            found[pair] = chances[pair]
    share[:] = before


@jit
def _mean(num_states, chances, slopes, before, after):
    """Moves the mean slope of all ways to a state one position on."""
    after[:] = 0.0
    for i in range(num_states):
        value, at = before[i], i * num_states
        for j in range(num_states):
            after[j] += chances[at + j] * (value + slopes[at + j])


@sums_in_any_order
def _pull(num_states, chances, slopes, before, after, share, pull, work, found):
    """The derivative by each pair, and ``pull`` and ``share`` moved one position back."""
    constant, pull_before, share_before = work[0], work[1], work[2]
    for j in range(num_states):
        constant[j] = pull[j] - share[j] * after[j]
    for i in range(num_states):
        value, at = before[i], i * num_states
        total, shares = 0.0, 0.0
        for j in range(num_states):
            both = chances[at + j] * share[j]
            passed = chances[at + j] * constant[j] + both * (value + slopes[at + j])
            found[at + j] = passed
            total += passed
            shares += both
        pull_before[i] = total
        share_before[i] = shares
    pull[:] = pull_before
    share[:] = share_before
