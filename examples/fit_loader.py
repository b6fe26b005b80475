"""`fit` with what PyTorch users have: a DataLoader, a callback that stops, a log as CSV.

Eight jobs are put in the order of their deadlines. Training stops once nine of ten are in place.

    python examples/fit_loader.py
"""

import torch
from torch.utils.data import DataLoader, Dataset

import nestruct
from nestruct.training import CSVLogger, Event

JOBS, FEATURES = 8, 6


class Days(Dataset):
    """Each day's jobs: what is said of them, and their true order."""

    def __init__(self, size: int) -> None:
        self.x = torch.randn(size, JOBS, FEATURES)
        deadline = self.x @ torch.linspace(-1, 1, FEATURES)
        self.place = torch.nn.functional.one_hot(deadline.argsort().argsort(), JOBS).float()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, day: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[day], "z": self.place[day]}


class Plan(nestruct.StructuredModel):
    """Jobs -> scores of places -> an order."""

    def __init__(self) -> None:
        super().__init__()
        self.structure, self.place = nestruct.Permutation(JOBS), torch.nn.Linear(FEATURES, 1)

    def encode(self, batch):  # a late job suits a late place
        return self.place(batch["x"]) * torch.linspace(-1, 1, JOBS)

    def decode(self, batch, z):  # places that are right, of eight
        return (z * batch["z"]).sum((-2, -1))


def enough(event: Event) -> None:
    """Stops the training where nine of ten jobs are in their place."""
    if event["split"] == "validation" and event["f1_map"] > 0.9:
        event.stop()


torch.manual_seed(0)
train, validation = (DataLoader(Days(n), batch_size=50, shuffle=True) for n in (1000, 200))
model, estimator = Plan(), nestruct.StructureNES(num_samples=16)
adam = torch.optim.Adam(model.parameters(), lr=0.03)
options = {"callbacks": [enough], "loggers": [CSVLogger("log.csv")], "max_epochs": 20}
result = nestruct.fit(model, estimator, adam, train, validation=validation, **options)
found = result.best["f1_map"]
print(f"{result.reason} at step {result.step}: {found:.0%} in place; by chance {1 / JOBS:.0%}")
