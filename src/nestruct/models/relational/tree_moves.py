"""Roll-outs along trees for members with their own weights: messages that never go to memory.

A product of matrices waits for memory where its numbers are read and written once for little
arithmetic. A message has 2 H^2 multiplications and additions for H numbers, but nine of them are
only ever summed. So a program keeps a block of one member's weights, makes the messages of its
receivers from positions, and writes their sums: per receiver H numbers instead of 36 H.

Receivers are sorted by their number of edges. A program's receivers then have equally many senders
of each kind, so each pair gets the message of its own kind and no other.

Products have bfloat16 inputs and float32 sums. Positions, and the weights they meet, are split in
two bfloat16 numbers each, which is nearly float32.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Parameters = Sequence[Tensor]  # weight and bias of: message_in, message_out, move_in, _hidden, _out
MAX_NODES = 24  # a receiver's senders are bits of a float32
HALF = torch.bfloat16  # of what products take
INPUTS = 16  # numbers that the tensor cores take at least


def roll_out_trees(
    positions: Float[Tensor, "... 2 nodes cells"],
    z: Float[Tensor, "... edges samples cells"],
    parameters: Parameters,
    num_steps: int,
) -> Float[Tensor, "... 2 nodes samples cells steps"]:
    """Where nodes are after each step, for z of zeros and ones; NaN where z is."""
    lead, (n, cells), samples = z.shape[:-3], positions.shape[-2:], z.shape[-2]
    z = z.reshape(-1, z.shape[-3], samples * cells)
    senders, order = _sorted_receivers(z, n)
    here = positions.reshape(-1, 2, n, 1, cells).expand(len(z), -1, -1, samples, -1)
    here = here.permute(0, 3, 4, 2, 1).reshape(len(z), -1, 2) + 0 * senders[..., None]
    layers = weights_of([tensor.reshape(-1, *tensor.shape[len(lead) :]) for tensor in parameters])
    bits = senders.nan_to_num().int()
    steps = []
    for _ in range(num_steps):
        here = _step(here.contiguous(), bits, order, n, layers)
        steps.append(here)
    moved = torch.stack(steps, -1).view(len(z), samples, cells, n, 2, num_steps)
    return moved.permute(0, 4, 3, 1, 2, 5).reshape(*lead, 2, n, samples, cells, num_steps)


def _sorted_receivers(z: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Each receiver's edges as the bits of a number, and all receivers by the number of edges."""
    low, high = torch.triu_indices(n, n, 1, device=z.device)
    node = torch.arange(n, device=z.device)
    # No assignment of a number: that copies from the host, which a captured graph cannot do.
    is_low, is_high = low[:, None] == node, high[:, None] == node
    other = is_low * (1 << high)[:, None] + is_high * (1 << low)[:, None]
    ends = torch.stack([other, is_low | is_high], 1).to(z)
    # Exact in TF32 too: zeros and ones times powers of two.
    bits, degrees = (z.mT @ ends.flatten(1)).chunk(2, -1)
    few = degrees.flatten(1).nan_to_num().to(torch.uint8)  # sorted in one pass
    return bits.flatten(1), few.argsort(dim=-1, stable=True).int()


def weights_of(parameters: Parameters) -> list[Tensor]:
    """What the kernels read of all layers, ``[members, ...]``."""
    high, low = split(parameters[0], HALF)
    bias = parameters[1]
    first, second = split(bias, HALF)
    pieces = (first, second, *split(bias - first.float() - second.float(), HALF))
    # They meet the high, low and high parts of positions, and ones.
    message_in = torch.cat([high, high, low, torch.stack(pieces, -1)], -1)
    move = parameters[4]
    return [
        message_in,
        parameters[2].to(HALF).contiguous(),
        parameters[3].contiguous(),
        move[..., :2].contiguous(),
        move[..., 2:].to(HALF).contiguous(),
        parameters[5].contiguous(),
        parameters[6].to(HALF).contiguous(),
        *(tensor.contiguous() for tensor in parameters[7:]),
    ]


def split(x: Tensor, half: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two short numbers whose sum is nearly a float32 one."""
    high = x.to(half)
    return high, (x - high.float()).to(half)


def _step(here: Tensor, bits: Tensor, order: Tensor, n: int, layers: Sequence[Tensor]) -> Tensor:
    if here.is_cuda:
        from nestruct.models.relational.tree_moves_cuda import move_cuda, sum_messages_cuda

        return move_cuda(here, sum_messages_cuda(here, bits, order, n, layers), layers)
    return move_plain(here, sum_messages_plain(here, bits, n, layers), layers)


def sum_messages_plain(
    here: Float[Tensor, "members rows 2"],
    bits: Int[Tensor, "members rows"],
    n: int,
    layers: Sequence[Tensor],
) -> Float[Tensor, "members rows hidden"]:
    """The twin of the kernel, with all messages in memory."""
    place = here.unflatten(1, (-1, n))  # [members, cells, nodes, 2]
    shape = (*place.shape[:2], n, n, 2)
    ends = [place.unsqueeze(3).expand(shape), place.unsqueeze(2).expand(shape)]  # to, by
    high, low = split(torch.cat(ends, -1), layers[1].dtype)
    inputs = torch.cat([high, low, high, torch.ones_like(high)], -1).float()
    node = torch.arange(n, device=here.device)
    is_edge = (bits.view(*place.shape[:3], 1) >> node) & 1
    total = torch.zeros((), device=here.device)
    for kind in (0, 1):
        weight, second, bias = (tensor.chunk(2, 1)[kind].float() for tensor in layers[:3])
        hidden = (inputs.flatten(1, 3) @ weight.mT).relu().to(layers[1].dtype).float()
        out = (hidden @ second.mT + bias[:, None]).relu().unflatten(1, inputs.shape[1:4])
        counts = (is_edge == kind) & (node[:, None] != node)
        total = total + torch.where(counts[..., None], out, 0).sum(3)
    return total.flatten(1, 2).to(layers[1].dtype)


def move_plain(here: Tensor, totals: Tensor, layers: Sequence[Tensor]) -> Tensor:
    """The twin of the kernel."""
    at, inner, bias_in, hidden, bias_hidden, out, bias_out = (x.float() for x in layers[3:])
    x = totals.float() @ inner.mT + here @ at.mT + bias_in[:, None]
    x = x.relu().to(layers[1].dtype).float() @ hidden.mT + bias_hidden[:, None]
    return here + (x.relu() @ out.mT + bias_out[:, None])
