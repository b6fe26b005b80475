"""Permutation: sort by an order that nobody can state, from a count of mistakes. python sorting.py

Seven songs, four features each; listeners agree on an order but only tell how many pairs of a
playlist stand the wrong way round. That count is no function anyone could differentiate.
"""

import torch

import nestruct
from nestruct.models import mlp

SIZE = 7


def pleasure(x: torch.Tensor) -> torch.Tensor:
    """The hidden order: loud or slow songs are good, both together are not."""
    return (2 * x[..., 0]).sin() + x[..., 1] * x[..., 2]


def wrong_pairs(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """How many of the pairs are out of order: z[i, j] = 1 puts song i in place j."""
    played = z.mT @ pleasure(x)[..., None]
    return (played > played.mT).triu(1).sum((-2, -1)).float()


class Playlist(nestruct.StructuredModel):
    """Features -> a number per song, times places -> the best assignment -> wrong pairs."""

    structure = nestruct.Permutation(SIZE)

    def __init__(self) -> None:
        super().__init__()
        self.rate = mlp(4, 32, 1)

    def encode(self, batch):
        return self.rate(batch) * torch.arange(SIZE)

    def decode(self, batch, z):
        return -wrong_pairs(batch, z)


def right(z: torch.Tensor) -> float:
    """The share of pairs that stand in the right order in unseen playlists."""
    return 1 - float(wrong_pairs(unseen, z).mean()) / (SIZE * (SIZE - 1) / 2)


torch.manual_seed(0)
train, unseen = torch.randn(300, SIZE, 4), torch.randn(1000, SIZE, 4)
model = Playlist()
before = right(model.infer(unseen))
features = [sign * unseen[..., i : i + 1] for i in range(4) for sign in (-1, 1)]
baseline = max(right(model.structure.argmax(f * torch.arange(SIZE))) for f in features)
nes = nestruct.NES(sigma=0.1, population_size=40)
adam = torch.optim.Adam(model.parameters(), lr=0.05)
nestruct.fit(model, nes, adam, train, max_steps=400, batch_size=50, progress=False)
found = right(model.infer(unseen))
print(f"unseen pairs in the right order: {before:.0%} untrained, {found:.0%} trained; ", end="")
print(f"chance 50%, by the best single feature {baseline:.0%}")
