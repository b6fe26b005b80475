"""ScoreNES against the exact derivative of the smoothed law, and against its definition."""

import pytest
import torch
import toys

import nestruct
from nestruct import Noise, ScoreNES, perturb_and_map_law

STRUCTURES = [nestruct.Categorical(4), nestruct.KSubset(4, 2), nestruct.SpanningTree(4)]


def smoothed_gradients(model, batch, sigma: float, blocks: int) -> torch.Tensor:
    """Derivatives of the exact loss, its scores moved by Gaussians; one mean for each block."""
    structure, generator = model.structure, torch.Generator().manual_seed(0)
    members = structure.enumerate().double()
    gradients = []
    for _ in range(blocks):
        scores = model.encode(batch)
        moves = torch.randn(500, *scores.shape, generator=generator, dtype=scores.dtype)
        chances = perturb_and_map_law(structure, scores + sigma * moves).mean(0)
        every = members[:, None].expand(-1, *scores.shape)
        losses = model.divergence(scores, batch) - (chances.T * model.decode(batch, every)).sum(0)
        gradients.append(torch.autograd.grad(losses.mean(), list(model.parameters())))
    return torch.stack([torch.cat([g.flatten() for g in gradient]) for gradient in gradients])


CASES = [(s, sigma, "mirrored") for s in STRUCTURES for sigma in (0.5, 2.0)]


@pytest.mark.parametrize(
    ("structure", "sigma", "directions"), [*CASES, (STRUCTURES[1], 1.0, "latin")], ids=str
)
def test_its_mean_is_the_gradient_of_the_smoothed_loss(structure, sigma, directions):
    model, batch = toys.vae(structure), toys.bits(3, 6)
    truths = smoothed_gradients(model, batch, sigma, blocks=20)
    estimator = ScoreNES(num_pairs=20, sigma=sigma, directions=directions)
    trials = []
    for step in range(250):
        estimator.backward(model, batch, seed=0, step=step)
        trials.append(toys.gradient(model))
    found, expected = torch.stack(trials), truths.mean(0)
    variance = found.var(0) / len(trials) + truths.var(0) / len(truths)
    error = (found.mean(0) - expected) / variance.clamp(min=1e-24).sqrt()
    assert error.abs().max() < 5
    assert error.square().mean() < 1.6  # 1 if all is well
    assert torch.nn.functional.cosine_similarity(found.mean(0), expected, dim=0) > 0.99
    # The decoder alone has the same gradient under every law over so few structures, nearly: so
    # the encoder's is looked at on its own too.
    size = sum(p.numel() for p in model.encoder.parameters())
    cosine = torch.nn.functional.cosine_similarity(found.mean(0)[:size], expected[:size], dim=0)
    assert cosine > 0.9


def test_stratified_directions_have_less_variance():
    model, batch = toys.vae(nestruct.KSubset(6, 2)), toys.bits(4, 6, seed=3)
    found = {}
    for directions in ("mirrored", "latin"):
        estimator = ScoreNES(num_pairs=8, gumbel="none", directions=directions)
        trials = []
        for step in range(300):
            report = estimator.backward(model, batch, seed=0, step=step)
            trials.append(toys.gradient(model))
        assert report.num_decoded == 16 * len(batch)
        found[directions] = torch.stack(trials)
    variances = {name: trials.var(0).sum() for name, trials in found.items()}
    assert variances["latin"] < 0.9 * variances["mirrored"]
    apart = found["latin"].mean(0) - found["mirrored"].mean(0)
    assert apart.square().sum() < 3 * sum(variances.values()) / 300


def test_without_gumbel_noise_two_categories_are_a_probit():
    """P(first) = Phi((h1 - h2) / (sigma sqrt 2)), whose derivative is a normal density."""
    model = toys.Costs(nestruct.Categorical(2), lambda z: z[..., 0] * 3 + 1)
    estimator = ScoreNES(num_pairs=5000, sigma=0.7, gumbel="none")
    report = estimator.backward(model, model.batch, seed=0)
    gap = (model.scores[:, 0] - model.scores[:, 1]).detach()
    law = torch.distributions.Normal(0.0, 0.7 * 2**0.5)
    density = law.log_prob(gap).exp()
    expected = 3 * torch.stack([density, -density], 1) / len(gap)
    # |w (f+ - f-) / (2 sigma)| has a second moment of at most E[w^2] (3 / 1.4)^2, for each pair.
    tolerance = 4 * (3 / 1.4) / 5000**0.5 / len(gap)
    torch.testing.assert_close(model.scores.grad, expected, rtol=0, atol=tolerance)
    assert float(report.loss) == pytest.approx(1 + 3 * float(law.cdf(gap).mean()), abs=0.06)


@pytest.mark.parametrize("gumbel", ["per_pair", "none"])
def test_it_is_what_its_definition_says(gumbel):
    """A loop over pairs and examples, with the derivative with respect to each score."""
    model, sigma, pairs = toys.random_costs(nestruct.SpanningTree(4), rows=3), 0.8, 5
    ScoreNES(num_pairs=pairs, sigma=sigma, gumbel=gumbel).backward(
        model, model.batch, seed=2, step=7
    )
    scores, expected = model.scores.detach(), torch.zeros(3, 6, dtype=torch.float64)
    for pair in range(pairs):
        noise = Noise(seed=2, step=7, stream=pair)
        move, gumbels = noise.normal(scores), noise.gumbel(scores) * (gumbel == "per_pair")
        losses = [
            model.cost(model.structure.argmax(scores + gumbels + sign * sigma * move))
            for sign in (1, -1)
        ]
        for row in range(3):
            difference = losses[0][row] - losses[1][row]
            expected[row] += difference / (2 * sigma) * move[row] / pairs / 3
    torch.testing.assert_close(model.scores.grad, expected)


def test_all_structures_are_decoded_in_one_call():
    calls = []

    def cost(z):
        calls.append(z.shape)
        return z.sum(-1)

    model = toys.Costs(nestruct.KSubset(5, 2), cost, rows=3)
    report = ScoreNES(num_pairs=4).backward(model, model.batch, seed=0)
    assert calls == [(8, 3, 5)]
    assert int(report.num_evaluations) == 8


@pytest.mark.parametrize(
    "options",
    [
        {"num_pairs": 0},
        {"sigma": 0.0},
        {"sigma": float("nan")},
        {"gumbel": "shared"},
        {"directions": "sobol"},
    ],
    ids=str,
)
def test_bad_options(options):
    with pytest.raises(nestruct.InputError, match=f"ScoreNES: {next(iter(options))} must be"):
        ScoreNES(**options)


def test_its_sigma_is_not_that_of_parameters():
    with pytest.raises(nestruct.InputError, match="does not smooth the parameters"):
        nestruct.check_gradient(toys.vae(), ScoreNES(), toys.bits(2, 6))
