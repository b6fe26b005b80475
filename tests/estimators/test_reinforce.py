"""REINFORCE against the exact gradient of the law it samples."""

import pytest
import torch
import toys

import nestruct
from nestruct import Noise, Reinforce
from nestruct.estimators.enumeration import exact_loss

CATEGORY, SUBSET, TREE = nestruct.Categorical(4), nestruct.KSubset(4, 2), nestruct.SpanningTree(4)
ONE = {"num_samples": 1}


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def exact_gradient(model, batch, law) -> torch.Tensor:
    nestruct.Enumeration(law=law).backward(model, batch, seed=0)
    return toys.gradient(model)


def trials(estimator, model, batch, count: int) -> torch.Tensor:
    found = []
    for step in range(count):
        estimator.backward(model, batch, seed=1, step=step)
        found.append(toys.gradient(model))
    return torch.stack(found)


@pytest.mark.parametrize(
    ("structure", "options", "copies"),
    [
        (CATEGORY, {"law": "gumbel"}, 16),
        (SUBSET, {"law": "gumbel"}, 16),
        (TREE, {"law": "gumbel"}, 16),
        (CATEGORY, {"law": "gibbs"}, 16),
        (SUBSET, {"law": "gibbs"}, 16),
        (TREE, {"law": "gibbs"}, 16),
        (TREE, {"law": "gibbs", "sampler": "mcmc", "num_mcmc_steps": 12}, 16),
        # Each example is among the others of its batch by a third: what is left out counts.
        (CATEGORY, {"law": "gibbs", "baseline": "batch", **ONE}, 1),
        slow(SUBSET, {"law": "gibbs", "baseline": "batch", "num_samples": 2}, 1),
        (TREE, {"law": "gumbel", "baseline": "batch", "num_samples": 4}, 1),
        (CATEGORY, {"law": "gibbs", "baseline": "ema", "ema_decay": 0.5, **ONE}, 16),
        (SUBSET, {"law": "gumbel", "baseline": "ema", **ONE}, 16),
        slow(TREE, {"law": "gibbs", "baseline": "ema", "num_samples": 2}, 16),
    ],
    ids=str,
)
def test_its_mean_is_the_exact_gradient(structure, options, copies):
    model, batch = toys.vae(structure), toys.bits(3, 6)
    truth = "gibbs" if options["law"] == "gibbs" else "perturb_and_map"
    expected = exact_gradient(model, batch, truth)
    count = 600 if copies == 1 else 300
    found = trials(Reinforce(**options), model, batch.repeat(copies, 1), count)
    encoder = sum(p.numel() for p in model.encoder.parameters())
    for part in (slice(None, encoder), slice(encoder, None)):
        toys.assert_mean(found[:, part], expected[part])


def test_the_law_matters():
    """What the test above would see if perturb-and-MAP were taken for the Gibbs law."""
    model, batch = toys.vae(TREE), toys.bits(3, 6)
    with torch.no_grad():
        model.encoder[-1].bias.mul_(8)
    expected = exact_gradient(model, batch, "gibbs")
    right = trials(Reinforce(law="gibbs"), model, batch.repeat(16, 1), 150)
    wrong = trials(Reinforce(law="gumbel"), model, batch.repeat(16, 1), 150)
    toys.assert_mean(right, expected)
    with pytest.raises(AssertionError):
        toys.assert_mean(wrong, expected)


class Arcs(nestruct.StructuredModel):
    """Scores of all arcs are the parameters; the decoder likes some arcs better than others."""

    def __init__(self, tokens: int = 4) -> None:
        super().__init__()
        self.structure = nestruct.NonProjectiveTree()
        self.words = None
        generator = torch.Generator().manual_seed(0)
        draw = torch.randn(2, tokens, tokens, dtype=torch.float64, generator=generator)
        self.scores, self.values = torch.nn.Parameter(draw[0]), torch.nn.Parameter(draw[1])

    def encode(self, batch):
        return self.scores.expand(len(batch), *self.scores.shape)

    def decode(self, batch, z):
        return (z * self.values).sum((-1, -2)) ** 2

    def context(self, batch):
        return {} if self.words is None else {"lengths": self.words}


def test_dependency_trees():
    model, batch = Arcs(), torch.zeros(10, 1)
    expected = exact_gradient(model, batch, "gibbs")
    toys.assert_mean(trials(Reinforce(law="gibbs"), model, batch, 250), expected)


@pytest.mark.parametrize("law", ["gumbel", "gibbs"])
def test_what_is_beyond_the_words_does_not_count(law):
    long, short = Arcs(5), Arcs(4)
    with torch.no_grad():
        for one, other in zip(long.parameters(), short.parameters(), strict=True):
            one.copy_(torch.nn.functional.pad(other, (0, 1, 0, 1), value=torch.nan))
        long.values.nan_to_num_(3.0)
    long.words = torch.full((2000,), 3)
    Reinforce(law=law).backward(long, torch.zeros(2000, 1), seed=0)
    assert (long.scores.grad[4] == 0).all()
    assert (long.scores.grad[:, 4] == 0).all()
    assert (long.scores.grad.diagonal() == 0).all()
    Reinforce(law=law).backward(short, torch.zeros(2000, 1), seed=0)
    if law == "gumbel":  # where a draw is a function of its own place
        torch.testing.assert_close(long.scores.grad[:4, :4], short.scores.grad)
    else:
        difference = (long.scores.grad[:4, :4] - short.scores.grad).norm()
        assert difference < 0.1 * short.scores.grad.norm()


def test_all_samples_at_once_are_those_of_the_streams_one_by_one():
    model, batch = toys.vae(TREE), toys.bits(3, 6)
    noise = Noise(seed=2, step=torch.tensor(5))
    scores = model.encode(batch)
    z, _ = Reinforce(num_samples=6)._draw(model, batch, scores, noise)
    assert torch.equal(z, model.sample(batch, 6, noise))
    chosen, _ = Reinforce(num_samples=6, law="gibbs", sampler="mcmc", num_mcmc_steps=0)._draw(
        model, batch, scores, Noise(seed=2, step=5)
    )
    assert torch.equal(z, chosen)


@pytest.mark.parametrize("sampler", ["exact", "mcmc"])
def test_draws_depend_on_seed_and_step_alone(sampler):
    model, batch = toys.vae(TREE), toys.bits(5, 6)

    def gradient(seed: int, step: int) -> torch.Tensor:
        torch.manual_seed(seed + step)
        estimator = Reinforce(law="gibbs", sampler=sampler)
        estimator.backward(model, batch, seed=seed, step=step)
        return toys.gradient(model)

    first = gradient(0, 3)
    assert torch.equal(first, gradient(0, 3))
    assert not torch.equal(first, gradient(1, 2))
    assert not torch.equal(first, gradient(0, 4))


def test_several_categories_per_example():
    """Two categories beside each other are one structure with twice the parts."""

    class Both(nestruct.StructuredVAE):
        def encode(self, batch):
            return self.encoder(batch).unflatten(-1, (2, 4))

        def decode(self, batch, z):
            return super().decode(batch, z.flatten(-2))

    wide = toys.vae(nestruct.KSubset(8, 2), divergence="none")
    model = Both(wide.encoder, wide.decoder, CATEGORY, divergence="none")
    batch = toys.bits(4, 6)
    joint = model.encode(batch).log_softmax(-1).exp()
    chances = (joint[:, 0, :, None] * joint[:, 1, None, :]).flatten(1)
    every = torch.eye(4, dtype=torch.float64)
    pairs = torch.stack([torch.stack([a, b]) for a in every for b in every])
    losses = -model.decode(batch, pairs[:, None].expand(16, 4, 2, 4)).T
    (chances * losses).sum(-1).mean().backward()
    expected = toys.gradient(model)
    toys.assert_mean(trials(Reinforce(law="gibbs"), model, batch, 600), expected)


def test_the_score_of_the_category_has_less_variance_than_that_of_the_noise():
    model, batch = toys.vae(), toys.bits(3, 6)

    def variance(law) -> float:
        return float(trials(Reinforce(law=law), model, batch, 300).var(0).sum())

    assert variance("gibbs") < 0.9 * variance("gumbel")


def test_a_divergence_of_each_sample():
    """The appendix's KL depends on the structure, so it is part of what is compared."""
    model, batch = toys.appendix_vae(), toys.bits(4, 6)
    expected = exact_gradient(model, batch, "gibbs")
    toys.assert_mean(trials(Reinforce(law="gibbs"), model, batch, 600), expected)


def test_the_loss_it_reports_is_that_of_its_samples():
    model, batch = toys.vae(), toys.bits(50, 6)
    reports = [Reinforce().backward(model, batch, seed=0, step=step) for step in range(50)]
    mean = torch.stack([report.loss for report in reports]).mean()
    with torch.no_grad():
        expected = float(exact_loss(model, batch, "gibbs").mean())
    assert float(mean) == pytest.approx(expected, rel=0.02)


def test_the_moving_average_and_its_state():
    model, batch = toys.vae(), toys.bits(3, 6)
    one = Reinforce(baseline="ema", ema_decay=0.9, num_samples=1)
    losses = [float(one.backward(model, batch, seed=0, step=step).loss) for step in range(3)]
    expected = 0.9 * (0.9 * losses[0] + 0.1 * losses[1]) + 0.1 * losses[2]
    state = one.state_dict()
    assert float(state["mean"]) == pytest.approx(expected)
    two = Reinforce(baseline="ema", ema_decay=0.9, num_samples=1)
    two.load_state_dict(state)
    one.backward(model, batch, seed=0, step=3)
    gradient = toys.gradient(model)
    assert float(state["mean"]) == pytest.approx(expected)  # a copy
    two.backward(model, batch, seed=0, step=3)
    assert torch.equal(gradient, toys.gradient(model))
    Reinforce(baseline="ema", num_samples=1).backward(model, batch, seed=0, step=3)
    assert not torch.equal(gradient, toys.gradient(model))
    assert Reinforce().state_dict() == {}


def test_the_first_step_is_compared_with_the_other_draws():
    """Not with 0: the average has seen nothing yet, and losses are far from it."""
    cost = torch.tensor([[1.0, 2.0, 6.0]])
    others = torch.tensor([[4.0, 3.5, 1.5]])
    counts = torch.ones(3, dtype=torch.bool)
    baseline = Reinforce(baseline="ema", num_samples=1)._baseline(cost, cost, counts)
    assert torch.equal(baseline, others)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 1}, "num_samples must be a whole number of at least 2, got 1"),
        ({"num_samples": 0, "baseline": "ema"}, "num_samples must be .* at least 1"),
        ({"law": "other"}, "law must be one of"),
        ({"baseline": "mean"}, "baseline must be one of"),
        ({"sampler": "gibbs"}, "sampler must be one of"),
        ({"sampler": "mcmc"}, "say law='gibbs'"),
        ({"ema_decay": 1.0}, r"ema_decay must be in \[0, 1\), got 1.0"),
        ({"num_mcmc_steps": -1}, "num_mcmc_steps"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(nestruct.InputError, match=message):
        Reinforce(**options)


def test_what_cannot_be_sampled():
    batch = toys.bits(2, 6)
    black_box = nestruct.BlackBox(lambda s: s > 0, shape=(4,))
    black_box.part_shape = (4,)
    with pytest.raises(nestruct.InputError, match="no exact samples of its Gibbs law; say law="):
        Reinforce(law="gibbs").backward(toys.vae(black_box, divergence="none"), batch, seed=0)
    with pytest.raises(nestruct.InputError, match="swaps edges of SpanningTree; for KSubset"):
        Reinforce(law="gibbs", sampler="mcmc").backward(toys.vae(SUBSET), batch, seed=0)
    with pytest.raises(nestruct.InputError, match="this batch has one; use 'ema'"):
        Reinforce(baseline="batch").backward(toys.vae(), batch[:1], seed=0)
