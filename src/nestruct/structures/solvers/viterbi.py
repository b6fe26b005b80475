"""Best sequence of states, where the states are many: Viterbi's algorithm, O(n K^2).

It computes what `best_derivation` computes for a chain's recurrence, to the last bit and with ties
broken alike. Lanes are the next states of one row instead of several rows, so that scores are read
where they lie; from 8 states on that is faster.
"""

import numpy as np

from nestruct.kernels import jit
from nestruct.structures.rows import BAD_LENGTH, NO_MEMBER, NOT_FINITE, OK


@jit
def viterbi(num_states, rows, goals, z, codes):
    """CPU kernel: ``rows [count, pairs * num_states**2]`` to 0/1 ``z``, one code per row."""
    area = num_states * num_states
    values = np.zeros((rows.shape[1] // area + 1, num_states))
    for row in range(rows.shape[0]):
        z[row] = 0
        if goals[row] < 0:
            codes[row] = BAD_LENGTH
            continue
        steps = goals[row] // (num_states + 1)
        if not all_below_infinity(rows[row, : steps * area]):
            codes[row] = NOT_FINITE
            continue
        for t in range(steps):
            best = values[t + 1]
            best[:] = -np.inf
            for i in range(num_states):
                value, at = values[t, i], t * area + i * num_states
                scores = rows[row, at : at + num_states]
                for j in range(num_states):
                    total = value + scores[j]
                    best[j] = total if total > best[j] else best[j]
        state = np.argmax(values[steps])
        codes[row] = OK if values[steps, state] > -np.inf else NO_MEMBER
        if codes[row] != OK:
            continue
        for t in range(steps - 1, -1, -1):
            top, before = -np.inf, 0
            for i in range(num_states):
                total = values[t, i] + rows[row, t * area + i * num_states + state]
                if total > top:
                    top, before = total, i
            z[row, t * area + before * num_states + state] = 1
            state = before


@jit
def all_below_infinity(scores):
    """Whether no score is NaN or +inf."""
    bad = 0
    for place in range(len(scores)):
        bad += 0 if scores[place] < np.inf else 1
    return bad == 0
