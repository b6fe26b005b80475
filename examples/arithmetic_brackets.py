"""Constituency tree: find the brackets of arithmetic from results. python arithmetic_brackets.py

What 7-2*3+5-1*4*9 comes to is known, but not that * goes first, and the rest from the left.
"""

import torch
from torch.nn.functional import one_hot, pad

import nestruct
from nestruct.models import mlp

NUMBERS = 7


def result(batch: dict[str, torch.Tensor], z: torch.Tensor) -> torch.Tensor:
    """What expressions come to if their brackets are z; a sign is 1, -1, or 0 for times."""
    value = {(i, i): batch["x"][:, i] for i in range(NUMBERS)}
    for i, j in ((i, i + w) for w in range(1, NUMBERS) for i in range(NUMBERS - w)):
        value[i, j] = torch.zeros(z.shape[:-2])
        for k in range(i, j):  # where (i, j) is in brackets, both halves are for one k
            a, b, sign = value[i, k], value[k + 1, j], batch["signs"][:, k]
            both = torch.where(sign == 0, a * b, a + sign * b)
            value[i, j] = value[i, j] + z[..., i, k] * z[..., k + 1, j] * both
    return value[0, NUMBERS - 1]


class Reader(nestruct.StructuredModel):
    """The signs in each bracket and around it -> its score -> the best tree -> a result."""

    structure = nestruct.ConstituencyTree()

    def __init__(self) -> None:
        super().__init__()
        self.score = mlp(9, 32, 1)

    def encode(self, batch):
        around = pad(one_hot(batch["signs"] + 1, 3).float(), (0, 0, 1, 1))
        upto = around.cumsum(1)
        known = upto[:, None, :-1] - upto[:, :-1, None], around[:, :-1, None], around[:, None, 1:]
        return 3 * self.score(torch.cat(torch.broadcast_tensors(*known), -1))[..., 0]

    def decode(self, batch, z):
        return -(result(batch, z) != batch["y"]).float()  # right or wrong is all that is told


torch.manual_seed(0)
x, signs = torch.randint(1, 10, (1500, NUMBERS)), torch.randint(-1, 2, (1500, NUMBERS - 1))
y, product = torch.zeros(len(x)), x[:, 0]
for sign, number in zip(signs.T, x.T[1:], strict=True):
    y = torch.where(sign == 0, y, y + product)
    product = torch.where(sign == 0, product * number, sign * number)
data, model = {"x": x.float(), "signs": signs, "y": y + product}, Reader()
train, unseen = (nestruct.select_rows(data, rows) for rows in torch.arange(1500).split([500, 1000]))
nes, adam = nestruct.StructureNES(num_samples=8), torch.optim.Adam(model.parameters(), lr=0.01)
nestruct.fit(model, nes, adam, train, max_steps=100, batch_size=100, progress=False)
left = torch.eye(NUMBERS).index_fill(0, torch.tensor(0), 1.0)  # all brackets begin in front
trees = model.infer(unseen), left, model.structure.argmax(torch.randn(1000, NUMBERS, NUMBERS))
found, baseline, chance = (float((result(unseen, z) == unseen["y"]).float().mean()) for z in trees)
print(f"unseen results right: {found:.0%}, from the left {baseline:.0%}, by chance {chance:.0%}")
