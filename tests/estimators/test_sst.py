"""The relaxed gradient: its limit, its temperature, its options."""

import math

import pytest
import torch
import toys

import nestruct
from nestruct import SST, Noise

STRUCTURES = [nestruct.Categorical(4), nestruct.KSubset(5, 2), nestruct.SpanningTree(4)]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_it_is_the_gradient_of_the_relaxed_loss(structure):
    """By finite differences of the loss at relaxed structures, with the same noise."""
    model, batch = toys.vae(structure), toys.bits(3, 6)
    estimator = SST(temperature=0.7, num_samples=2)
    estimator.backward(model, batch, seed=1, step=4)
    found = toys.gradient(model)
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).double()

    def loss(shift: float) -> float:
        moved = toys.vae(structure)
        with torch.no_grad():
            flat = torch.nn.utils.parameters_to_vector(moved.parameters())
            torch.nn.utils.vector_to_parameters(flat + shift * direction, moved.parameters())
        scores = moved.encode(batch)
        total = 0.0
        for stream in range(2):
            perturbed = scores + Noise(seed=1, step=4, stream=stream).gumbel(scores)
            relaxed = structure.relax(perturbed, 0.7)
            total += float(moved.loss_at(batch, scores, relaxed).mean().detach()) / 2
        return total

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert float(found @ direction) == pytest.approx(slope, rel=1e-5)


def test_the_temperature_of_jang_et_al():
    estimator = SST(anneal_rate=1e-4, anneal_interval=500)
    assert estimator.temperature_at(499) == 1.0
    assert estimator.temperature_at(1234) == pytest.approx(math.exp(-1e-4 * 1000))
    assert estimator.temperature_at(10**6) == 0.5
    counted = estimator.temperature_at(torch.tensor(1234))
    assert float(counted) == pytest.approx(math.exp(-1e-4 * 1000))
    assert SST(temperature=0.1).temperature_at(10**6) == 0.1


def test_a_structure_without_a_relaxation():
    model = toys.vae(nestruct.BlackBox(lambda s: s > 0, shape=(4,)), divergence="none")
    with pytest.raises(nestruct.InputError, match="has no relaxation; use NES"):
        SST().backward(model, toys.bits(2, 6), seed=0)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"min_temperature": -1}, {"anneal_rate": -1}, {"num_samples": 0}],
)
def test_bad_options(options):
    with pytest.raises(nestruct.InputError, match=next(iter(options))):
        SST(**options)
