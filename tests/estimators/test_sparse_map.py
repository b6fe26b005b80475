"""The gradient through sparse mixtures: that of the relaxed loss, its limit, its options."""

import numpy as np
import pytest
import torch
import toys

import nestruct
from nestruct import Noise, NonProjectiveTree, ProjectiveTree, SparseMAP
from nestruct.structures import sparse_map

BATCH = toys.sentences(4, 1, 3)
TREES = [NonProjectiveTree(), NonProjectiveTree(False), ProjectiveTree()]
OTHERS = [
    nestruct.Categorical(4),
    nestruct.SpanningTree(4),
    nestruct.BlackBox(lambda row: np.eye(4)[np.argmax(row)], 4, batched=False, backend="numpy"),
]
CASES: list[tuple] = [(toys.Sentences(tree), BATCH) for tree in TREES]
CASES += [(toys.vae(other, divergence="none"), toys.bits(3, 6)) for other in OTHERS]
NAMES = [repr(model.structure) for model, _ in CASES]


@pytest.mark.parametrize(("model", "batch"), CASES, ids=NAMES)
def test_it_is_the_gradient_of_the_relaxed_loss(model, batch):
    """By finite differences of the loss at mixtures, with the same noise."""
    SparseMAP(temperature=0.8, num_samples=2).backward(model, batch, seed=1, step=4)
    found = toys.gradient(model)
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).double()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def loss(shift: float) -> float:
        moved = start + shift * direction
        torch.nn.utils.vector_to_parameters(moved, model.parameters())
        scores, context = model.encode(batch).detach(), model.context(batch)
        total = 0.0
        for stream in range(2):
            noise = Noise(seed=1, step=4, stream=stream).gumbel(scores)
            z = sparse_map(model.structure, (scores + noise) / 0.8, **context)
            total += float(model.loss_at(batch, scores, z).mean().detach()) / 2
        return total

    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    torch.nn.utils.vector_to_parameters(start, model.parameters())
    assert float(found @ direction) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize(("model", "batch"), CASES, ids=NAMES)
def test_its_limit_is_the_loss_at_perturb_and_map_samples(model, batch):
    report = SparseMAP(temperature=1e-4).backward(model, batch, seed=3, step=2)
    hard = model.loss(batch, Noise(seed=3, step=2)).mean().detach()
    assert float(report.loss) == pytest.approx(float(hard), rel=1e-6)


def test_more_iterations_come_nearer():
    model = toys.Sentences(NonProjectiveTree())
    batch = toys.sentences(9, 9, 9)
    losses = [
        float(SparseMAP(max_iterations=limit).backward(model, batch, seed=0).loss)
        for limit in (1, 40, 80)
    ]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[2])


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"max_iterations": 0}, {"num_samples": 0}]
)
def test_bad_options(options):
    with pytest.raises(nestruct.InputError, match=next(iter(options))):
        SparseMAP(**options)
