"""Spanning tree: find the pipes between six rooms from their temperatures. python spanning_tree.py

Heat flows along a hidden tree of pipes, and weather disturbs it. The model draws a tree and lets
heat flow along it; it is told how far the next temperatures were off, never a tree, nor the rate.
"""

import torch

import nestruct
from nestruct.models import mlp

ROOMS, TIMES, RATE, WEATHER = 6, 16, 0.3, 0.3
ONE, OTHER = torch.triu_indices(ROOMS, ROOMS, 1)  # the 15 pairs of rooms


def flow(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What each room gains along the pipes z: [..., rooms, times]."""
    pipes = z.new_zeros(*z.shape[:-1], ROOMS, ROOMS)
    pipes[..., ONE, OTHER] = pipes[..., OTHER, ONE] = z
    return pipes @ x - pipes.sum(-1, keepdim=True) * x


class Plumber(nestruct.StructuredModel):
    """Two rooms' temperatures -> a score for their pipe -> tree -> the next temperatures."""

    structure = nestruct.SpanningTree(ROOMS)

    def __init__(self) -> None:
        super().__init__()
        self.score = mlp(2 * (TIMES + 1), 64, 64, 1)
        self.rate = torch.nn.Parameter(torch.tensor(0.1))

    def encode(self, batch):
        one, other = batch["x"][:, ONE], batch["x"][:, OTHER]
        both = torch.stack([torch.cat([one, other], -1), torch.cat([other, one], -1)])
        return self.score(both).sum((0, -1))

    def decode(self, batch, z):
        x, truth = batch["x"][..., :-1], batch["x"][..., 1:]
        return -(x + self.rate * flow(z, x) - truth).square().sum((-2, -1)) / (2 * WEATHER**2)


torch.manual_seed(0)
z = Plumber.structure.argmax(torch.rand(5000, len(ONE)))  # the truth, for the evaluation only
x = torch.randn(5000, ROOMS, 1)
for _ in range(TIMES):
    now, weather = x[..., -1:], WEATHER * torch.randn(5000, ROOMS, 1)
    x = torch.cat([x, now + RATE * flow(z, now) + weather], -1)
train, unseen = {"x": x[1000:]}, {"x": x[:1000], "z": z[:1000]}
model, estimator = Plumber(), nestruct.StructureNES(num_samples=16)
adam = torch.optim.Adam(model.parameters(), lr=0.005)
options = {"max_steps": 400, "batch_size": 100, "progress": False}
result = nestruct.fit(model, estimator, adam, train, validation=unseen, **options)
before, found = result.initial["f1_map"], result.best["f1_map"]
alike = model.structure.argmax(-(x[:1000, ONE] - x[:1000, OTHER]).square().mean(-1))
baseline = float((alike * unseen["z"]).sum(-1).mean() / (ROOMS - 1))
print(f"pipes found in unseen houses: {before:.0%} untrained, {found:.0%} trained, ", end="")
print(f"chance {2 / ROOMS:.0%}, tree of the most similar rooms {baseline:.0%}")
print(f"rate of flow: truth {RATE}, found {model.rate.item():.2f}")
