"""The parsing VAE on a GPU: the same losses as on a CPU, and a captured step that is the step."""

import pytest
import torch
from parser_models import DATA, losses, make, perturbed

from nestruct import NES, Supervised
from nestruct.data import select_rows, to_device
from nestruct.models.parser.kernels import (
    lstm_step,
    lstm_step_plain,
    score_arcs,
    score_arcs_plain,
)
from nestruct.population import Population

pytestmark = pytest.mark.cuda


def batch(device: str):
    some = select_rows(DATA.splits()["train"], torch.arange(12)).cut(28)
    return to_device(some, torch.device(device))


def flat_gradient(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("structure", ["projective", "non-projective"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_population_is_that_of_a_cpu(structure, dtype):
    model = make(objective="vae", structure=structure, dtype=dtype)
    population = perturbed(model)
    here = losses(model, population, batch("cpu"), "vmap")
    moved = Population(
        {name: tensor.cuda() for name, tensor in population.centre.items()},
        {name: tensor.cuda() for name, tensor in population.directions.items()},
        True,
    )
    there = losses(model.cuda(), moved, batch("cuda"), "vmap")
    if dtype == torch.float64:
        torch.testing.assert_close(here, there.cpu())
    else:  # a tie of two trees may fall the other way
        assert ((here - there.cpu()).abs() < 1e-4).double().mean() > 0.95


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


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_lstm_kernel(scale):
    generator = torch.Generator("cuda").manual_seed(0)
    draw = {"generator": generator, "device": "cuda"}
    gates = scale * torch.randn(3, 40, 2, 500, **draw)
    index = torch.randint(40, (2, 37), **draw)
    added, states = scale * torch.randn(3, 2, 37, 500, **draw), torch.randn(3, 2, 37, 125, **draw)
    places = torch.stack([torch.randperm(50, **draw)[:37] for _ in range(2)])
    results = []
    for step in (lstm_step, lstm_step_plain):
        state, hidden = states.clone(), torch.zeros(3, 2, 37, 128, device="cuda")
        features = torch.zeros(3, 50, 2, 128, device="cuda")
        step(gates, index, added, state, hidden, places, features)
        results.append((state, hidden, features))
    torch.testing.assert_close(*results, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("tokens", [1, 6, 16, 39])
def test_arc_kernel(tokens):
    generator = torch.Generator("cuda").manual_seed(0)
    draw = {"generator": generator, "device": "cuda"}
    head, dependent = 2 * torch.randn(2, 3, tokens, 4, 100, **draw)
    weight = torch.randn(3, 100, **draw)
    lengths = torch.tensor([0, tokens - 1, tokens // 2, tokens - 1], device="cuda")
    place = torch.arange(tokens, device="cuda")
    inside = (place[:, None] <= lengths[:, None, None]) & (place <= lengths[:, None, None])
    is_arc = inside & (place[:, None] != place) & (place > 0)
    expected = torch.where(is_arc, score_arcs_plain(head, dependent, weight, lengths), 0.0)
    found = score_arcs(head, dependent, weight, lengths)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
