"""Random layers of several members of the relational model, and what they read."""

import torch
from torch import Tensor

import nestruct


def decoder_layers(members: int, hidden: int) -> list[Tensor]:
    shapes = [(2 * hidden, 4), (2 * hidden, hidden), (hidden, 2 + hidden), (hidden, hidden)]
    return _layers(members, [*shapes, (2, hidden)], 0)


def encoder_layers(members: int, dim: int, hidden: int) -> list[Tensor]:
    layers = []
    for inputs in (dim, 2 * hidden, hidden, 3 * hidden):
        layers += _layers(members, [(hidden, inputs), (hidden, hidden)], inputs)
        layers += [1 + 0.3 * torch.randn(members, hidden), 0.3 * torch.randn(members, hidden)]
    return layers + _layers(members, [(1, hidden)], 1)


def _layers(members: int, shapes: list[tuple[int, int]], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for shape in shapes:
        layers.append(torch.randn(members, *shape, generator=generator) / shape[1] ** 0.5)
        layers.append(0.3 * torch.randn(members, shape[0], generator=generator))
    return layers


def cells_and_trees(
    members: int, n: int, cells: int, samples: int = 1, kind: str = "tree"
) -> tuple[Tensor, Tensor]:
    """Positions ``[members, 2, nodes, cells]`` and z ``[members, edges, samples, cells]``."""
    pairs = n * (n - 1) // 2
    structure = nestruct.SpanningTree(n) if kind == "tree" else nestruct.KSubset(pairs, n - 1)
    generator = torch.Generator().manual_seed(n)
    scores = torch.rand(members, samples, cells, pairs, generator=generator)
    positions = torch.randn(members, 2, n, cells, generator=generator)
    return positions, structure.argmax(scores).movedim(-1, 1).contiguous()
