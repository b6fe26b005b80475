"""What a member is taken to need of memory."""

import torch
from torch import nn

from nestruct import Noise
from nestruct.population.budget import activation_bytes


class Twice(nn.Module):
    """Two layers whose weights are large beside what they make of an example."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(500, 200), nn.Linear(200, 1)

    def loss(self, batch, noise):
        return self.second(self.first(batch).tanh())[:, 0]


def test_a_view_of_a_weight_takes_no_memory():
    model, batch = Twice(), torch.ones(3, 500)
    results = 3 * (200 + 200 + 1) * 4  # the first layer's, tanh's and the second layer's
    assert activation_bytes(model, batch, Noise(seed=0)) == results


def test_buffers_are_counted():
    model, batch = Twice(), torch.ones(3, 500)
    before = activation_bytes(model, batch, Noise(seed=0))
    model.register_buffer("large", torch.zeros(1000))
    assert activation_bytes(model, batch, Noise(seed=0)) == before + 4000
