"""The networks of neural relational inference: an encoder that scores pairs, a decoder that moves.

T. Kipf et al., "Neural Relational Inference for Interacting Systems", 2018: the MLP encoder in its
factor-graph variant, and the MLP decoder with two kinds of pairs, no edge and edge.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.models.relational.compiled import compiled
from nestruct.models.relational.pair_scores import off_diagonal, pair_scores, pair_scores_op
from nestruct.models.relational.roll_out import roll_out, roll_out_op
from nestruct.sharing import current_share

DIMENSIONS = 2  # coordinates of a position


def is_fast(module: "RelationalEncoder | RelationalDecoder", x: Tensor) -> bool:
    """Whether a module takes its fast way: in training on a GPU, where it is asked to.

    That way is one process's: it normalises over the batch at hand.
    """
    return module.fused and module.training and x.is_cuda and current_share() is None


class RelationalEncoder(nn.Module):
    """NRI's MLP encoder, factor-graph variant: from node trajectories to a score per direction.

    Args:
        inputs: What is known of each node: so many numbers.
        hidden_size: The width of all hidden layers.
        batch_norm: Whether blocks end in batch normalisation.
        relative: Whether pairs start from differences, without blocks for nodes before.
        fused: Whether training takes the fast way on a GPU; only NRI's own encoder has one.
    """

    def __init__(
        self,
        inputs: int,
        hidden_size: int,
        *,
        batch_norm: bool = True,
        relative: bool = False,
        fused: bool = False,
    ) -> None:
        super().__init__()
        size = hidden_size
        self.fused = fused and batch_norm and not relative
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
        if is_fast(self, x):
            return on_grid(self._fused_scores(x), n)
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

    def _fused_scores(self, x: Tensor) -> Float[Tensor, "batch directed"]:
        assert self.node_in is not None
        blocks = (self.node_in, self.edge_in, self.node_out, self.edge_out)
        norms = [block.norm for block in blocks if block.norm is not None]
        layers = [
            layer
            for block, norm in zip(blocks, norms, strict=True)
            for layer in (block.first, block.second, norm)
        ]
        parameters = [tensor for m in (*layers, self.score) for tensor in (m.weight, m.bias)]
        if torch.is_grad_enabled():
            scores, statistics = compiled(pair_scores)(x, *parameters)
        else:  # perhaps of many members
            scores, statistics = pair_scores_op(x, parameters)
        batch, n = x.shape[:2]
        counts = [batch * n, batch * n * (n - 1)] * 2
        for norm, count, (mean, variance) in zip(norms, counts, statistics.detach(), strict=True):
            _follow(norm, mean, variance * (count / (count - 1)))
        return scores


class RelationalDecoder(nn.Module):
    """NRI's MLP decoder: from positions and edges to the positions some steps later.

    Features come first and rows last, unlike elsewhere: there are few features and many rows, so
    every product and every broadcast then has a long inner axis.

    Args:
        num_nodes: Nodes of each example.
        hidden_size: The width of all hidden layers.
        fused: Whether training takes the fast way on a GPU: a step compiled by `torch.compile`,
            with products in bfloat16, or kernels where no derivative is asked for.
            Evaluation never does.
    """

    def __init__(self, num_nodes: int, hidden_size: int, *, fused: bool = False) -> None:
        super().__init__()
        size = hidden_size
        self.num_nodes = num_nodes
        self.fused = fused
        self.message_in = nn.Linear(2 * DIMENSIONS, 2 * size)
        self.message_out = nn.Linear(size, 2 * size)
        self.move_in = nn.Linear(DIMENSIONS + size, size)
        self.move_hidden = nn.Linear(size, size)
        self.move_out = nn.Linear(size, DIMENSIONS)

    def roll_out(
        self,
        positions: Float[Tensor, "2 nodes cells"],
        z: Float[Tensor, "edges samples cells"],
        num_steps: int,
        *,
        hard: bool = False,
    ) -> Float[Tensor, "2 nodes samples cells steps"]:
        """Where nodes are after each of some steps, every one made from the last.

        Args:
            positions: Where nodes are at first.
            z: Edges, several samples for each of the positions; any numbers.
            num_steps: How many steps.
            hard: That z is of zeros and as many ones as a tree has edges: a shorter way.
        """
        layers = (self.message_in, self.message_out, self.move_in, self.move_hidden, self.move_out)
        parameters = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
        fast = is_fast(self, z)
        if fast and not torch.is_grad_enabled():  # perhaps of many members
            return roll_out_op(positions, z, parameters, num_steps, hard)
        return roll_out(positions, z, parameters, num_steps, hard=hard, fused=fast)

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


def _follow(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor) -> None:
    """Moves running statistics as the layer itself does in training."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    for running, new in ((norm.running_mean, mean), (norm.running_var, variance)):
        running.mul_(1 - norm.momentum).add_(norm.momentum * new)


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


def on_grid(
    directed: Float[Tensor, "batch directed"], n: int
) -> Float[Tensor, "batch nodes nodes"]:
    """What `off_diagonal` took apart, with zeros on the diagonal."""
    padded = nn.functional.pad(directed.unflatten(1, (n - 1, n)), (0, 1)).flatten(1)
    return nn.functional.pad(padded, (1, 0)).unflatten(1, (n, n))
