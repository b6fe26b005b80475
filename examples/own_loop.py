"""A training loop of one's own: a DataLoader, an estimator's `backward`, any optimizer.

Three of twelve cities are worth a visit, and which three depends on the day. A network scores the
cities, a solver picks the best three, and all that is known of a day is how good its trip was.

    python examples/own_loop.py
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import nestruct
from nestruct.models import mlp

torch.manual_seed(0)
CITIES = 12
weather = torch.randn(2000, 8)
worth = weather @ torch.randn(8, CITIES)  # hidden from the model, but for the trips' worth
best = worth.topk(3).indices
train = TensorDataset(weather[:1600], worth[:1600])
held_out = weather[1600:], worth[1600:]


class Trips(nestruct.StructuredModel):
    """Weather -> scores of cities -> three of them."""

    structure = nestruct.KSubset(CITIES, k=3)

    def __init__(self) -> None:
        super().__init__()
        self.score = mlp(8, 64, CITIES)

    def encode(self, batch):
        return self.score(batch[0])

    def decode(self, batch, z):  # how good a trip is: higher is better
        return (z * batch[1]).sum(-1)


def share_found(model: Trips) -> float:
    """How many of the best three cities the model picks."""
    z = model.infer(held_out)
    return float(z.gather(1, best[1600:]).mean())


model = Trips()
estimator = nestruct.StructureNES(num_samples=16)
adam = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
for epoch in range(6):
    for batch in DataLoader(train, batch_size=64, shuffle=True):
        report = estimator.backward(model, batch, seed=0, step=step)  # sets .grad
        adam.step()  # gradients are set, not added: nothing to set to zero
        step += 1
    print(f"epoch {epoch}: loss {report.loss:.2f}, right cities {share_found(model):.0%}")

baseline = 3 / CITIES
found = share_found(model)
print(f"right cities: {found:.0%}; by chance {baseline:.0%}")
