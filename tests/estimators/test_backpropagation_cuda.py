"""Estimators that differentiate, captured in a CUDA graph: the same as launched one by one."""

import pytest
import torch
import toys

import nestruct
from nestruct import (
    AIMLE,
    DPP,
    IMLE,
    NVIL,
    SST,
    BlackboxDifferentiation,
    Enumeration,
    ExactMarginals,
    Identity,
    PerturbedOptimizer,
    Reinforce,
    ScoreNES,
    SparseMAP,
    StraightThrough,
    StructureNES,
)

pytestmark = pytest.mark.cuda
MAKERS = [
    lambda graph: SST(graph=graph, anneal_rate=0.1, anneal_interval=2, num_samples=2),
    lambda graph: Reinforce(graph=graph, law="gibbs"),
    lambda graph: Reinforce(graph=graph, law="gumbel"),
    lambda graph: Reinforce(graph=graph, baseline="batch", num_samples=1),
    lambda graph: Reinforce(graph=graph, baseline="ema", num_samples=1),
    lambda graph: NVIL(graph=graph, num_samples=2),
    lambda graph: Enumeration(graph=graph),
    lambda graph: ScoreNES(graph=graph),
    lambda graph: StructureNES(graph=graph),
    lambda graph: StructureNES(graph=graph, covariance="gibbs"),
    lambda graph: IMLE(graph=graph, num_samples=2),
    lambda graph: Identity(graph=graph),
    lambda graph: AIMLE(graph=graph, num_samples=2),
    lambda graph: AIMLE(graph=graph, differences="central"),
    lambda graph: BlackboxDifferentiation(graph=graph),
    lambda graph: ExactMarginals(graph=graph, num_samples=2),
    lambda graph: PerturbedOptimizer(graph=graph),
    lambda graph: PerturbedOptimizer(graph=graph, noise="gumbel"),
    lambda graph: StraightThrough(graph=graph),
]
NAMES = [
    *("sst", "gibbs", "gumbel", "batch", "ema", "nvil"),
    *("enumeration", "score", "structure", "structure gibbs"),
    *(
        "imle",
        "identity",
        "aimle",
        "aimle central",
        "blackbox",
        "exact marginals",
        "perturbed",
        "perturbed gumbel",
        "straight",
    ),
]


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
    torch.testing.assert_close(captured.state_dict(), plain.state_dict())


@pytest.mark.parametrize("make", MAKERS, ids=NAMES)
def test_the_gpu_equals_the_cpu(make):
    results = []
    for device in ("cpu", "cuda"):
        model, estimator = toys.vae().to(device), make("auto")
        for step in range(3):
            estimator.backward(model, toys.bits(5, 6).to(device), seed=3, step=step)
        own = [p.grad.flatten() for p in estimator.parameters()]
        results.append(torch.cat([toys.gradient(model), *own]).cpu())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("sampler", ["exact", "mcmc"])
def test_gibbs_samplers_draw_anew_in_every_step(sampler):
    """From integers, so a captured step draws them anew too."""
    model = toys.vae(nestruct.SpanningTree(4)).cuda()
    estimator = Reinforce(law="gibbs", sampler=sampler, graph="on")  # or it is refused
    losses = [
        estimator.backward(model, toys.bits(5, 6).cuda(), seed=3, step=s).loss for s in (0, 1, 0)
    ]
    assert losses[0] == losses[2]
    assert losses[0] != losses[1]


def test_a_state_that_is_loaded_counts():
    model, batch = toys.vae().float().cuda(), toys.bits(5, 6).float().cuda()
    captured = NVIL(graph="on")
    captured.backward(model, batch, seed=3)
    state = captured.state_dict()
    captured.backward(model, batch, seed=3, step=1)
    expected = toys.gradient(model).clone()
    captured.load_state_dict(state)
    captured.backward(model, batch, seed=3, step=1)
    torch.testing.assert_close(toys.gradient(model), expected)


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


def test_running_statistics_move_as_without_a_graph():
    """Trying a step out, before it is captured, must leave no trace in them."""
    x = torch.rand(8, 4, 5, 2, generator=torch.Generator().manual_seed(0)).cuda()
    found = []
    for graph in ("on", "off"):
        torch.manual_seed(0)
        model = nestruct.models.RelationalVAE(4, 5, hidden_size=8, num_rollout_steps=4).cuda()
        estimator = ScoreNES(graph=graph, num_pairs=2)
        for step in range(3):
            estimator.backward(model, {"x": x}, seed=1, step=step)
        found.append(model.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name])


def on_gpu(batch):
    return {name: tensor.cuda() for name, tensor in batch.items()}


@pytest.mark.parametrize("single_root", [True, False])
def test_soft_parses_are_captured(single_root):
    model = toys.Sentences(nestruct.ProjectiveTree(single_root)).cuda()
    captured, plain = DPP(graph="on", num_samples=2), DPP(graph="off", num_samples=2)
    for step in range(3):
        batch = on_gpu(toys.sentences(7, 3 + step, 5, 1, seed=step))
        captured.backward(model, batch, seed=3, step=step)
        found = toys.gradient(model).clone()
        plain.backward(model, batch, seed=3, step=step)
        torch.testing.assert_close(found, toys.gradient(model))


@pytest.mark.parametrize("estimator", [DPP(), SparseMAP()], ids=["dpp", "sparse map"])
@pytest.mark.parametrize("kind", [nestruct.ProjectiveTree, nestruct.NonProjectiveTree])
def test_relaxed_parses_equal_the_cpu(kind, estimator):
    if isinstance(estimator, DPP) and kind is nestruct.NonProjectiveTree:
        return
    batch, results = toys.sentences(7, 3, 5, 1), []
    for device in ("cpu", "cuda"):
        model = toys.Sentences(kind()).to(device)
        moved = {name: tensor.to(device) for name, tensor in batch.items()}
        estimator.backward(model, moved, seed=3)
        results.append(toys.gradient(model).cpu())
    torch.testing.assert_close(*results)


def test_sparse_maps_have_the_same_bits_again():
    model, batch = toys.Sentences(nestruct.NonProjectiveTree()).cuda(), toys.sentences(9, 9, 4)
    found = []
    for _ in range(2):
        SparseMAP().backward(model, on_gpu(batch), seed=3)
        found.append(toys.gradient(model).clone())
    assert torch.equal(*found)
