"""NRI's encoder in training as one function of tensors: what a GPU computes in few passes.

The same arithmetic as `RelationalEncoder`'s layers; any leading axes, of members say, come first.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.models.relational.compiled import compiled, members_first, takes_kernels
from nestruct.models.relational.pair_blocks import score_pairs

_PER_BLOCK = 6  # weight and bias of: first, second, norm
_EPSILON = 1e-5


def pair_scores(
    x: Float[Tensor, "... batch nodes dim"], *parameters: Tensor
) -> tuple[Float[Tensor, "... batch directed"], Float[Tensor, "... blocks 2 hidden"]]:
    """A score per direction, row by row, and mean and variance of what each block normalises.

    Args:
        x: What is known of each node.
        parameters: Those of the blocks node_in, edge_in, node_out, edge_out, then of score.
    """
    blocks = [parameters[i : i + _PER_BLOCK] for i in range(0, 4 * _PER_BLOCK, _PER_BLOCK)]
    n, statistics = x.shape[-2], []

    def rest(first: Tensor, block: Sequence[Tensor]) -> Tensor:
        hidden = _linear(nn.functional.elu(first), block[2], block[3])
        normal, moments = _normalise(nn.functional.elu(hidden), block[4], block[5])
        statistics.append(moments)
        return normal

    nodes = rest(_linear(x, *blocks[0][:2]), blocks[0])
    edges = rest(off_diagonal(_pairs(nodes, *blocks[1][:2])), blocks[1])
    sums = edges.unflatten(-2, (n, n - 1)).sum(-2) / n
    nodes = rest(_linear(sums, *blocks[2][:2]), blocks[2])
    size = nodes.shape[-1]
    weight, bias = blocks[3][:2]
    mixed = off_diagonal(_pairs(nodes, weight[..., : 2 * size], bias))
    edges = rest(mixed + _linear(edges, weight[..., 2 * size :]), blocks[3])
    scores = _linear(edges, parameters[-2], parameters[-1])
    return scores[..., 0], torch.stack(statistics, -3)


@torch.library.custom_op("nestruct::pair_scores", mutates_args=())
def pair_scores_op(x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The fast way without derivatives: one call for all members of a vmapped population."""
    if takes_kernels([x, *parameters], parameters[2].shape[-1]):
        return score_pairs(x, parameters)
    return compiled(pair_scores)(x, *parameters)


@pair_scores_op.register_vmap
def _(info: Any, dims: Any, x: Tensor, parameters: list[Tensor]):
    parameters = members_first(info, parameters, dims[1])
    (x,) = members_first(info, (x,), dims[:1])
    return pair_scores_op(x, parameters), (0, 0)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    lead = weight.dim() - 2
    rows = x.flatten(lead, -2) @ weight.mT
    if bias is not None:
        rows = rows + bias[..., None, :]
    return rows.unflatten(lead, x.shape[lead:-1])


def _pairs(nodes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``[batch, receivers, senders, hidden]``: a layer on both ends side by side."""
    receiver, sender = weight.chunk(2, -1)
    received, sent = _linear(nodes, receiver, bias), _linear(nodes, sender)
    return received.unsqueeze(-2) + sent.unsqueeze(-3)


def off_diagonal(
    grid: Float[Tensor, "... nodes nodes hidden"],
) -> Float[Tensor, "... directed hidden"]:
    """The n(n-1) entries off the diagonal, row by row: normalisation must not see the others."""
    n = grid.shape[-2]
    # Without its first entry, the flat grid has the diagonal at the end of every n + 1.
    flat = grid.flatten(-3, -2)[..., 1:, :].unflatten(-2, (n - 1, n + 1))
    return flat[..., :-1, :].flatten(-3, -2)


def _normalise(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    lead = weight.dim() - 1
    variance, mean = torch.var_mean(x.flatten(lead, -2), lead, correction=0)
    scale = (variance + _EPSILON).rsqrt() * weight
    shift = bias - mean * scale
    axes = (..., *[None] * (x.dim() - lead - 1), slice(None))
    return x * scale[axes] + shift[axes], torch.stack([mean, variance], -2)
