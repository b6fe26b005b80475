"""GridPath: find the cheap way over terrain whose costs nobody knows. python grid_paths.py

A map shows what each cell looks like (four noisy features). Couriers cross it from corner to corner
and only report how long it took them. Which terrain is slow must be learnt from these times.
"""

import torch

import nestruct
from nestruct.models import mlp

SIZE = 8


def cost(x: torch.Tensor) -> torch.Tensor:
    """The hidden costs: swamps (wet and low) are slow, and so are steep slopes."""
    return 0.1 + 4 * torch.sigmoid(4 * x[..., 0] * x[..., 1]) + x[..., 2] ** 2


def hours(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """How long a path takes."""
    return (z * cost(x)).sum((-2, -1))


class Router(nestruct.StructuredModel):
    """Features -> a cost per cell -> the path that is best by them -> hours."""

    structure = nestruct.GridPath(SIZE, SIZE)

    def __init__(self) -> None:
        super().__init__()
        self.guess = mlp(4, 32, 1)

    def encode(self, batch):
        return 3 * self.guess(batch)[..., 0]

    def decode(self, batch, z):
        return -hours(batch, z)


def saved(scores: torch.Tensor) -> float:
    """The share that is saved of the hours that knowing all costs would save over any path."""
    each = (torch.randn_like(scores), scores, -cost(unseen))
    usual, found, best = (hours(unseen, model.structure.argmax(s)).mean() for s in each)
    return float((usual - found) / (usual - best))


torch.manual_seed(0)
train, unseen = torch.randn(200, SIZE, SIZE, 4), torch.randn(500, SIZE, SIZE, 4)
model = Router()
before = saved(model.encode(unseen).detach())
features = torch.cat([unseen, unseen**2, -unseen, -(unseen**2)], -1).unbind(-1)
baseline = max(map(saved, features))
nes = nestruct.NES(sigma=0.1, population_size=40)
adam = torch.optim.Adam(model.parameters(), lr=0.03)
nestruct.fit(model, nes, adam, train, max_steps=300, batch_size=50, progress=False)
found = saved(model.encode(unseen).detach())
print(f"unseen maps, hours saved: {before:.0%} untrained, {found:.0%} trained; ", end="")
print(f"chance 0%, by the best feature or square {baseline:.0%}")
