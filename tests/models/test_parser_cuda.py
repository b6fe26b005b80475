"""The parsing VAE on a GPU: the same losses as on a CPU, and a captured step that is the step."""

import pytest
import torch
from parsers import DATA, losses, make, perturbed

from nestruct import NES, Supervised
from nestruct.data import select_rows, to_device
from nestruct.population import Population

pytestmark = pytest.mark.cuda


def batch(device: str):
    some = select_rows(DATA.splits()["train"], torch.arange(12)).cut(28)
    return to_device(some, torch.device(device))


def flat_gradient(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("structure", ["projective", "non-projective"])
def test_population_is_that_of_a_cpu(structure):
    model = make(objective="vae", structure=structure)
    population = perturbed(model)
    here = losses(model, population, batch("cpu"), "vmap")
    moved = Population(
        {name: tensor.cuda() for name, tensor in population.centre.items()},
        {name: tensor.cuda() for name, tensor in population.directions.items()},
        True,
    )
    there = losses(model.cuda(), moved, batch("cuda"), "vmap")
    torch.testing.assert_close(here, there.cpu())


@pytest.mark.parametrize("structure", ["projective", "non-projective"])
def test_a_captured_step_of_nes_is_the_step(structure):
    found = []
    for graph in ("on", "off"):
        model = make(objective="vae", structure=structure, dtype=torch.float32).cuda()
        nes = NES(sigma=0.1, population_size=8, mode="vmap", graph=graph, shaping="none")
        for step in range(2):
            nes.backward(model, batch("cuda"), seed=0, step=step)
        found.append(flat_gradient(model))
    assert torch.nn.functional.cosine_similarity(*found, dim=0) > 0.999


@pytest.mark.parametrize("objective", ["parser", "decoder"])
def test_a_captured_supervised_step(objective):
    found = []
    for graph in ("on", "off"):
        model = make(objective=objective).cuda()
        for step in range(2):
            Supervised(graph=graph).backward(model, batch("cuda"), seed=0, step=step)
        found.append(flat_gradient(model))
    torch.testing.assert_close(*found)
