"""Sums over arborescences, and exact samples, by eliminating words in the log domain, O(n^3).

Kirchhoff's and Tutte's matrix-tree theorems write the sum as a determinant (T. Koo et al., 2007),
which in floating point subtracts large numbers from each other: at a score deviation of 50 it fails
even in float64. Eliminating word k (the star-mesh transform; one step of Gaussian elimination
without its subtractions) needs none:

    d_k = sum over h of w[h, k],     w[h, m] += w[h, k] w[k, m] / d_k,     Z = product of the d_k.

With one root arc only, replace the root's weights by t times themselves and keep the term of degree
1 in t: the root row is left out of every d_k, and the word that remains last contributes its root
weight. That word should reach all others over good arcs, else some d_k would vanish, or nearly (a
finite mask such as -1e9), and cancel against it; `_front_word` swaps the best such word to the
front.

That is hundreds of launches on a GPU, where `arborescences` has kernels instead.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nestruct.structures.draws import Draws
from nestruct.structures.relaxations import log_domain
from nestruct.structures.relaxations.log_domain import FORBIDDEN

# The most nodes that the CUDA kernels take: a tile of float64 is then half of all registers.
MOST_NODES = 128


def log_arborescences(
    scores: Float[Tensor, "*batch nodes nodes"],
    lengths: Int[Tensor, "*batch"] | None,
    *,
    single_root: bool,
) -> Float[Tensor, "*batch"]:
    """Log of the sum over arborescences below node 0 of ``exp(sum of arc scores)``."""
    if scores.shape[-1] == 1:
        return scores.new_zeros(scores.shape[:-2])
    if scores.is_cuda and scores.shape[-1] <= MOST_NODES and scores.numel() > 0:
        from nestruct.structures.relaxations.arborescences import log_sum

        return log_sum(scores, lengths, single_root)
    return log_arborescences_torch(scores, lengths, single_root)


def log_arborescences_torch(
    scores: Float[Tensor, "*batch nodes nodes"],
    lengths: Int[Tensor, "*batch"] | None,
    single_root: bool,
) -> Float[Tensor, "*batch"]:
    """The same in plain torch: every device, size and derivative; two nodes or more."""
    if single_root:
        scores = _swap(scores, _front_word(scores, lengths))
    total, weights = scores.new_zeros(scores.shape[:-2]), scores
    for word in range(scores.shape[-1] - 1, 1 if single_root else 0, -1):
        weights, log_degree = _eliminate(weights, word, single_root)
        total = total + _where_real(word, lengths, log_degree)
    return total + _where_real(1, lengths, weights[..., 0, 1]) if single_root else total


def sample_arborescences(
    scores: Float[Tensor, "*batch nodes nodes"],
    lengths: Int[Tensor, "*batch"] | None,
    *,
    single_root: bool,
    draws: Draws,
) -> Float[Tensor, "*batch nodes nodes"]:
    """One exact draw per row, by undoing the elimination word by word.

    An arc of the smaller graph stands for itself or for a way through word k; those that went
    through k become k's children, and k's head is drawn among the nodes that are not below it.
    Wilson's random walks draw from the same law, but take time exponential in the scores.
    """
    size, lead = scores.shape[-1], scores.shape[:-2]
    if size == 1:
        return torch.zeros_like(scores)
    front = _front_word(scores, lengths) if single_root else None
    stages = [scores if front is None else _swap(scores, front)]
    for word in range(size - 1, 1, -1):
        stages.append(_eliminate(stages[-1], word, single_root)[0])
    head = torch.zeros(*lead, size, dtype=torch.long, device=scores.device)
    for word in range(2, size):
        weights = stages.pop(-2)[..., : word + 1, : word + 1]
        into, out = weights[..., :word, word], weights[..., word, :word]
        log_degree = into[..., 1 if single_root else 0 :].logsumexp(-1, keepdim=True)
        heads = head[..., :word]
        direct = weights[..., :word, :word].gather(-2, heads[..., None, :])[..., 0, :]
        through = into.gather(-1, heads) + out - log_degree
        uniform = draws.uniform(direct)
        below = (uniform < torch.sigmoid(through - direct)) & (
            torch.arange(word, device=scores.device) > 0
        )
        heads = torch.where(below, word, heads)
        ancestor = torch.where(below, torch.arange(word, device=scores.device), heads)
        for _ in range(word.bit_length()):  # pointer doubling: below `word` if any ancestor is
            below = below | below.gather(-1, ancestor)
            ancestor = ancestor.gather(-1, ancestor)
        into = into.masked_fill(below, FORBIDDEN)
        if single_root:  # the root arc is the last resort: its weight is infinitely small
            others = (into[..., 1:] > FORBIDDEN / 2).any(-1)
            root = torch.where(others, FORBIDDEN, into[..., 0])
            into = torch.cat([root[..., None], into[..., 1:]], -1)
        chosen = (into - draws.log_exponential(into)).argmax(-1, keepdim=True)
        head = torch.cat([heads, chosen, head[..., word + 1 :]], -1)
    node = torch.arange(size, device=scores.device)
    words = node > 0 if lengths is None else (node > 0) & (node <= lengths[..., None])
    z = ((head[..., None, :] == node[:, None]) & words[..., None, :]).to(scores.dtype)
    return z if front is None else _swap(z, front)


def _eliminate(weights: Tensor, word: int, single_root: bool) -> tuple[Tensor, Tensor]:
    """The graph on nodes 0..word-1 that stands for the one on 0..word, and log d of the word."""
    into, out = weights[..., :word, word], weights[..., word, :word]
    log_degree = into[..., 1 if single_root else 0 :].logsumexp(-1)
    through = into[..., :, None] + (out - log_degree[..., None])[..., None, :]
    # The clamp keeps impossible arcs where they are: their value would double at every step.
    return log_domain.add(weights[..., :word, :word], through.clamp(min=FORBIDDEN)), log_degree


def _where_real(word: int, lengths: Tensor | None, value: Tensor) -> Tensor:
    return value if lengths is None else torch.where(lengths >= word, value, 0.0)


def _front_word(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """The word whose worst path to any other word of its sentence has the best weakest arc."""
    size = scores.shape[-1]
    words = torch.arange(1, size, device=scores.device)
    path = torch.where(words[:, None] == words, torch.inf, scores.detach()[..., 1:, 1:])
    for k in range(size - 1):  # widest paths: Floyd and Warshall with max and min
        through = torch.minimum(path[..., :, k, None], path[..., None, k, :])
        path = torch.maximum(path, through)
    if lengths is None:
        return 1 + path.amin(-1).argmax(-1)
    padding = words > lengths[..., None]
    worst = torch.where(padding[..., None, :], torch.inf, path).amin(-1)
    return 1 + torch.where(padding, -torch.inf, worst).argmax(-1)


def _swap(matrix: Tensor, front: Tensor) -> Tensor:
    """Exchanges nodes 1 and ``front`` in rows and columns."""
    node = torch.arange(matrix.shape[-1], device=matrix.device)
    order = torch.where(node == 1, front[..., None], torch.where(node == front[..., None], 1, node))
    rows = matrix.gather(-2, order[..., :, None].expand(matrix.shape))
    return rows.gather(-1, order[..., None, :].expand(matrix.shape))
