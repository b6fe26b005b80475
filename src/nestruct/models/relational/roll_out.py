"""The arithmetic of NRI's decoder, as functions of tensors: messages along pairs, then a move.

Any leading axes, of the members of a population say, come before those that are named; parameters
have them too. With a GPU a step is bound by memory traffic, not by its products: compiled, five
passes are one, and bfloat16 halves what is left.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.models.relational.compiled import compiled, members_first, takes_kernels
from nestruct.models.relational.tree_moves import MAX_NODES, roll_out_trees
from nestruct.structures.solvers.prim import edge_index

Parameters = Sequence[Tensor]  # weight and bias of: message_in, message_out, move_in, _hidden, _out
_NO_EDGE, _EDGE = 0, 1  # kinds of pairs: their layers stand one below the other


def roll_out(
    positions: Float[Tensor, "... 2 nodes cells"],
    z: Float[Tensor, "... edges samples cells"],
    parameters: Parameters,
    num_steps: int,
    *,
    hard: bool,
    fused: bool,
) -> Float[Tensor, "... 2 nodes samples cells steps"]:
    """Where nodes are after each step; see `RelationalDecoder.roll_out`."""
    samples, n = z.shape[-2], positions.shape[-2]

    def run(step: Callable[..., Tensor], positions: Tensor, masks: Sequence[Tensor]) -> Tensor:
        return (compiled(step) if fused else step)(positions, *masks, *parameters)

    predicted = []
    if samples > 1:  # the first messages, of both kinds, are the same for all samples
        positions = run(_shared_step, positions, [_on_grid(z, n, -3)]).flatten(-2)
        predicted.append(positions)
    if len(predicted) < num_steps:
        masks = (_hard_masks if hard else _soft_masks)(z.flatten(-2), n)
    while len(predicted) < num_steps:
        positions = run(_hard_step if hard else _soft_step, positions, masks)
        predicted.append(positions)
    return torch.stack(predicted, -1).unflatten(-2, (samples, -1))


@torch.library.custom_op("nestruct::roll_out", mutates_args=())
def roll_out_op(
    positions: Tensor, z: Tensor, parameters: list[Tensor], num_steps: int, hard: bool
) -> Tensor:
    """The fast way without derivatives: one call for all members of a vmapped population."""
    few = positions.shape[-2] <= MAX_NODES
    if hard and few and takes_kernels([positions, z, *parameters], parameters[6].shape[-1]):
        return roll_out_trees(positions, z, parameters, num_steps)
    return roll_out(positions, z, parameters, num_steps, hard=hard, fused=True)


@roll_out_op.register_vmap
def _(info: Any, dims: Any, positions, z, parameters, num_steps, hard):
    parameters = members_first(info, parameters, dims[2])
    positions, z = members_first(info, (positions, z), dims[:2])
    return roll_out_op(positions, z, parameters, num_steps, hard), 0


def _shared_step(positions: Tensor, edge: Tensor, *parameters: Tensor) -> Tensor:
    """From positions ``[2, nodes, cells]`` to ``[2, nodes, samples, cells]``; any z.

    ``edge [senders, receivers, samples, cells]`` is what z is on the grid of pairs.
    """
    pairs = _pairs(positions, positions.shape[-2])
    plain = _pair_messages(positions, _NO_EDGE, parameters) * pairs
    more = _pair_messages(positions, _EDGE, parameters) * pairs - plain
    if torch.compiler.is_compiling():  # one pass; without a compiler it would be in memory
        along = (more.unsqueeze(-2) * edge.unsqueeze(-5)).sum(-4)
    else:
        along = torch.einsum("...hsjc,...sjkc->...hjkc", more, edge)
    return _move(positions.unsqueeze(-2), plain.sum(-3).unsqueeze(-2) + along, parameters)


def _soft_masks(z: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Weights of the two kinds of messages, ``[senders, receivers, rows]``."""
    edge, pairs = _on_grid(z, n), _pairs(z, n)
    return (1 - edge) * pairs, edge * pairs


def _soft_step(positions: Tensor, none: Tensor, edge: Tensor, *parameters: Tensor) -> Tensor:
    """For any z: every pair gets both messages."""
    totals = [
        (_pair_messages(positions, kind, parameters) * weights.unsqueeze(-4)).sum(-3)
        for kind, weights in ((_NO_EDGE, none), (_EDGE, edge))
    ]
    return _move(positions, totals[0] + totals[1], parameters)


def _hard_masks(z: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Weights of the pairs that are no edge, and ``[ends, nodes, rows]``: where edges end."""
    none = (1 - _on_grid(z, n)) * _pairs(z, n)  # NaN where z is
    low, high = torch.triu_indices(n, n, 1, device=z.device)
    edges = z.topk(n - 1, -2).indices
    ends = torch.cat([low[edges], high[edges]], -2)
    node = torch.arange(n, device=z.device)
    return none, (ends.unsqueeze(-2) == node[:, None]).to(z.dtype)


def _hard_step(positions: Tensor, none: Tensor, to: Tensor, *parameters: Tensor) -> Tensor:
    """Only edges get an edge's message: twice n - 1 pairs instead of all n^2."""
    total = (_pair_messages(positions, _NO_EDGE, parameters) * none.unsqueeze(-4)).sum(-3)
    back = to.roll(positions.shape[-2] - 1, -3)  # the other ends
    receiver, sender = ((positions.unsqueeze(-3) * end.unsqueeze(-4)).sum(-2) for end in (to, back))
    received, sent = _first(receiver, sender, _EDGE, parameters)
    edge = _second((received + sent).relu(), _EDGE, parameters)  # [hidden, ends, rows]
    if torch.compiler.is_compiling():  # one pass; without a compiler it would be in memory
        along = (edge.unsqueeze(-2) * to.unsqueeze(-4)).sum(-3)
    else:
        along = torch.einsum("...her,...enr->...hnr", edge, to)
    return _move(positions, total + along, parameters)


def _pair_messages(positions: Tensor, kind: int, parameters: Parameters) -> Tensor:
    """``[hidden, senders, receivers, rows]``."""
    received, sent = _first(positions, positions, kind, parameters)
    return _second((received.unsqueeze(-3) + sent.unsqueeze(-2)).relu(), kind, parameters)


def _first(to: Tensor, by: Tensor, kind: int, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """What the two ends add to the first layer."""
    weight, bias = _of_kind(parameters[0], kind, -2), _of_kind(parameters[1], kind, -1)
    receiver, sender = weight.chunk(2, -1)
    return _at_nodes(receiver, to) + bias[..., None, None], _at_nodes(sender, by)


def _second(hidden: Tensor, kind: int, parameters: Parameters) -> Tensor:
    weight, bias = _of_kind(parameters[2], kind, -2), _of_kind(parameters[3], kind, -1)
    return _linear(_short(weight), bias, _short(hidden)).relu()


def _move(positions: Tensor, total: Tensor, parameters: Parameters) -> Tensor:
    weight = parameters[4]
    x = _linear(_short(weight[..., 2:]), parameters[5], _short(total))
    x = x + _at_nodes(weight[..., :2], positions)
    x = _linear(_short(parameters[6]), parameters[7], _short(x.relu())).relu()
    return positions + _linear(_short(parameters[8]), parameters[9], _short(x))


def _short(x: Tensor) -> Tensor:
    """For a product of the compiled step: half of the traffic, twice the rate, float32 sums."""
    return x.bfloat16() if torch.compiler.is_compiling() else x


def _linear(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """A linear layer on ``[features, ..., rows]``, after the axes of the parameters."""
    lead = weight.dim() - 2
    columns = weight @ x.flatten(lead + 1) + bias[..., None]
    return columns.unflatten(-1, x.shape[lead + 1 :])


def _at_nodes(weight: Tensor, positions: Tensor) -> Tensor:
    """Two columns of weights on the coordinates: too thin for a product of matrices."""
    lead = weight.dim() - 2
    x, y = positions.unsqueeze(lead).unbind(lead + 1)
    across, up = weight[(..., *[None] * (x.dim() - lead - 1))].unbind(lead + 1)
    return across * x + up * y


def _of_kind(tensor: Tensor, kind: int, axis: int) -> Tensor:
    return tensor.chunk(2, axis)[kind]


def _on_grid(z: Tensor, n: int, axis: int = -2) -> Tensor:
    """Edges along an axis to ``[senders, receivers]`` in its place."""
    index = edge_index(n, z.device).clamp(min=0)
    return z.index_select(axis, index.flatten()).unflatten(axis, index.shape)


def _pairs(z: Tensor, n: int) -> Float[Tensor, "nodes nodes 1"]:
    """Zero on the diagonal."""
    return 1 - torch.eye(n, dtype=z.dtype, device=z.device)[..., None]
