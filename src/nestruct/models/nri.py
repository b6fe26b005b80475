"""The networks of neural relational inference: an encoder that scores pairs, a decoder that moves.

T. Kipf et al., "Neural Relational Inference for Interacting Systems", 2018: the MLP encoder in its
factor-graph variant, and the MLP decoder with two kinds of pairs, no edge and edge.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.structures.solvers.prim import edge_index

Step = Callable[[Tensor], Tensor]
DIMENSIONS = 2  # coordinates of a position
_NO_EDGE, _EDGE, _BOTH = slice(0, 1), slice(1, 2), slice(0, 2)  # kinds of pairs


class RelationalEncoder(nn.Module):
    """NRI's MLP encoder, factor-graph variant: from node trajectories to a score per direction."""

    def __init__(
        self, inputs: int, hidden_size: int, *, batch_norm: bool = True, relative: bool = False
    ) -> None:
        super().__init__()
        size = hidden_size
        self.node_in = None if relative else _Block(inputs, size, batch_norm)
        self.edge_in = _Block(inputs if relative else 2 * size, size, batch_norm)
        self.node_out = _Block(size, size, batch_norm)
        self.edge_out = _Block(3 * size, size, batch_norm)
        self.score = nn.Linear(size, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
                nn.init.constant_(module.bias, 0.1)

    def forward(self, x: Float[Tensor, "batch nodes dim"]) -> Float[Tensor, "batch nodes nodes"]:
        """Scores of ``[receiver, sender]``; zero on the diagonal."""
        n = x.shape[-2]
        if self.node_in is None:
            grid = difference_layer(self.edge_in.first, x)
        else:
            grid = edge_layer(self.edge_in.first, self.node_in(x))
        edges = self.edge_in.rest(off_diagonal(grid))
        nodes = self.node_out(edges.unflatten(-2, (n, n - 1)).sum(-2) / n)
        mixed = off_diagonal(edge_layer(self.edge_out.first, nodes))
        skip = self.edge_out.first.weight[:, 2 * nodes.shape[-1] :]
        edges = self.edge_out.rest(mixed + edges @ skip.mT)
        return on_grid(self.score(edges)[..., 0], n)


class RelationalDecoder(nn.Module):
    """NRI's MLP decoder: from positions and edges to the positions one step later.

    Features come first and rows last, unlike elsewhere: there are few features and many rows, so
    every product and every broadcast then has a long inner axis.
    """

    def __init__(self, num_nodes: int, hidden_size: int) -> None:
        super().__init__()
        size = hidden_size
        self.num_nodes = num_nodes
        self.message_in = nn.Linear(2 * DIMENSIONS, 2 * size)
        self.message_out = nn.Linear(size, 2 * size)
        self.move_in = nn.Linear(DIMENSIONS + size, size)
        self.move_hidden = nn.Linear(size, size)
        self.move_out = nn.Linear(size, DIMENSIONS)

    def step(self, z: Float[Tensor, "edges rows"]) -> Step:
        """The function from positions ``[2, nodes, rows]`` to those after a step; any z.

        Both kinds of pairs (no edge, edge) go through the same operations.
        """
        edge = self._on_grid(z)
        weights = torch.stack([1 - edge, edge]) * self._pairs(z)

        def step(positions: Tensor) -> Tensor:
            messages = self._message(self._hidden(positions, _BOTH), _BOTH)
            # One axis at a time: torch sums two that are not neighbours ten times slower.
            return self._move(positions, (messages * weights[:, None]).sum(2).sum(0))

        return step

    def hard_step(self, z: Float[Tensor, "edges rows"]) -> Step:
        """The same for z of zeros and as many ones as a tree has edges: a shorter way.

        Only edges get an edge's message: twice n - 1 pairs instead of all n^2.
        """
        n = self.num_nodes
        weights = (1 - self._on_grid(z)) * self._pairs(z)  # NaN where z is
        low, high = torch.triu_indices(n, n, 1, device=z.device)
        edges = z.topk(n - 1, 0).indices
        ends = torch.cat([low[edges], high[edges]])  # [2 (n - 1), rows]: where edges end
        node = torch.arange(n, device=z.device)
        to = (ends[:, None] == node[:, None]).to(z.dtype)  # [ends, nodes, rows]
        back = to.roll(n - 1, 0)  # the other ends
        gather = to.permute(2, 1, 0).contiguous()  # [rows, nodes, ends]

        def step(positions: Tensor) -> Tensor:
            none = self._message(self._hidden(positions, _NO_EDGE), _NO_EDGE)[0]
            total = (none * weights).sum(1)
            receiver, sender = ((positions[:, None] * end).sum(2) for end in (to, back))
            edge = self._message(self._first(receiver, sender, _EDGE), _EDGE)[0]
            along = torch.bmm(gather, edge.permute(2, 1, 0))  # [rows, nodes, hidden]
            return self._move(positions, total + along.permute(2, 1, 0))

        return step

    def _hidden(self, positions: Tensor, kinds: slice) -> Tensor:
        """``[kinds, hidden, senders, receivers, rows]``."""
        return self._first(positions[:, None], positions[:, :, None], kinds)

    def _first(self, to: Tensor, by: Tensor, kinds: slice) -> Tensor:
        """The first layer, for pairs of positions ``[2, ..., rows]`` that broadcast."""
        weight, bias = self._of(self.message_in, kinds)
        receiver, sender = weight.chunk(2, -1)
        sums = [
            _columns(half, shift, end.flatten(1)).unflatten(-1, end.shape[1:])
            for half, shift, end in ((receiver, bias, to), (sender, None, by))
        ]
        return (sums[0] + sums[1]).relu_()

    def _message(self, hidden: Tensor, kinds: slice) -> Tensor:
        weight, bias = self._of(self.message_out, kinds)
        return _columns(weight, bias, hidden.flatten(2)).relu_().view_as(hidden)

    def _of(self, layer: nn.Linear, kinds: slice) -> tuple[Tensor, Tensor]:
        """A layer's parameters for some of the two kinds, which stand one below the other."""
        return layer.weight.unflatten(0, (2, -1))[kinds], layer.bias.unflatten(0, (2, -1))[kinds]

    def _move(self, positions: Tensor, total: Tensor) -> Tensor:
        x = torch.cat([positions, total]).flatten(1)
        x = _columns(self.move_in.weight, self.move_in.bias, x).relu_()
        x = _columns(self.move_hidden.weight, self.move_hidden.bias, x).relu_()
        return positions + _columns(self.move_out.weight, self.move_out.bias, x).view_as(positions)

    def _on_grid(self, z: Float[Tensor, "edges rows"]) -> Float[Tensor, "nodes nodes rows"]:
        index = edge_index(self.num_nodes, z.device).clamp(min=0)
        return z.index_select(0, index.flatten()).unflatten(0, index.shape)

    def _pairs(self, z: Tensor) -> Float[Tensor, "nodes nodes 1"]:
        """Zero on the diagonal."""
        return 1 - torch.eye(self.num_nodes, dtype=z.dtype, device=z.device)[..., None]

    @torch.no_grad()
    def start_with_pull(self, share: float) -> None:
        """Sets weights so that an edge moves its ends by a share of their distance, and no more.

        Four units carry the positive and the negative parts of the two differences of coordinates
        through all layers; the other units keep their random weights, and no say in the output.
        """
        size = self.message_out.in_features
        signs = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        edge, four = slice(size, size + 4), slice(0, 4)
        _set_rows(self.message_in, edge, torch.cat([-signs, signs], 1))
        _set_rows(self.message_out, edge, torch.eye(4, size))
        _set_rows(self.message_out, four, torch.zeros(4, size))
        _set_rows(self.move_in, four, torch.eye(4, size + DIMENSIONS).roll(DIMENSIONS, 1))
        _set_rows(self.move_hidden, four, torch.eye(4, size))
        _set_rows(self.move_out, slice(0, 2), nn.functional.pad(share * signs.T, (0, size - 4)))


def _set_rows(layer: nn.Linear, rows: slice, weight: Tensor) -> None:
    layer.weight[rows] = weight.to(layer.weight)
    layer.bias[rows] = 0


def _columns(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """A linear layer on columns."""
    return weight @ x if bias is None else weight @ x + bias[..., None]


class _Block(nn.Module):
    """Two layers with ELU, then batch normalisation over everything but the features."""

    def __init__(self, inputs: int, size: int, batch_norm: bool) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, size)
        self.second = nn.Linear(size, size)
        self.norm = nn.BatchNorm1d(size) if batch_norm else None

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.first(x))

    def rest(self, x: Tensor) -> Tensor:
        """All that follows the first linear layer."""
        x = nn.functional.elu(self.second(nn.functional.elu(x)))
        return x if self.norm is None else self.norm(x.flatten(0, -2)).view_as(x)


def edge_layer(
    layer: nn.Linear, nodes: Float[Tensor, "... nodes dim"]
) -> Float[Tensor, "... nodes nodes hidden"]:
    """A linear layer on ``[receiver, sender]`` side by side, for all pairs.

    One product per node and a sum per pair, instead of a product per pair.
    """
    size = nodes.shape[-1]
    receiver, sender = layer.weight[:, :size], layer.weight[:, size : 2 * size]
    received = nn.functional.linear(nodes, receiver, layer.bias)
    sent = nn.functional.linear(nodes, sender)
    return received[..., :, None, :] + sent[..., None, :, :]


def difference_layer(
    layer: nn.Linear, nodes: Float[Tensor, "... nodes dim"]
) -> Float[Tensor, "... nodes nodes hidden"]:
    """A linear layer on ``receiver - sender``, for all pairs."""
    ends = nn.functional.linear(nodes, layer.weight)
    return ends[..., :, None, :] - ends[..., None, :, :] + layer.bias


def off_diagonal(
    grid: Float[Tensor, "batch nodes nodes hidden"],
) -> Float[Tensor, "batch directed hidden"]:
    """The n(n-1) entries off the diagonal, row by row: normalisation must not see the others."""
    n = grid.shape[1]
    # Without its first entry, the flat grid has the diagonal at the end of every n + 1.
    return grid.flatten(1, 2)[:, 1:].unflatten(1, (n - 1, n + 1))[:, :, :-1].flatten(1, 2)


def on_grid(
    directed: Float[Tensor, "batch directed"], n: int
) -> Float[Tensor, "batch nodes nodes"]:
    """What `off_diagonal` took apart, with zeros on the diagonal."""
    padded = nn.functional.pad(directed.unflatten(1, (n - 1, n)), (0, 1)).flatten(1)
    return nn.functional.pad(padded, (1, 0)).unflatten(1, (n, n))
