"""Draws on the CPU from a counter; Gaussian ones nearly twice as fast as torch's generator.

A hash of (key, place) gives two uniform numbers, Box and Muller's transform two normals. All of it
is arithmetic without branches or calls, in loops that the compiler turns into vector instructions:
the logarithm is that of Cephes (S. Moshier), sine and cosine are power series of half the angle.
Single precision; the largest possible draw is 6.6 standard deviations.
"""

from functools import partial

import numpy as np

from nestruct.kernels import jit

BLOCK = 1024
F, U, I = np.float32, np.uint32, np.int32  # noqa: E741


@jit
def _mix(x):
    """A 32-bit hash with low bias (C. Wellons, 2018)."""
    x = U(U(x ^ U(x >> U(16))) * U(0x7FEB352D))
    x = U(U(x ^ U(x >> U(15))) * U(0x846CA68B))
    return U(x ^ U(x >> U(16)))


@partial(jit, fastmath=True)
def fill_gaussian(out, key_a, key_b, key_c, sigma):
    """Fills a float32 row with draws of deviation ``sigma`` that depend on the three keys only."""
    size = out.shape[0]
    half = (size + 1) // 2  # place i of each half shares its uniform numbers
    uniform, angle = np.empty(BLOCK, F), np.empty(BLOCK, F)
    exponent, first = np.empty(BLOCK, F), np.empty(BLOCK, F)
    bits = uniform.view(I)
    for start in range(0, half, BLOCK):
        for i in range(BLOCK):
            x = _mix(U(U(U(U(start) + U(i)) * U(0x9E3779B9)) ^ key_a))
            uniform[i] = (F(I(U(_mix(U(x + key_b)) >> U(1)))) + F(0.5)) * F(2.0**-31)
            angle[i] = F(I(_mix(U(x ^ key_c)))) * F(np.pi * 2.0**-32)  # half of it, in +-pi/2
        for i in range(BLOCK):  # uniform = 2^exponent times a number between sqrt(1/2) and sqrt(2)
            above = I(bits[i] - I(0x3F3504F3)) & I(-0x800000)
            exponent[i] = F(I(above >> I(23)))
            bits[i] = I(bits[i] - above)
        for i in range(BLOCK):
            x = uniform[i] - F(1.0)
            y = F(7.0376836292e-2)
            y = y * x - F(1.1514610310e-1)
            y = y * x + F(1.1676998740e-1)
            y = y * x - F(1.2420140846e-1)
            y = y * x + F(1.4249322787e-1)
            y = y * x - F(1.6668057665e-1)
            y = y * x + F(2.0000714765e-1)
            y = y * x - F(2.4999993993e-1)
            y = y * x + F(3.3333331174e-1)
            log = (y * x - F(0.5)) * x * x + x + exponent[i] * F(0.69314718056)
            radius = np.sqrt(F(-2.0) * log if log < F(0.0) else F(0.0)) * sigma
            q = angle[i] * angle[i]
            s = F(-2.50521083854e-8)
            s = s * q + F(2.75573192240e-6)
            s = s * q - F(1.98412698413e-4)
            s = s * q + F(8.33333333333e-3)
            s = s * q - F(1.66666666667e-1)
            s = (s * q + F(1.0)) * angle[i]
            c = F(2.08767569879e-9)
            c = c * q - F(2.75573192240e-7)
            c = c * q + F(2.48015873016e-5)
            c = c * q - F(1.38888888889e-3)
            c = c * q + F(4.16666666667e-2)
            c = c * q - F(0.5)
            c = c * q + F(1.0)
            first[i] = radius * (F(1.0) - F(2.0) * s * s)
            angle[i] = radius * (F(2.0) * s * c)
        for i in range(min(BLOCK, half - start)):
            out[start + i] = first[i]
        for i in range(min(BLOCK, size - half - start)):
            out[half + start + i] = angle[i]


@jit
def fill_signs(out, key_a, key_b, key_c, sigma):
    """Fills a row with +sigma and -sigma, each bit of a hash being one sign."""
    for start in range(0, out.shape[0], 32):
        x = _mix(U(U(U(start >> 5) * U(0x9E3779B9)) ^ key_a))
        x = _mix(U(_mix(U(x + key_b)) ^ key_c))
        for i in range(min(32, out.shape[0] - start)):
            out[start + i] = sigma if U(x >> U(i)) & U(1) else -sigma


@jit
def fill_rows(out, keys, sigma, gaussian):
    """Fills rows, each with draws that depend on its own three keys only."""
    for row in range(out.shape[0]):
        if gaussian:
            fill_gaussian(out[row], keys[row, 0], keys[row, 1], keys[row, 2], sigma)
        else:
            fill_signs(out[row], keys[row, 0], keys[row, 1], keys[row, 2], sigma)
