"""Sum-of-gamma noise: k draws of it add up to one Gumbel draw.

M. Niepert et al., "Implicit MLE: Backpropagating Through Discrete Exponential Family
Distributions", 2021, Section 4.3. A Gumbel draw is the largest of infinitely many exponential
ones, less the logarithm of their number s: the sum over i of Exp(1) / i, less log s. An
exponential draw is the sum of k gamma draws of shape 1 / k. So k independent draws of

    sum over i = 1 ... s of Gamma(1 / k) / i  -  (log s) / k

add up to one Gumbel draw, for a large s. Where every member has k parts, the score of each is so
perturbed by Gumbel noise, though not independently. Single parts are perturbed less than by Gumbel
noise of their own.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.structures import Draws

NUM_TERMS = 10  # s: what is left out has 6 % of a Gumbel's variance
_ROUNDS = 6  # of rejection: one draw in 10^8 is accepted without being one


def sum_of_gamma(draws: Draws, like: Tensor, k: int) -> Float[Tensor, "..."]:
    """One draw for each entry: a k-th of a Gumbel draw."""
    each = like[..., None].expand(*like.shape, NUM_TERMS)
    divisors = torch.arange(1, NUM_TERMS + 1, dtype=like.dtype, device=like.device)
    return (gamma(draws, each, 1 / k) / divisors).sum(-1) - math.log(NUM_TERMS) / k


def gamma(draws: Draws, like: Tensor, shape: float) -> Float[Tensor, "..."]:
    """One draw from the gamma law of that shape, and scale 1, for each entry.

    G. Marsaglia and W. Tsang, 2000: a candidate with the shape above by 1, accepted in 95 cases of
    100 or more, times the power of a uniform draw. A fixed number of candidates instead of a loop:
    nothing is read on the host, and a `Noise` gives each example its own draws.
    """
    d = shape + 2 / 3
    found = torch.zeros_like(like)
    for _ in range(_ROUNDS):
        normal = torch.special.ndtri(draws.uniform(like))
        v = (1 + normal / math.sqrt(9 * d)) ** 3
        log_bound = 0.5 * normal**2 + d * (1 - v + v.clamp(min=1e-30).log())
        accepted = (v > 0) & (draws.uniform(like).log() < log_bound)
        found = torch.where((found == 0) & accepted, d * v, found)
    return found * draws.uniform(like) ** (1 / shape)
