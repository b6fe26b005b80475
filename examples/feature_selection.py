"""k-subset: which two of ten features decide, for each example anew? python feature_selection.py

The sign of feature 0 says which pair the answer is made of: 1 and 2, or 3 and 4. Only answers are
observed. The model may look at everything to choose two features, but answers from those two alone,
so whoever looks at the result knows why. The same model is trained by three estimators.
"""

import time

import torch

import nestruct
from nestruct.models import mlp


class Selector(nestruct.StructuredModel):
    """Features -> scores -> two features -> answer."""

    structure = nestruct.KSubset(10, k=2)

    def __init__(self) -> None:
        super().__init__()
        self.choose, self.answer = mlp(10, 32, 10), mlp(10, 32, 1)

    def encode(self, batch):
        return self.choose(batch["x"])

    def decode(self, batch, z):
        return -(self.answer(z * batch["x"])[..., 0] - batch["y"]).square()


def examples(count: int, seed: int) -> dict[str, torch.Tensor]:
    """Features x, answers y; the right pair z is for the evaluation only."""
    x = torch.randn(count, 10, generator=torch.Generator().manual_seed(seed))
    first = x[:, 0] > 0
    y = torch.where(first, x[:, 1] + 2 * x[:, 2], x[:, 3] - 2 * x[:, 4])
    pairs = torch.zeros(2, 10)
    pairs[0, [3, 4]] = pairs[1, [1, 2]] = 1
    return {"x": x, "y": y, "z": pairs[first.long()]}


train, unseen = examples(2000, seed=0), examples(1000, seed=1)
found = {}
print(f"{'':24}right features  squared error  seconds")
print(f"{'by chance':24}{2 / 10:>14.0%}  {train['y'].var():13.2f}")
for estimator in (
    nestruct.NES(sigma=0.05, population_size=60),
    nestruct.ScoreNES(num_pairs=8),
    nestruct.StructureNES(num_samples=16),
):
    torch.manual_seed(0)
    model, start = Selector(), time.perf_counter()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {"max_steps": 200, "batch_size": 200, "progress": False}
    best = nestruct.fit(model, estimator, adam, train, validation=unseen, **options).best
    name, spent = type(estimator).__name__, time.perf_counter() - start
    found[name] = best["f1_map"]
    print(f"{name:24}{best['f1_map']:>14.0%}  {best['loss']:13.2f}  {spent:7.1f}")
