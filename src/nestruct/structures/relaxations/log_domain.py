"""Sums of exponentials that stay right when terms are impossible or hundreds apart."""

import torch
from jaxtyping import Float
from torch import Tensor

# Stands for -inf: logsumexp and both its derivatives stay finite and give such a term weight 0.
FORBIDDEN = -1e30


def add(first: Float[Tensor, "*shape"], second: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``log(exp(first) + exp(second))``, twice differentiable.

    Not `torch.logaddexp`, whose second derivative is NaN when the two differ by more than 88 in
    float32 (infinity times zero).
    """
    return torch.stack([first, second]).logsumexp(0)
