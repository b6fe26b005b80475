"""The exponential of many numbers at once, for kernels."""

from nestruct.kernels import jit


@jit
def exponentiate(values):
    """``exp`` in place, of numbers that are not positive; below -600 it is 0.

    Without a call, so that it is vectorised: a polynomial at ``x / 1024``, squared ten times, right
    to 2e-13.
    """
    for place in range(len(values)):
        x = values[place] * (1 / 1024)
        p = 1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040)))
        p = 1 + x * (1 + x * (1 / 2 + x * (1 / 6 + x * p)))
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        p *= p
        values[place] = p if x > -0.6 else 0.0
