"""scipy's HiGHS: which warehouses to open, when rents are not known? python milp_warehouses.py

Customers go to the nearest open one. Distances are seen, rents are learnt from whole bills.
"""

import numpy as np
import torch
from scipy.optimize import LinearConstraint, milp

import nestruct

SITES, CUSTOMERS = 5, 6
SERVED_ONCE = np.hstack([np.zeros((CUSTOMERS, SITES)), np.kron(np.eye(CUSTOMERS), np.ones(SITES))])
IF_OPEN = np.hstack([np.tile(np.eye(SITES), (CUSTOMERS, 1)), -np.eye(CUSTOMERS * SITES)])
RULES = [LinearConstraint(SERVED_ONCE, 1, 1), LinearConstraint(IF_OPEN, 0)]


def warehouses(worth, distance):
    """The sites that cost least with rents of -worth; every town has its own distances."""
    cost, whole = np.r_[-worth, distance.ravel()], np.r_[np.ones(SITES), 0 * distance.ravel()]
    return milp(cost, integrality=whole, bounds=(0, 1), constraints=RULES).x[:SITES].round()


class Planner(nestruct.StructuredModel):
    """Features of a site -> its worth, less than nothing -> the sites to open -> the bill."""

    structure = nestruct.BlackBox(warehouses, shape=(SITES,), batched=False, backend="numpy")

    def __init__(self) -> None:
        super().__init__()
        self.worth = nestruct.models.mlp(3, 16, 1)

    def encode(self, batch):
        return self.worth(batch["x"])[..., 0]

    def context(self, batch):
        return {"distance": batch["distance"]}

    def decode(self, batch, z):
        ways = batch["distance"] + torch.where(z > 0, 0.0, torch.inf)[..., None, :]
        return -(z * batch["rent"]).sum(-1) - ways.amin(-1).sum(-1)


torch.manual_seed(0)
x, distance = torch.randn(230, SITES, 3), torch.rand(230, CUSTOMERS, SITES)
data = {"x": x, "distance": distance, "rent": x[..., 0].exp()}
train, unseen = (nestruct.select_rows(data, rows) for rows in torch.arange(230).split(200))
model, estimator = Planner(), nestruct.StructureNES(num_samples=4, num_covariance=0)
adam = torch.optim.Adam(model.parameters(), lr=0.05)
nestruct.fit(model, estimator, adam, train, max_steps=20, batch_size=10, progress=False)
alike = -train["rent"].mean().expand(30, SITES)
guesses = -unseen["rent"], model.encode(unseen).detach(), alike, 2 * alike * torch.rand(30, SITES)
solved = (model.structure.argmax(guess, **model.context(unseen)) for guess in guesses)
best, *others = (float(model.decode(unseen, z).sum()) for z in solved)
found, baseline, chance = (best / other for other in others)
print(
    f"least bill / bill: {found:.0%} learnt, {baseline:.0%} by average rents, {chance:.0%} chance"
)
