"""OR-Tools CP-SAT: which orders does a workshop take in a week? python cp_sat_schedule.py

The solver sees times and finds a schedule; what orders pay is learnt from the totals of weeks.
"""

import numpy as np
import torch
from ortools.sat.python import cp_model

import nestruct


def schedule(worth, earliest, due, hours):
    """The most valuable orders that fit; every week has its own times."""
    model, tasks = cp_model.CpModel(), []
    taken = [model.new_bool_var("") for _ in worth]
    for take, first, last, size in zip(taken, earliest, due, hours, strict=True):
        start = model.new_int_var(int(first), int(last - size), "")
        tasks.append(model.new_optional_fixed_size_interval_var(start, int(size), take, ""))
    model.add_no_overlap(tasks)
    model.maximize(cp_model.LinearExpr.weighted_sum(taken, (1000 * worth).astype(int)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same answer every time
    solver.solve(model)
    return np.array([solver.value(take) for take in taken])


class Workshop(nestruct.StructuredModel):
    """Features of an order -> its worth -> the orders to take -> the week's total."""

    structure = nestruct.BlackBox(schedule, shape=(8,), batched=False, backend="numpy")

    def __init__(self) -> None:
        super().__init__()
        self.worth = nestruct.models.mlp(3, 16, 1)

    def encode(self, batch):
        return self.worth(batch["x"])[..., 0]

    def context(self, batch):
        return {name: batch[name] for name in ("earliest", "due", "hours")}

    def decode(self, batch, z):
        return (z * batch["pay"]).sum(-1)


torch.manual_seed(0)
x, size = torch.randn(250, 8, 3), (250, 8)
times = {"earliest": torch.randint(15, size), "due": torch.randint(30, 40, size)}
data = {"x": x, **times, "hours": torch.randint(5, 16, size), "pay": x[..., 0].exp()}
train, unseen = (nestruct.select_rows(data, rows) for rows in torch.arange(250).split(200))
model, estimator = Workshop(), nestruct.StructureNES(num_samples=4, num_covariance=0)
adam = torch.optim.Adam(model.parameters(), lr=0.03)
nestruct.fit(model, estimator, adam, train, max_steps=40, batch_size=10, progress=False)
guesses = unseen["pay"], model.encode(unseen).detach(), torch.ones(50, 8), torch.rand(50, 8)
solved = (model.structure.argmax(guess, **model.context(unseen)) for guess in guesses)
best, *others = (float(model.decode(unseen, z).sum()) for z in solved)
found, baseline, chance = (other / best for other in others)
print(f"of the best income: {found:.0%} learnt, {baseline:.0%} most orders, {chance:.0%} by chance")
