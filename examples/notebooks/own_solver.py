"""A solver of your own inside a network: run as it stands, or see docs/notebooks/own_solver.md."""

# %% [markdown]
# # A solver of your own
#
# A network sees a map and says what each cell costs. A shortest-path solver, here networkx, finds
# the way. The network learns from how long that way took, and the solver stays a black box. It
# takes seconds on one core.

# %%
import networkx as nx
import numpy as np
import torch

import nestruct
from nestruct import plots

SIDE = 6
GRID = nx.grid_2d_graph(SIDE, SIDE)


def shortest(worth):
    """The cells of the cheapest way from corner to corner, where a cell costs -worth."""
    costs = np.maximum(-worth, 0.0)
    way = nx.dijkstra_path(GRID, (0, 0), (SIDE - 1, SIDE - 1), lambda _, to, __: costs[to])
    z = np.zeros_like(worth)
    z[tuple(zip(*way, strict=True))] = 1
    return z


structure = nestruct.BlackBox(shortest, shape=(SIDE, SIDE), batched=False, backend="numpy")

# %% [markdown]
# The model says three things: what the solver sees (`encode`), what a solution is worth (`decode`),
# and which structure it is.


# %%
class Walker(nestruct.StructuredModel):
    """Features of a cell -> the minutes it takes -> a way -> how long that took."""

    def __init__(self):
        super().__init__()
        self.structure = structure
        self.minutes = nestruct.models.mlp(3, 16, 1)

    def encode(self, batch):
        return -torch.nn.functional.softplus(self.minutes(batch["x"])[..., 0])

    def decode(self, batch, z):
        return -(z * batch["time"]).sum((-2, -1))


torch.manual_seed(0)
x = torch.randn(400, SIDE, SIDE, 3)  # what is known of a cell; its first number decides
data = {"x": x, "time": x[..., 0].exp()}
train, unseen = (nestruct.select_rows(data, rows) for rows in torch.arange(400).split(300))

# %% [markdown]
# Training is one call. `StructureNES` asks the solver for a few ways per map and backpropagates
# through the network only.

# %%
model = Walker()
untrained = structure.argmax(model.encode(unseen).detach())
estimator = nestruct.StructureNES(num_samples=8, num_covariance=0)
adam = torch.optim.Adam(model.parameters(), lr=0.03)
nestruct.fit(model, estimator, adam, train, max_steps=60, batch_size=20, progress=False)

best = structure.argmax(-unseen["time"])
found = structure.argmax(model.encode(unseen).detach())
straight = structure.argmax(-torch.ones_like(unseen["time"]))  # what needs no learning


def longer(z):
    """How much longer ways take than the best ones, in per cent."""
    minutes, least = model.decode(unseen, z).sum(), model.decode(unseen, best).sum()
    return 100 * float(minutes / least - 1)


for name, z in {"learnt": found, "untrained": untrained, "fewest cells": straight}.items():
    print(f"{name}: {longer(z):.0f} % longer than the best way")
assert longer(found) < 0.3 * longer(straight)

# %% [markdown]
# Ways on maps that training did not see. Blue cells are on the best way, dashed ones are not; thin
# ones were missed.

# %%
plots.structures(structure, {"untrained": untrained, "learnt": found}, truth=best, examples=3)

# %% [markdown]
# What an instance brings along (closed cells, another goal) reaches the solver by name: [your
# solver](../own-solver.md) has that, batched solvers, worker processes for slow ones, and what a
# step costs in solver calls.
