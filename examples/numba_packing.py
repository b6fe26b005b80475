"""A numba function of one's own: pack vans of different size. python numba_packing.py

The solver sees rooms and weights, a whole batch at once; values are learnt from whole vans.
"""

import numba
import numpy as np
import torch

import nestruct


@numba.njit
def pack(worth, weights, room):
    """The exact knapsack of every row: the best worth for each room, parcel by parcel."""
    z = np.zeros_like(worth)
    for row, left in enumerate(room):
        best = np.zeros((len(worth[row]) + 1, left + 1))
        for i, kg in enumerate(weights[row]):
            best[i + 1] = best[i]
            best[i + 1, kg:] = np.maximum(best[i, kg:], best[i, : left + 1 - kg] + worth[row, i])
        for i in range(len(worth[row]) - 1, -1, -1):
            if best[i + 1, left] > best[i, left]:
                z[row, i], left = 1, left - weights[row, i]
    return z


class Packer(nestruct.StructuredModel):
    """Features of a parcel -> its worth -> a van -> what all of it was worth."""

    structure = nestruct.BlackBox(pack, shape=(12,), backend="numpy")

    def __init__(self) -> None:
        super().__init__()
        self.worth = nestruct.models.mlp(3, 16, 1)

    def encode(self, batch):
        return self.worth(batch["x"])[..., 0]

    def context(self, batch):
        return {"weights": batch["weights"], "room": batch["room"]}

    def decode(self, batch, z):
        return (z * batch["value"]).sum(-1)


torch.manual_seed(0)
x, weights = torch.randn(1500, 12, 3), torch.randint(2, 12, (1500, 12))
room = torch.randint(15, 40, (1500,))
data = {"x": x, "weights": weights, "room": room, "value": x[..., 0].exp()}
train, unseen = (nestruct.select_rows(data, rows) for rows in torch.arange(1500).split(1000))
model, estimator = Packer(), nestruct.StructureNES(num_samples=16, num_covariance=0)
adam = torch.optim.Adam(model.parameters(), lr=0.03)
nestruct.fit(model, estimator, adam, train, max_steps=60, batch_size=50, progress=False)
guesses = unseen["value"], model.encode(unseen).detach(), torch.ones(500, 12), torch.rand(500, 12)
solved = (model.structure.argmax(guess, **model.context(unseen)) for guess in guesses)
best, *others = (float(model.decode(unseen, z).sum()) for z in solved)
found, baseline, chance = (other / best for other in others)
print(f"of the best value: {found:.0%} learnt, {baseline:.0%} most parcels, {chance:.0%} by chance")
