"""An int8 network lands a craft, trained by forward passes alone. python lunar_lander.py [STEPS]

Its sensors, weights and layers are whole numbers, engines are on or off, and a flight counts if it
ends on the pad, slowly and upright: nothing here has a derivative. Rank-1 NES just flies; its rival
passes gradients straight through all of it, as the simulator happens to be written in torch.
"""

import sys

import torch

import nestruct

STEPS, TIMES, DT = int(sys.argv[1]) if sys.argv[1:] else 400, 60, 0.2
# A state is (x, height, their speeds, tilt, spin, 1). It drifts, and engines add to it.
DRIFT, ENGINES = torch.eye(7), torch.zeros(3, 7)
DRIFT[2, 0] = DRIFT[3, 1] = DRIFT[5, 4] = DT
DRIFT[6, 3] = -0.12 * DT  # gravity
ENGINES[0, 2], ENGINES[1, 3], ENGINES[2, 5] = 0.3 * DT, 0.3 * DT, 0.8 * DT


def starts(count: int, seed: int) -> torch.Tensor:
    """Somewhere above the pad, at some speed, tilted."""
    draws = torch.rand(count, 7, generator=torch.Generator().manual_seed(seed))
    low = torch.tensor([-1.0, 1.2, -0.3, -0.3, -0.4, -0.2, 1.0])
    return low + torch.tensor([2.0, 0.4, 0.6, 0.3, 0.8, 0.4, 0.0]) * draws


def landed(end: torch.Tensor) -> torch.Tensor:
    """Which flights count."""
    x, _, across, down, tilt, *_ = end.abs().T
    return (end[:, 1] <= 0) & (x < 0.2) & (across < 0.15) & (down < 0.2) & (tilt < 0.25)


class Lander(nestruct.StructuredModel):
    """A controller of 7 x 16 and 16 x 2 weights, and its flights."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.hard = (lambda x, soft: soft + (x - soft).detach()) if straight else lambda x, _: x
        self.first = torch.nn.Parameter(20 * torch.randn(16, 7))
        self.second = torch.nn.Parameter(20 * torch.randn(2, 16))

    def weights(self) -> list[torch.Tensor]:
        return [self.hard(w.round(), w).clamp(-127, 127) for w in (self.first, self.second)]

    def fly(self, state: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        for _ in range(TIMES):
            seen = self.hard((64 * state).round(), 64 * state).clamp(-128, 127).to(first.dtype)
            total = seen @ first.T
            hidden = self.hard(total // 64, total / 64).clamp(0, 127).to(first.dtype)
            (up, side), tilt = (hidden @ second.T).T, state[:, 4]
            push = self.hard((up > 0).float(), (up / 500).sigmoid())
            turn = self.hard(side.sign().float(), (side / 500).tanh())
            forces = torch.stack([-push * tilt.sin(), push * tilt.cos(), turn], 1)
            state = torch.where(state[:, 1:2] > 0, state @ DRIFT + forces @ ENGINES, state)
        return state

    def loss(self, batch, noise):
        end = self.fly(batch, *self.weights())  # how far, fast and tilted, and does it count?
        x, height, across, down, tilt, *_ = end.abs().clamp(max=3).T
        return x + height + 2 * across + 3 * down + tilt + (~landed(end)).float()


law = {"directions": "rank1", "factors": "gaussian", "shaping": "centered_rank", "sigma": 10.0}
nes = nestruct.NES(population_size=256, minibatch="per_pair", pair_batch_size=16, **law)
train, kept, unseen, found = starts(20_000, 0), starts(500, 1), starts(1000, 2), {}
options = {"max_steps": STEPS, "batch_size": 256, "eval_interval": 25, "progress": False}
for name, estimator, lr in (("NES", nes, 2.0), ("straight-through", nestruct.Supervised(), 1.0)):
    torch.manual_seed(0)
    model = Lander(straight=name != "NES")
    adam = torch.optim.Adam(model.parameters(), lr=lr)  # of weights up to 127
    took = nestruct.fit(model, estimator, adam, train, validation=kept, **options).seconds
    whole = [w.detach().int() for w in model.weights()]  # real integers from here on
    found[name] = float(landed(Lander(False).fly(unseen, *whole)).float().mean())
    print(f"{name}: {found[name]:.0%} of unseen flights land, {took:.0f} s")
baseline = float(landed(Lander(False).fly(unseen, *Lander(False).weights())).float().mean())
print(f"by chance, with random weights: {baseline:.0%}")
assert STEPS < 400 or found["NES"] > 0.8
