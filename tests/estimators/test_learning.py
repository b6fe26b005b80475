"""Seconds of training per structure and estimator must cut the loss by a stated share.

Categorical, with every estimator, is in the contract.
"""

import numpy as np
import pytest
import torch
from toys import bits, vae

import nestruct
from nestruct import AIMLE, IMLE, NES, Identity, Noise, PerturbedOptimizer, ScoreNES, StructureNES
from nestruct.training import Recipe, read_recipe
from nestruct.training import train as train_recipe


def knapsack(values: np.ndarray) -> np.ndarray:
    """Greedy by value: items of weights 3, 1, 2, 2 into a sack of 4."""
    z, room = np.zeros(4), 4
    for item in np.argsort(-values):
        weight = (3, 1, 2, 2)[item]
        if weight <= room:
            z[item], room = 1, room - weight
    return z


STRUCTURES = {
    "subset": nestruct.KSubset(5, 2),
    "spanning tree": nestruct.SpanningTree(4),
    "knapsack": nestruct.BlackBox(knapsack, 4, batched=False, backend="numpy"),
}
ESTIMATORS = [
    NES(sigma=0.1, population_size=40, mode="vmap"),
    ScoreNES(num_pairs=4),
    StructureNES(num_samples=8, num_covariance=16),
    IMLE(num_samples=4),
    Identity(num_samples=4),
    AIMLE(num_samples=4),
    PerturbedOptimizer(num_samples=16),
]


def train(model, data, estimator=ESTIMATORS[0], steps: int = 150) -> tuple[float, float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)

    def validate() -> float:
        with torch.no_grad():
            losses = [model.loss(data, Noise(seed=9, stream=s)).mean() for s in range(20)]
        return float(torch.stack(losses).mean())

    before = validate()
    for step in range(steps):
        estimator.backward(model, data, seed=0, step=step)
        optimizer.step()
    return before, validate()


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_a_vae_learns(structure, estimator):
    patterns = bits(4, 8, seed=3)
    data = patterns.repeat(4, 1)
    model = vae(structure, inputs=8, hidden=8, divergence="none")
    before, after = train(model, data, estimator)
    assert after < 0.6 * before


@pytest.mark.parametrize("kind", [nestruct.ProjectiveTree, nestruct.NonProjectiveTree])
def test_a_tree_is_found(kind):
    """The decoder wants one tree; the encoder's scores are the parameters."""

    class Scores(nestruct.StructuredModel):
        def __init__(self):
            super().__init__()
            self.structure = kind()
            self.scores = torch.nn.Parameter(torch.zeros(5, 5, dtype=torch.float64))
            self.register_buffer("wanted", self.structure.enumerate(4)[7].double())

        def encode(self, batch):
            return self.scores.expand(len(batch), 5, 5)

        def decode(self, batch, z):
            return (z * self.wanted).sum((-1, -2))

    model = Scores()
    train(model, torch.zeros(8, 1))
    assert torch.equal(model.infer(torch.zeros(1, 1))[0], model.wanted)


def test_a_permutation_is_found():
    class Order(nestruct.StructuredModel):
        def __init__(self):
            super().__init__()
            self.structure = nestruct.Permutation(4)
            self.scores = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))

        def encode(self, batch):
            return self.scores.expand(len(batch), 4, 4)

        def decode(self, batch, z):  # how well sorted the batch is after it
            values = (z @ batch[..., None])[..., 0]
            return -(values - batch.sort(-1).values).square().sum(-1)

    model = Order()
    data = torch.tensor([[3.0, 1.0, 4.0, 2.0]], dtype=torch.float64).repeat(8, 1)
    before, after = train(model, data)
    assert after < 0.2 * before
    assert (model.infer(data)[0] @ data[0]).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_the_trees_of_five_particles_are_found_by_structure_nes(tmp_path):
    """Seconds on one core. Trees that the start of the decoder likes best have an F1 of 0.76."""
    recipe = Recipe.from_tables(
        read_recipe("graph-layout-5", ["device=cpu", "training.max_steps=150"])
    )
    result = train_recipe(recipe, tmp_path / "run", progress=False)
    assert result.initial["f1_map"] < 0.5
    assert result.best["f1_map"] > 0.9
