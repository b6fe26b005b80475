"""NRI's encoder for members with their own weights: four passes over all pairs, and no more.

Most of its arithmetic is three products per pair. Normalisation over the batch cuts it where its
statistics must be known: a first kernel writes what the pairs' first block makes, in two bytes, and
its sums; a second one reads that, and writes what the second block makes in its place; a third pass
reads that for the scores. What normalisation multiplies by goes into the weights behind it.

Products have float16 inputs and float32 sums: eleven bits, as in TF32. Scores decide between
trees, so the eight bits of bfloat16 would change more of them. What is beyond its range is cut off.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.models.relational.compiled import compiled

HALF = torch.float16
LIMIT = 6e4
_PER_BLOCK = 6  # weight and bias of: first, second, norm
_EPSILON = 1e-5


def score_pairs(
    x: Float[Tensor, "... batch nodes dim"], parameters: Sequence[Tensor]
) -> tuple[Float[Tensor, "... batch directed"], Float[Tensor, "... blocks 2 hidden"]]:
    """See `nestruct.models.relational.pair_scores.pair_scores`."""
    lead, (batch, n) = x.shape[:-3], x.shape[-3:-1]
    flat = [tensor.reshape(-1, *tensor.shape[len(lead) :]) for tensor in parameters]
    blocks = [flat[i : i + _PER_BLOCK] for i in range(0, 4 * _PER_BLOCK, _PER_BLOCK)]
    nodes = x.reshape(len(flat[0]), batch * n, -1)
    count = batch * n * (n - 1)
    received, sent, first = compiled(_before)(nodes, *blocks[0], *blocks[1][:2])
    edges, totals, sums = _first_block(received, sent, n, *_second(blocks[1]))
    received, sent, skip, second = compiled(_between)(
        totals, sums, n, count, *blocks[1][4:], *blocks[2], *blocks[3][:2]
    )
    sums = _second_block(edges, received, sent, skip, n, *_second(blocks[3]))
    # Apart: in one compiled pass every pair would compute these factors again.
    weight, constant, third = compiled(_last_factors)(sums, count, *blocks[3][4:], *flat[-2:])
    scores = compiled(_weigh)(edges, weight, constant)
    statistics = torch.cat([first[:, None], second, third[:, None]], 1)
    return scores.view(*lead, batch, n * (n - 1)), statistics.view(*lead, *statistics.shape[1:])


def _second(block: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return block[2].to(HALF).contiguous(), block[3].contiguous()


def _before(x: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The block of nodes, and what both ends add to the first layer of pairs."""
    first, weight, bias = x @ parameters[0].mT, *parameters[6:]
    normal, moments = _rest(first, parameters[:6])
    received, sent = _ends(normal, weight, bias)
    return received, sent, moments


def _between(
    totals: Tensor, sums: Tensor, n: int, count: int, *parameters: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalises pairs, the block of their sums at nodes, and the first layer of pairs again."""
    gain, shift, *block, weight, bias = parameters
    scale, shift, moments = _normal(sums, count, gain, shift)
    x = (totals * scale[:, None] + (n - 1) * shift[:, None]) / n
    normal, more = _rest(_product(x, block[0]), block)
    size = normal.shape[-1]
    skip = weight[..., 2 * size :]
    bias = bias + (skip @ shift[..., None])[..., 0]
    received, sent = _ends(normal, weight[..., : 2 * size], bias)
    skip = (skip * scale[:, None]).to(HALF)
    return received, sent, skip, torch.stack([moments, more], 1)


def _last_factors(
    sums: Tensor, count: int, gain: Tensor, shift: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The last layer's weights and term with normalisation in them, and its moments."""
    scale, shift, moments = _normal(sums, count, gain, shift)
    weight = weight[:, 0]
    return scale * weight, (weight * shift).sum(-1) + bias[:, 0], moments


def _weigh(edges: Tensor, weight: Tensor, constant: Tensor) -> Tensor:
    return (edges.float() * weight[:, None]).sum(-1) + constant[:, None]


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return (x.to(HALF) @ weight.to(HALF).mT).float()


def _rest(first: Tensor, block: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A block after the product of its first layer."""
    hidden = _product(nn.functional.elu(first + block[1][:, None]), block[2])
    x = nn.functional.elu(hidden + block[3][:, None])
    variance, mean = torch.var_mean(x, 1, correction=0)
    scale = (variance + _EPSILON).rsqrt() * block[4]
    normal = (x - mean[:, None]) * scale[:, None] + block[5][:, None]
    return normal, torch.stack([mean, variance], 1)


def _ends(nodes: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    receiver, sender = weight.chunk(2, -1)
    received = _product(nodes, receiver) + bias[:, None]
    return received.to(HALF), _product(nodes, sender).to(HALF)


def _normal(sums: Tensor, count: int, gain: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factor and term of normalisation, from ``[members, parts, 2, hidden]``."""
    mean, square = (sums.sum(1) / count).unbind(1)
    variance = (square - mean.square()).clamp(min=0)
    scale = (variance + _EPSILON).rsqrt() * gain
    return scale, shift - mean * scale, torch.stack([mean, variance], 1)


def _first_block(
    received: Tensor, sent: Tensor, n: int, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if received.is_cuda:
        from nestruct.models.relational.pair_blocks_cuda import first_block_cuda

        return first_block_cuda(received, sent, n, weight, bias)
    return first_block_plain(received, sent, n, weight, bias)


def _second_block(
    edges: Tensor,
    received: Tensor,
    sent: Tensor,
    skip: Tensor,
    n: int,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    if edges.is_cuda:
        from nestruct.models.relational.pair_blocks_cuda import second_block_cuda

        return second_block_cuda(edges, received, sent, skip, n, weight, bias)
    return second_block_plain(edges, received, sent, skip, n, weight, bias)


def first_block_plain(
    received: Float[Tensor, "members rows hidden"],
    sent: Float[Tensor, "members rows hidden"],
    n: int,
    weight: Float[Tensor, "members hidden hidden"],
    bias: Float[Tensor, "members hidden"],
) -> tuple[
    Float[Tensor, "members directed hidden"],
    Float[Tensor, "members rows hidden"],
    Float[Tensor, "members parts 2 hidden"],
]:
    """The twin of the kernel: all pairs, their sums at receivers, and sums for normalisation."""
    hidden = _elu(_both(received, sent, n)).to(HALF).float()
    edges = _elu(hidden @ weight.float().mT + bias[:, None]).to(HALF)
    totals = edges.float().unflatten(1, (-1, n - 1)).sum(2)
    return edges, totals.clamp(max=LIMIT).to(HALF), _sums(edges)


def second_block_plain(
    edges: Tensor,
    received: Tensor,
    sent: Tensor,
    skip: Tensor,
    n: int,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    """The twin of the kernel: changes ``edges`` in place, and has the sums for normalisation."""
    first = edges.float() @ skip.float().mT + _both(received, sent, n)
    hidden = _elu(first).to(HALF).float() @ weight.float().mT
    edges.copy_(_elu(hidden + bias[:, None]))
    return _sums(edges)


def _elu(x: Tensor) -> Tensor:
    return nn.functional.elu(x).clamp(max=LIMIT)


def _both(received: Tensor, sent: Tensor, n: int) -> Tensor:
    """For every receiver, one after the other, all other nodes as senders."""
    row = torch.arange(received.shape[1], device=received.device)[:, None]
    sender = torch.arange(n - 1, device=row.device).expand(len(row), -1)
    sender = sender + (sender >= row % n)
    pairs = received[:, row].float() + sent[:, row - row % n + sender].float()
    return pairs.flatten(1, 2)


def _sums(edges: Tensor) -> Tensor:
    x = edges.float()
    return torch.stack([x.sum(1), x.square().sum(1)], 1)[:, None]
