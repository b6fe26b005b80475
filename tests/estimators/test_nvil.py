"""NVIL: right on average whatever its network says, and a network that learns to say the loss."""

import pytest
import torch
import toys

import nestruct
from nestruct import NVIL, InputError, Noise
from nestruct.training import Recipe, read_recipe, train
from nestruct.training.recipes.parts import PARTS
from nestruct.training.run import read_checkpoint

TREE = nestruct.SpanningTree(4)


def talkative(model, batch, *, mean: float = 3.0, variance: float = 6.25, **options) -> NVIL:
    """Its network says something else, and not little, for each example."""
    estimator = NVIL(hidden_size=7, **options)
    estimator.prepare(model, batch)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in estimator.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    state = {"mean": torch.tensor(mean), "variance": torch.tensor(variance)}
    estimator.load_state_dict(state)
    return estimator


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        (nestruct.Categorical(4), {"law": "gibbs"}),
        (TREE, {"law": "gumbel", "num_samples": 3}),
        (TREE, {"law": "gibbs"}),
        (nestruct.KSubset(4, 2), {"law": "gibbs"}),
    ],
    ids=str,
)
def test_its_mean_is_the_exact_gradient_whatever_the_network_says(structure, options):
    """That of the encoder over max(1, deviation), which is 2.5 here."""
    model, batch = toys.vae(structure), toys.bits(3, 6)
    law = "gibbs" if options["law"] == "gibbs" else "perturb_and_map"
    nestruct.Enumeration(law=law).backward(model, batch, seed=0)
    expected = toys.gradient(model)
    batch = batch.repeat(16, 1)
    estimator = talkative(model, batch, **options)
    state, found = estimator.state_dict(), []
    for step in range(400):
        estimator.load_state_dict(state)
        estimator.backward(model, batch, seed=1, step=step)
        found.append(toys.gradient(model))
    encoder = sum(p.numel() for p in model.encoder.parameters())
    trials = torch.stack(found)
    toys.assert_mean(trials[:, :encoder], expected[:encoder] / 2.5)
    toys.assert_mean(trials[:, encoder:], expected[encoder:])
    assert estimator._predict(batch).std() > 1


def test_the_network_steps_towards_the_loss():
    model, batch = toys.vae(), toys.bits(5, 6)
    estimator = talkative(model, batch)
    network = estimator._network
    z = model.sample(batch, 1, Noise(seed=4, step=2))[0]
    loss = model.loss_at(batch, model.encode(batch), z).detach()
    error = ((loss - 3.0) / 2.5 - network(batch)[:, 0]).square() / 2
    expected = torch.autograd.grad(error.mean(), estimator.parameters())
    estimator.backward(model, batch, seed=4, step=2)
    for parameter, gradient in zip(estimator.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_moving_averages():
    model, batch = toys.vae(), toys.bits(5, 6)
    estimator = talkative(model, batch, ema_decay=0.9)
    report = estimator.backward(model, batch, seed=4, step=2)
    state = estimator.state_dict()
    assert float(state["mean"]) == pytest.approx(0.9 * 3 + 0.1 * float(report.loss))
    spread = float(report.loss_std) ** 2
    assert float(state["variance"]) == pytest.approx(0.9 * 6.25 + 0.1 * spread)


def test_the_published_averages_are_of_what_the_network_leaves():
    """Mnih and Gregor's Algorithm 1: the averages move first, and count the present step."""
    model, batch = toys.vae(), toys.bits(5, 6)
    estimator = talkative(model, batch, ema_decay=0.9, averages="residuals")
    network = estimator._network
    z = model.sample(batch, 1, Noise(seed=4, step=2))[0]
    scores = model.encode(batch)
    loss = model.loss_at(batch, scores, z)
    left = loss.detach() - network(batch)[:, 0]
    mean = 0.9 * 3 + 0.1 * left.detach().mean()
    variance = 0.9 * 6.25 + 0.1 * left.detach().var(correction=0)
    signal = (left - mean) / variance.sqrt()
    steps = torch.autograd.grad((signal.detach() * left).mean(), estimator.parameters())
    estimator.backward(model, batch, seed=4, step=2)
    for parameter, gradient in zip(estimator.parameters(), steps, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    gumbel = Noise(seed=4, step=2).replace(stream=torch.tensor([[0]])).gumbel(scores)[0]
    chance = ((1 - torch.exp(-gumbel)) * scores).flatten(1).sum(-1)
    bias = model.encoder[-1].bias
    whole = loss.mean() + ((left - mean).detach() * chance).mean()
    expected = torch.autograd.grad(whole, bias)[0] / variance.sqrt()
    torch.testing.assert_close(bias.grad, expected)
    state = estimator.state_dict()
    assert float(state["mean"]) == pytest.approx(float(mean))
    assert float(state["variance"]) == pytest.approx(float(variance))


def test_a_small_deviation_stretches_nothing():
    model, batch = toys.vae(), toys.bits(5, 6)
    gradients = []
    for variance in (0.01, 1.0):
        estimator = talkative(model, batch, variance=variance)
        estimator.backward(model, batch, seed=4, step=2)
        gradients.append(toys.gradient(model))
    assert torch.equal(*gradients)


def test_the_network_learns_what_each_example_costs():
    """Losses in the thousands, most of whose spread is between examples."""

    def likelihood(logits, x):
        weight = torch.linspace(0, 1000, len(x), dtype=x.dtype)[:, None]
        return weight * (x * logits - torch.nn.functional.softplus(logits))

    batch = (torch.arange(16)[:, None] // 2 ** torch.arange(6) % 2).double()  # all distinct
    model = toys.vae(likelihood=likelihood)
    estimator = NVIL(hidden_size=32, ema_decay=0.9)
    estimator.prepare(model, batch)
    adam = torch.optim.Adam(estimator.parameters(), lr=0.01)
    for step in range(400):
        report = estimator.backward(model, batch, seed=0, step=step)
        adam.step()
    assert float(report.loss_std) > 500
    losses = model.loss_at(batch, model.encode(batch), model.sample(batch, 50)).detach()
    state = estimator.state_dict()
    left = losses - state["mean"] - state["variance"].sqrt() * estimator._predict(batch).detach()
    assert left.square().mean().sqrt() < 0.2 * losses.std()


def test_the_state_of_a_fresh_one():
    model, batch = toys.vae(), toys.bits(5, 6)
    one = talkative(model, batch)
    one.backward(model, batch, seed=0, step=0)
    two = NVIL(hidden_size=7)
    two.load_state_dict(one.state_dict())
    results = []
    for estimator in (one, two, NVIL(hidden_size=7)):
        estimator.backward(model, batch, seed=0, step=1)
        own = [p.grad.flatten() for p in estimator.parameters()]
        results.append(torch.cat([toys.gradient(model), *own]))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_the_network_depends_on_the_seed_alone():
    model, batch = toys.vae(), toys.bits(5, 6)

    def weights(seed: int) -> torch.Tensor:
        estimator = NVIL()
        estimator.prepare(model, batch, seed=seed)
        estimator.prepare(model, batch, seed=seed + 1)  # which changes nothing
        return estimator.parameters()[0].detach()

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = weights(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(3), first)
    assert first.dtype == torch.float64


def test_it_learns_and_the_network_with_it():
    model, data = toys.vae(inputs=8, hidden=8, divergence="none"), toys.bits(4, 8, seed=3)
    adam = torch.optim.Adam(model.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.StepLR(adam, 100, 0.9)
    estimator = NVIL(num_samples=2, law="gibbs", hidden_size=20)
    result = nestruct.fit(
        model,
        estimator,
        adam,
        data.repeat(8, 1),
        validation=data,
        scheduler=schedule,
        max_steps=300,
        progress=False,
    )
    assert result.best["loss"] < 0.5 * result.initial["loss"]
    assert len(adam.param_groups) == 1
    assert len(adam.state) == len(list(model.parameters())) + 4
    assert all(parameter.abs().sum() > 0 for parameter in estimator.parameters())


def test_a_recipe_with_a_scheduler(tmp_path):
    words = ["estimator.name=NVIL", "estimator.hidden_size=5", "scheduler.name=StepLR"]
    words += ["scheduler.step_size=2", "data.num_train=60", "data.num_validation=10"]
    words += ["data.num_test=10", "training.max_steps=4", "training.batch_size=20", "device=cpu"]
    recipe = Recipe.from_tables(read_recipe("graph-layout-tiny", words))
    train(recipe, tmp_path / "run", progress=False)
    state = read_checkpoint(tmp_path / "run" / "checkpoints" / "last").estimator
    assert state["network"]["0.weight"].shape == (5, 5 * 10 * 2)
    assert state["network"]["2.bias"].abs().sum() > 0  # it was stepped
    assert state["variance"] > 0
    assert "baseline" not in PARTS["estimator"]["NVIL"].parameters()


def test_mistakes():
    model, batch = toys.vae(), toys.bits(5, 6)
    with pytest.raises(InputError, match="NVIL: hidden_size must be a whole number of at least 1"):
        NVIL(hidden_size=0)
    with pytest.raises(InputError, match="NVIL: num_samples"):
        NVIL(num_samples=0)
    estimator = NVIL()
    estimator.prepare(model, batch)
    with pytest.raises(InputError, match="made for examples of 6 numbers, and these have 5;"):
        estimator.backward(model, batch[:, :5], seed=0)
    with pytest.raises(RuntimeError, match="size mismatch"):
        NVIL(hidden_size=5).load_state_dict(estimator.state_dict())
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="Adagrad takes on no parameters after it is made"):
        nestruct.fit(model, NVIL(), adagrad, batch, max_steps=1, progress=False)
    nestruct.fit(model, nestruct.Reinforce(), adagrad, batch, max_steps=1, progress=False)


def test_its_seed_is_the_runs():
    model, batch = toys.vae(), toys.bits(5, 6)
    estimator, expected = NVIL(), NVIL()
    adam = torch.optim.Adam(model.parameters(), lr=0.0)
    nestruct.fit(model, estimator, adam, batch, max_steps=1, seed=3, progress=False)
    expected.prepare(model, batch, seed=3)
    assert torch.equal(estimator.parameters()[0], expected.parameters()[0])
