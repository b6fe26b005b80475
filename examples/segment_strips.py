"""Semi-Markov: cut strips of digits drawn side by side. python segment_strips.py

A digit is seven bars, on or off, drawn two to four columns wide without a gap; every bar of every
column is flipped one time in seven. The model learns from 300 strips that were cut by hand.
"""

import torch
from torch.nn.functional import pad

import nestruct

BARS = torch.tensor([119, 18, 93, 91, 58, 107]).unsqueeze(1) >> torch.arange(7) & 1
DIGITS, WIDEST, COLUMNS, FLIPPED = len(BARS), 4, 24, 0.15


def over_segments(columns: torch.Tensor, skip: int = 0) -> torch.Tensor:
    """Sums of [..., columns, states] over segments, less their first ``skip`` columns."""
    sums = pad(columns.cumsum(1), (0, 0, WIDEST, 0))
    begins = [sums[:, WIDEST + skip - w :][:, :COLUMNS] for w in range(1, WIDEST + 1)]
    return sums[:, WIDEST:, None] - torch.stack(begins, 2)


class Cutter(nestruct.StructuredModel):
    """Bars of columns -> scores of digits, summed over segments, plus one of each width."""

    structure = nestruct.SemiMarkov(DIGITS, WIDEST)

    def __init__(self) -> None:
        super().__init__()
        self.digit = torch.nn.Linear(7, DIGITS)
        self.width = torch.nn.Parameter(torch.zeros(WIDEST, 1))

    def encode(self, batch):
        return over_segments(self.digit(batch["x"])) + self.width


def strips(count: int, seed: int) -> dict[str, torch.Tensor]:
    """Strips x, and their segments z with random widths and digits."""
    scores = pad(torch.zeros(count, COLUMNS, WIDEST - 1, DIGITS), (0, 0, 1, 0), value=-torch.inf)
    z = Cutter.structure.sample(scores, torch.Generator().manual_seed(seed))
    ends = pad(z, (0, 0, 0, 0, 0, WIDEST))
    inside = sum(ends[:, i : i + COLUMNS, i:].sum(2) for i in range(WIDEST))  # what ends soon
    flips = (torch.rand(count, COLUMNS, 7) < FLIPPED).float()
    return {"x": (inside @ BARS.float() - flips).abs(), "z": z}


torch.manual_seed(0)
train, unseen = strips(300, 0), strips(500, 1)
model = Cutter()
adam = torch.optim.Adam(model.parameters(), lr=0.1)
for _ in range(100):
    scores = model.encode(train)
    loss = model.structure.log_partition(scores) - (scores * train["z"]).sum((-3, -2, -1))
    adam.zero_grad(), loss.mean().backward(), adam.step()
alike = 3 - pad(unseen["x"].diff(dim=1), (0, 0, 1, 0)).abs().sum(-1, keepdim=True)
by_change = nestruct.SemiMarkov(1, WIDEST).argmax(over_segments(alike, skip=1))
truth, cuts = unseen["z"].sum(-1), (model.infer(unseen), by_change, strips(500, 2)["z"])
found, baseline, chance = (float((z.sum(-1) * truth).sum() / truth.sum()) for z in cuts)
print(f"segments cut right: {found:.0%}, by changes {baseline:.0%}, chance {chance:.0%}")
