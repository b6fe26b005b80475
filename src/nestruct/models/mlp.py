"""Plain multi-layer perceptrons."""

import itertools

from torch import nn


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU between them: ``mlp(784, 300, 10)``."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
