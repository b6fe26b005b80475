"""Sums over k-subsets on the CPU, without a logarithm for each of n x k values.

With w_i the exponential of item i's score and E[i, j] the sum over j-subsets of the first i items,
all that is kept is the ratio of neighbours, r_j = E[i, j] / E[i, j-1]. The next item moves it by
additions, products and quotients of positive numbers, so that no digit is lost:

    r_j  becomes  (r_j + w) r_{j-1} / (r_{j-1} + w),       p[i, j]  =  w / (w + r_j),

and p is the chance that item i is one of j, which all that follows is made of. A ratio is about as
large as a weight, so float64 holds it where E itself would overflow. The formulas on the way down
are those of `inside_outside`, for a programme of two edges per node; they are linear in n k.

Weights far from the threshold between the k-th and the next item are moved to 300 beside it: such
an item is in or out with a chance of 1 - exp(-300) at least, so no result changes.
"""

import numpy as np

from nestruct.kernels import LANES, jit

_WIDEST = 300.0  # of scores on either side of the threshold
_TINY = 1e-307


@jit
def subset_sums(k, rows, goals, slopes, out, values):
    """CPU kernel; what is asked shows in the shapes, as in `inside_outside`."""
    count, n = rows.shape
    backward, down = slopes.shape[1] > 0, out.shape[1] > 0
    weight, slope = np.zeros((n, LANES)), np.zeros((n, LANES))
    chance = np.empty((n, k + 1, LANES))
    excess = np.empty((n, k + 1, LANES) if backward else (1, 1, LANES))
    ratio, mean = np.empty((k + 1, LANES)), np.empty((k + 1, LANES))
    share, pull = np.empty((k + 1, LANES)), np.empty((k + 1, LANES))
    for start in range(0, count, LANES):
        lanes = min(LANES, count - start)
        for lane in range(lanes):
            values[start + lane] = _weigh(k, rows[start + lane], weight[:, lane])
            if backward:
                slope[:, lane] = slopes[start + lane]
        _chances(k, weight, ratio, chance, values[start : start + lanes])
        if not down:
            continue
        if backward:
            mean[:] = 0.0
            for i in range(n):
                low, high = _orders(i, n, k)
                for j in range(high, low - 1, -1):
                    for lane in range(LANES):
                        more = mean[j - 1, lane] + slope[i, lane] - mean[j, lane]
                        excess[i, j, lane] = more
                        mean[j, lane] += chance[i, j, lane] * more
        share[:], pull[:] = 0.0, 0.0
        share[k] = 1.0
        for i in range(n - 1, -1, -1):
            low, high = _orders(i, n, k)
            found = weight[i]  # no longer needed
            found[:] = 0.0
            for j in range(low, high + 1):
                for lane in range(LANES):
                    p = chance[i, j, lane]
                    taken = share[j, lane] * p
                    share[j, lane] -= taken
                    share[j - 1, lane] += taken
                    if backward:
                        taken = p * pull[j, lane] + taken * (1 - p) * excess[i, j, lane]
                        pull[j, lane] -= taken
                        pull[j - 1, lane] += taken
                    found[lane] += taken
            for lane in range(lanes):
                out[start + lane, i] = found[lane]


@jit
def subset_draws(k, rows, uniform, z, values):
    """CPU kernel: one exact draw per row, item by item from the last, given how many are due."""
    count, n = rows.shape
    weight = np.zeros((n, LANES))
    chance, ratio = np.empty((n, k + 1, LANES)), np.empty((k + 1, LANES))
    for start in range(0, count, LANES):
        lanes = min(LANES, count - start)
        for lane in range(lanes):
            values[start + lane] = _weigh(k, rows[start + lane], weight[:, lane])
        _chances(k, weight, ratio, chance, values[start : start + lanes])
        for lane in range(lanes):
            due = k
            for i in range(n - 1, -1, -1):
                take = due > 0 and uniform[start + lane, i] < chance[i, due, lane]
                z[start + lane, i] = 1.0 if take else 0.0
                due -= 1 if take else 0


@jit
def _orders(i, n, k):
    """The least and the most of the first i + 1 items that a k-subset has, but no less than 1."""
    return max(1, k - (n - 1 - i)), min(k, i + 1)


@jit
def _weigh(k, scores, weight):
    """Fills in the weights of a row; what the log-partition is more than that of the weights.

    NaN where a score is no number, hugely negative with fewer than k items; weights are 0 then.
    """
    n, least, most, allowed = len(scores), np.inf, -np.inf, 0
    weight[:] = 0.0
    for score in scores:
        if not score < np.inf:
            return np.nan
        if score > -1e29:  # not FORBIDDEN
            allowed += 1
            least, most = min(least, score), max(most, score)
    if allowed < k:
        return -1e30
    if allowed == 0:
        return 0.0
    middle, more = (least + most) / 2, 0.0
    wide = most - least > 2 * _WIDEST
    if wide:
        order = np.sort(scores)
        middle = order[n - 1] if k == 0 else order[n - k]
        if 0 < k < allowed:
            middle = (order[n - k] + order[n - k - 1]) / 2
        for i in range(n - k, n):
            more += max(order[i] - middle - _WIDEST, 0.0)
    for i in range(n):
        if scores[i] > -1e29:
            weight[i] = np.exp(min(max(scores[i] - middle, -_WIDEST), _WIDEST))
    return more + k * middle


@jit
def _chances(k, weight, ratio, chance, values):
    """Fills in ``chance[i, j]``, of item i among j of the first i + 1; adds to the log-partition.

    That is the product of the first k weights, over the chance of each later item to be left out.
    """
    n, width = weight.shape
    keep, product, seen = np.empty(width), np.ones(width), np.zeros(width, np.int64)
    ratio[:] = 0.0
    for i in range(n):
        low, high = _orders(i, n, k)
        chance[i, 0] = 0.0
        for lane in range(width):
            keep[lane] = 1.0
            if low > 1:
                r = ratio[low - 1, lane]
                keep[lane] = r / max(r + weight[i, lane], _TINY)
        for j in range(low, high + 1):
            for lane in range(width):
                w, r = weight[i, lane], ratio[j, lane]
                total = r + w
                inverse = 1.0 / max(total, _TINY)
                chance[i, j, lane] = w * inverse
                ratio[j, lane] = total * keep[lane]
                keep[lane] = r * inverse
        for lane in range(len(values)):
            if weight[i, lane] > 0.0 and k > 0:
                seen[lane] += 1
                factor = weight[i, lane] if seen[lane] <= k else 1.0 / keep[lane]
                if product[lane] > 1e40 or product[lane] < 1e-40:
                    values[lane] += np.log(product[lane])
                    product[lane] = 1.0
                product[lane] *= factor
    for lane in range(len(values)):
        values[lane] += np.log(product[lane])
