"""A model with an LSTM: find what matters in a row of digits, from a sum. python lstm.py

What counts are the two digits that follow a 0, and only their sum is told. An LSTM reads the row
and scores the places; the two best are added. nn.LSTM cannot be vmapped, so NES evaluates its
members one after the other: nothing else changes, and nothing is differentiated.
"""

import torch

import nestruct

LENGTH = 8


class Reader(nestruct.StructuredModel):
    """Digits -> LSTM -> a score for each place -> two places -> their sum."""

    structure = nestruct.KSubset(LENGTH, k=2)

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 6)
        self.lstm = torch.nn.LSTM(6, 8, batch_first=True)
        self.score = torch.nn.Linear(8, 1)

    def encode(self, batch):
        return self.score(self.lstm(self.embed(batch["x"]))[0])[..., 0]

    def decode(self, batch, z):
        return -((z * batch["x"]).sum(-1) - batch["sum"]).abs()


def rows(count: int, seed: int) -> dict[str, torch.Tensor]:
    """Rows x with two zeros and sums; the places z are for the evaluation only."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(1, 10, (count, LENGTH), generator=generator)
    first, gap = torch.randint(0, 3, (2, count, 1), generator=generator)
    zeros = torch.cat([first, first + 2 + gap], 1)
    z = torch.zeros(count, LENGTH).scatter_(1, zeros + 1, 1.0)
    x.scatter_(1, zeros, 0)
    return {"x": x, "z": z, "sum": (z * x).sum(-1)}


train, unseen = rows(1000, seed=0), rows(500, seed=1)
torch.manual_seed(0)
model = Reader()
nes = nestruct.NES(sigma=0.2, population_size=20)
adam = torch.optim.Adam(model.parameters(), lr=0.08)
options = {"max_steps": 150, "batch_size": 100, "progress": False}
result = nestruct.fit(model, nes, adam, train, validation=unseen, **options)
before, found = result.initial["f1_map"], result.best["f1_map"]
print(f"right digits found in unseen rows: {before:.0%} untrained, {found:.0%} trained, ", end="")
print(f"chance {2 / LENGTH:.0%}; {result.evaluations:,} forward passes")
for x, z in zip(unseen["x"][:5].tolist(), model.infer(unseen)[:5].tolist(), strict=True):
    marks = (f"[{digit}]" if chosen else f" {digit} " for digit, chosen in zip(x, z, strict=True))
    print("  " + "".join(marks))
