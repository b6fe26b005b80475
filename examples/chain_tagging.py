"""Linear chain: tag noisy readings, whose tags follow rules of their own. python chain_tagging.py

A machine is in one of four states and moves round a ring of them; a reading tells the state one
time in two or so. The model is given 200 tagged sequences and learns readings and rules together.
"""

import torch

import nestruct

STATES, LENGTH, SEEN = 4, 16, 0.4


class Tagger(nestruct.StructuredModel):
    """Readings -> scores of states, plus those of moves -> the likelihood of the true tags."""

    structure = nestruct.LinearChain(STATES)

    def __init__(self) -> None:
        super().__init__()
        self.reading = torch.nn.Parameter(torch.zeros(STATES, STATES))
        self.moves = torch.nn.Parameter(torch.zeros(STATES, STATES))

    def encode(self, batch):
        return self.structure.pair_scores(self.reading[batch["x"]], self.moves)

    def loss(self, batch, noise):
        scores = self.encode(batch)
        return self.structure.log_partition(scores) - (scores * batch["z"]).sum((-3, -2, -1))


def machine(count: int) -> dict[str, torch.Tensor]:
    """Readings x, tags y and pairs of tags z."""
    moves = torch.multinomial(torch.tensor([0.03, 0.94, 0.03]), count * LENGTH, replacement=True)
    y = moves.view(count, LENGTH).cumsum(1) % STATES
    x = torch.where(torch.rand(count, LENGTH) < SEEN, y, torch.randint(STATES, y.shape))
    one_hot = torch.nn.functional.one_hot(y, STATES).float()
    return {"x": x, "y": y, "z": one_hot[:, :-1, :, None] * one_hot[:, 1:, None, :]}


torch.manual_seed(0)
train, unseen = machine(200), machine(1000)
model = Tagger()
adam = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(150):
    adam.zero_grad()
    model.loss(train, None).mean().backward()
    adam.step()
z = model.infer(unseen)
tags = torch.cat([z[:, :1].sum(-1), z.sum(-2)], 1).argmax(-1)
found = float((tags == unseen["y"]).float().mean())
baseline = float((unseen["x"] == unseen["y"]).float().mean())
print(
    f"tags right in unseen sequences: {found:.0%} with the chain, {baseline:.0%} by readings ",
    end="",
)
print(f"alone, chance {1 / STATES:.0%}")
