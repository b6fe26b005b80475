"""A problem of one's own for recipe.toml: data, solver, model and estimator in one file.

Vans differ in what they can carry, parcels in what they weigh. An expert loads every van as well as
it can; what a parcel is worth nobody tells, so it is learnt from what was loaded.
"""

from dataclasses import dataclass

import numpy as np
import torch

import nestruct
from nestruct.estimators import Backpropagation, Terms

PARCELS, FEATURES = 8, 4


def load_van(worth, weights, room):
    """The exact 0/1 knapsack of one van, by dynamic programming: numpy in, numpy out."""
    best, take = np.zeros(int(room) + 1), []
    for value, weight in zip(worth, weights.astype(int), strict=True):
        loaded = np.full_like(best, -np.inf)
        loaded[weight:] = best[: len(best) - weight] + value
        take.append(loaded > best)
        best = np.maximum(best, loaded)
    z, left = np.zeros_like(worth), int(room)
    for parcel in reversed(range(len(worth))):
        z[parcel] = take[parcel][left]
        left -= int(z[parcel] * weights[parcel])
    return z


class Vans:
    """Vans that an expert has loaded.

    Args:
        num_train: Vans to learn from.
        seed: Decides all vans.
    """

    num_features = FEATURES  # the model asks for it

    def __init__(self, num_train: int = 200, seed: int = 0) -> None:
        self.num_train, self.seed = num_train, seed

    def splits(self):
        """Each split is a batch: a dictionary of tensors that share their first axis."""
        draw = torch.Generator().manual_seed(self.seed)
        sizes = {"train": self.num_train, "validation": 100, "test": 100}
        return {name: self._vans(size, draw) for name, size in sizes.items()}

    def _vans(self, size, draw):
        x = torch.randn(size, PARCELS, FEATURES, generator=draw)
        weights = torch.randint(1, 10, (size, PARCELS), generator=draw).float()
        room = torch.randint(10, 30, (size,), generator=draw).float()
        worth = x @ torch.tensor([1.0, -0.7, 0.4, 0.0]) + 0.3 * weights
        z = Loader.structure.argmax(worth, weights=weights, room=room)
        return {"x": x, "weights": weights, "room": room, "z": z}


class Loader(nestruct.StructuredModel):
    """Features -> worth -> van -> parcels that the expert treats otherwise.

    Args:
        num_features: Numbers per parcel; the data set knows it.
        by_weight: Whether worth may depend on the weight too.
    """

    structure = nestruct.BlackBox(load_van, (PARCELS,), batched=False, backend="numpy")

    def __init__(self, num_features: int, *, by_weight: bool = True) -> None:
        super().__init__()
        self.worth = torch.nn.Linear(num_features + 1, 1)
        self.by_weight = by_weight

    def encode(self, batch):
        weights = batch["weights"] * self.by_weight
        return self.worth(torch.cat([batch["x"], weights[..., None]], -1))[..., 0]

    def context(self, batch):
        return {"weights": batch["weights"], "room": batch["room"]}

    def decode(self, batch, z):
        return -(z - batch["z"]).abs().sum(-1)


@dataclass(kw_only=True, eq=False)
class StraightThrough(Backpropagation):
    """Decodes the hard structure as if its derivative with respect to the scores were 1.

    Args:
        strength: What is taken for that derivative.
    """

    kind = "black-box solver"

    strength: float = 1.0

    def terms(self, model, batch, noise):
        scores, context = model.encode(batch), model.context(batch)
        z = model.structure.argmax(scores + noise.gumbel(scores), **context)
        through = self.strength * (scores - scores.detach())
        return Terms(losses=model.loss_at(batch, scores, z + through))
