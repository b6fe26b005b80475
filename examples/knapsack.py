"""Your own solver: learn what things are worth from how an expert packs. python knapsack.py

The expert loads the most valuable van that 20 kg allow; what a parcel is worth nobody tells. The
usual way judges each parcel alone; the other trains the same linear model through the solver.
"""

import numpy as np
import torch

import nestruct

WEIGHTS, CAPACITY = np.array([2, 3, 4, 5, 6, 7, 8, 9, 10, 11]), 20


def pack(values: np.ndarray) -> np.ndarray:
    """The exact 0/1 knapsack by dynamic programming: plain numpy, all vans of a batch at once."""
    best, take = np.zeros((len(values), CAPACITY + 1)), []
    for item, weight in enumerate(WEIGHTS):
        loaded = np.full_like(best, -np.inf)
        loaded[:, weight:] = best[:, :-weight] + values[:, item, None]
        take.append(loaded > best)
        best = np.maximum(best, loaded)
    z, room, row = np.zeros(values.shape), np.full(len(values), CAPACITY), np.arange(len(values))
    for item in reversed(range(len(WEIGHTS))):
        z[:, item] = take[item][row, room]
        room -= WEIGHTS[item] * take[item][row, room]
    return z


class Packer(nestruct.StructuredModel):
    """Features -> values -> van -> parcels that the expert treats otherwise."""

    structure = nestruct.BlackBox(pack, shape=(len(WEIGHTS),), backend="numpy")

    def __init__(self) -> None:
        super().__init__()
        self.worth = torch.nn.Parameter(torch.zeros(5))

    def encode(self, batch):
        return batch["x"] @ self.worth

    def decode(self, batch, z):
        return -(z - batch["z"]).abs().sum(-1)


torch.manual_seed(0)
weight = torch.as_tensor(WEIGHTS).float().expand(1000, -1)[..., None]
x = torch.cat([torch.randn(1000, len(WEIGHTS), 3), weight / 5, torch.ones_like(weight)], -1)
z = Packer.structure.argmax(x @ torch.tensor([1.0, -0.7, 0.4, 1.5, 1.0]))
model, nes = Packer(), nestruct.NES(sigma=0.3, population_size=20)
adam = torch.optim.Adam(model.parameters(), lr=0.2)
nestruct.fit(model, nes, adam, {"x": x[:200], "z": z[:200]}, max_steps=150, progress=False)
alone = torch.linalg.lstsq(x[:200].flatten(0, 1), z[:200].flatten()).solution
values = torch.rand(800, 10), x[200:] @ alone, x[200:] @ model.worth.detach()
chance, baseline, found = ((pack(v.numpy()) == z[200:].numpy()).all(-1).mean() for v in values)
print(f"unseen vans loaded as by the expert: {found:.0%} through the solver, ", end="")
print(f"{baseline:.0%} parcel by parcel, {chance:.0%} by chance")
ratios = (f"{w:.2f}" for w in (model.worth / model.worth[0])[:3].tolist())
print("worth of the features: truth 1.00 -0.70 0.40, found", *ratios)
