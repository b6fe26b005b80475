"""Estimators that differentiate, captured in a CUDA graph: the same as launched one by one."""

import pytest
import torch
import toys

import nestruct
from nestruct import SST, Enumeration, Reinforce, ScoreNES, StructureNES

pytestmark = pytest.mark.cuda
MAKERS = [
    lambda graph: SST(graph=graph, anneal_rate=0.1, anneal_interval=2, num_samples=2),
    lambda graph: Reinforce(graph=graph, law="gibbs"),
    lambda graph: Reinforce(graph=graph, law="gumbel"),
    lambda graph: Enumeration(graph=graph),
    lambda graph: ScoreNES(graph=graph),
    lambda graph: StructureNES(graph=graph),
    lambda graph: StructureNES(graph=graph, covariance="gibbs"),
]
NAMES = ["sst", "gibbs", "gumbel", "enumeration", "score", "structure", "structure gibbs"]


@pytest.mark.parametrize("make", MAKERS, ids=NAMES)
def test_the_captured_step_equals_the_plain_one(make):
    model = toys.vae().float().cuda()
    batches = [toys.bits(5, 6, seed=s).float().cuda() for s in range(3)]
    captured, plain = make("on"), make("off")
    for step, batch in enumerate(batches * 2):
        one = captured.backward(model, batch, seed=3, step=step)
        first = toys.gradient(model).clone()
        two = plain.backward(model, batch, seed=3, step=step)
        torch.testing.assert_close(first, toys.gradient(model))
        torch.testing.assert_close(one.loss, two.loss)


@pytest.mark.parametrize("make", MAKERS[4:], ids=NAMES[4:])
def test_trees_are_captured_too(make):
    model = toys.vae(nestruct.SpanningTree(5)).float().cuda()
    batch = toys.bits(20, 6).float().cuda()
    captured, plain = make("on"), make("off")
    for step in range(3):
        captured.backward(model, batch, seed=3, step=step)
        found = toys.gradient(model).clone()
        plain.backward(model, batch, seed=3, step=step)
        torch.testing.assert_close(found, toys.gradient(model), rtol=1e-4, atol=1e-5)


def test_an_option_that_is_changed_counts():
    model, batch = toys.vae().float().cuda(), toys.bits(5, 6).float().cuda()
    captured, plain = SST(graph="on"), SST(graph="off", temperature=0.2)
    captured.backward(model, batch, seed=3)
    captured.temperature = 0.2
    captured.backward(model, batch, seed=3)
    found = toys.gradient(model).clone()
    plain.backward(model, batch, seed=3)
    torch.testing.assert_close(found, toys.gradient(model))


def test_it_sees_the_parameters_that_the_optimizer_changed():
    model = toys.vae().float().cuda()
    adam = torch.optim.Adam(model.parameters(), lr=0.05, fused=True)
    data = toys.bits(4, 6, seed=3).repeat(8, 1).float()
    result = nestruct.fit(
        model, Enumeration(), adam, data, validation=data, max_steps=200, progress=False
    )
    assert result.best["loss"] < 0.9 * result.initial["loss"]
