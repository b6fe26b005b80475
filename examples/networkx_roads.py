"""networkx: which way through town, from arrival times alone? python networkx_roads.py

The solver sees start, goal and the closed road; lengths of roads are learnt from whole trips.
"""

import networkx as nx
import numpy as np
import torch

import nestruct

TOWN = nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4))
ROADS = {edge: number for number, edge in enumerate(TOWN.edges)}


def way(worth, start, goal, closed):
    """The roads of the shortest way, where a road is -worth long and one is closed."""

    def length(one, other, _):
        road = ROADS[min(one, other), max(one, other)]
        return None if road == closed else max(-worth[road], 0.0)

    z, path = np.zeros(len(ROADS)), nx.dijkstra_path(TOWN, int(start), int(goal), length)
    z[[ROADS[min(step), max(step)] for step in nx.utils.pairwise(path)]] = 1
    return z


class Driver(nestruct.StructuredModel):
    """Features of a road -> its length in minutes -> a way -> how long that takes."""

    structure = nestruct.BlackBox(way, shape=(len(ROADS),), batched=False, backend="numpy")

    def __init__(self) -> None:
        super().__init__()
        self.minutes = nestruct.models.mlp(3, 16, 1)

    def encode(self, batch):
        return -torch.nn.functional.softplus(self.minutes(batch["x"])[..., 0])

    def context(self, batch):
        return {name: batch[name] for name in ("start", "goal", "closed")}

    def decode(self, batch, z):
        return -(z * batch["time"]).sum(-1)


torch.manual_seed(0)
x, (start, goal) = torch.randn(700, len(ROADS), 3), torch.rand(700, 16).topk(2).indices.T
today = {"start": start, "goal": goal, "closed": torch.randint(len(ROADS), (700,))}
data = {"x": x, **today, "time": x[..., 0].exp()}
train, unseen = (nestruct.select_rows(data, rows) for rows in torch.arange(700).split(500))
model, estimator = Driver(), nestruct.StructureNES(num_samples=8, num_covariance=0)
adam = torch.optim.Adam(model.parameters(), lr=0.03)
nestruct.fit(model, estimator, adam, train, max_steps=60, batch_size=20, progress=False)
guesses = -unseen["time"], model.encode(unseen).detach(), -torch.ones(200, 24), -torch.rand(200, 24)
solved = (model.structure.argmax(guess, **model.context(unseen)) for guess in guesses)
best, *others = (float(model.decode(unseen, z).sum()) for z in solved)
found, baseline, chance = (best / other for other in others)
print(f"shortest / trip: {found:.0%} learnt, {baseline:.0%} by fewest roads, {chance:.0%} chance")
