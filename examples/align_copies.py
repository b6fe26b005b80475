"""Alignment: two noisy copies of a text, one in a secret alphabet. python align_copies.py"""

import torch

import nestruct

SYMBOLS, LENGTH, NOISE = 8, 10, 0.2
SECRET = torch.randperm(SYMBOLS, generator=torch.Generator().manual_seed(5))


class Aligner(nestruct.StructuredModel):
    """Two sequences -> a score for each pair of symbols -> the best path."""

    structure = nestruct.Alignment()

    def __init__(self) -> None:
        super().__init__()
        self.score = torch.nn.Parameter(torch.zeros(SYMBOLS, SYMBOLS))

    def context(self, batch):
        return {"lengths": batch["n"], "other_lengths": batch["m"]}

    def encode(self, batch):
        return self.score[batch["x"][:, :, None], batch["y"][:, None, :]]


def copies(count: int) -> dict[str, torch.Tensor]:
    """Pairs of copies, which hold every symbol once or twice; each fifth symbol is wrong."""
    source = torch.randint(SYMBOLS, (count, LENGTH))

    def copy(alphabet):
        ends = torch.randint(1, 3, (count, LENGTH)).cumsum(1)
        origin = (torch.arange(2 * LENGTH)[:, None] >= ends[:, None]).sum(-1).clamp(max=LENGTH - 1)
        text = alphabet[source.gather(1, origin)]
        other = torch.randint(SYMBOLS, text.shape)
        return torch.where(torch.rand(text.shape) < NOISE, other, text), ends[:, -1], origin

    (x, n, one), (y, m, other) = copy(torch.arange(SYMBOLS)), copy(SECRET)
    apart = (one[:, :, None] - other[:, None, :]).abs().float()
    z = Aligner.structure.argmax(-apart, lengths=n, other_lengths=m)
    return {"x": x, "y": y, "n": n, "m": m, "z": z}


torch.manual_seed(0)
train, unseen, model = copies(200), copies(500), Aligner()
adam = torch.optim.Adam(model.parameters(), lr=0.1)
for _ in range(80):
    scores = model.encode(train)
    total = model.structure.log_partition(scores, **model.context(train))
    loss = total.mean() - (scores * train["z"]).sum() / len(scores)
    adam.zero_grad(), loss.backward(), adam.step()
rows, columns = (torch.arange(2 * LENGTH) / unseen[s][:, None] for s in "nm")
straight = -(rows[:, :, None] - columns[:, None, :]).abs()
given = (model.encode(unseen), straight, torch.zeros_like(straight))
paths = [model.structure.argmax(scores, **model.context(unseen)) for scores in given]
truth = unseen["z"]
found, baseline, chance = (float(2 * (z * truth).sum() / (z + truth).sum()) for z in paths)
print(f"F1 of cells: {found:.0%}, straight line {baseline:.0%}, chance {chance:.0%}")
