"""Doubly stochastic matrices in place of permutations: Sinkhorn's iteration in the log domain.

G. Mena et al., "Learning Latent Permutations with Gumbel-Sinkhorn Networks", 2018. Among the
matrices S whose rows and columns sum to 1, ``exp`` of the scores scaled by row and by column is the
one with the largest ``scores . S + entropy(S)``, where every entry counts for itself. As the scores
grow it tends to the best permutation. The last scaling is by column, so columns sum to 1 to
rounding, and rows as closely as the iteration has come.
"""

from jaxtyping import Float
from torch import Tensor

from nestruct.structures.relaxations.log_domain import FORBIDDEN


def sinkhorn(
    scores: Float[Tensor, "*batch rows columns"], iterations: int
) -> Float[Tensor, "*batch rows columns"]:
    """Scales rows, then columns, so many times; differentiable."""
    scores = scores.clamp(min=FORBIDDEN)
    for _ in range(iterations):
        scores = scores - scores.logsumexp(-1, keepdim=True)
        scores = scores - scores.logsumexp(-2, keepdim=True)
    return scores.exp()
