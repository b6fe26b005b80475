"""PerturbedOptimizer against numerical integration over its noise, and against listed members."""

import math

import pytest
import torch
import toys

import nestruct
from nestruct import InputError, PerturbedOptimizer, SolverLayer, perturb_and_map_law

SMALL = [nestruct.Categorical(3), nestruct.KSubset(4, 2)]
each_structure = pytest.mark.parametrize("structure", SMALL, ids=repr)
each_noise = pytest.mark.parametrize("noise", ["gaussian", "gumbel"])
COSTS = torch.tensor([[1.0, -2.0, 0.5, 0.3], [0.2, 0.7, -1.0, 1.5]], dtype=torch.float64)


def scores_of(structure, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, *structure.part_shape, dtype=torch.float64, generator=generator)


def smoothed_mean(structure, scores: torch.Tensor, noise: str, sigma: float) -> torch.Tensor:
    """E z(h + sigma eps), differentiable: how often each part is among the k largest."""
    if noise == "gumbel":  # argmax(h + sigma eps) is argmax(h / sigma + eps)
        law = perturb_and_map_law(structure, scores / sigma)
        return law @ structure.enumerate().double()
    x = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    found = []
    for part in range(scores.shape[-1]):
        # How many others are above, as a polynomial in the number; for each value of the noise.
        above = torch.cat([torch.ones(2, 1), torch.zeros(2, structure.rank - 1)], 1).double()
        above = above[:, None].expand(2, len(x), structure.rank)
        for other in range(scores.shape[-1]):
            if other != part:
                gap = (scores[:, part] - scores[:, other])[:, None] / sigma + x
                below = torch.special.ndtr(gap)[..., None]
                more = torch.nn.functional.pad(above[..., :-1], (1, 0))
                above = above * below + more * (1 - below)
        found.append((above.sum(-1) * density).sum(-1))
    return torch.stack(found, -1)


def gradients(structure, gradient, scores, loss, trials: int) -> torch.Tensor:
    """One row for each of many independent calls of the layer, made in one call."""
    torch.manual_seed(0)
    leaf = scores.expand(trials, *scores.shape).clone().requires_grad_()
    loss(SolverLayer(structure, gradient)(leaf)).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.flatten(1)


def assert_agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The mean is within four standard errors, which are small."""
    spread = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - expected).abs() < 4 * spread + 1e-6).all()
    assert expected.norm() > 10 * spread.norm()


@each_structure
@each_noise
@pytest.mark.parametrize(("samples", "sigma"), [(1, 1.0), (2, 0.5), (8, 2.0)])
def test_a_linear_loss_has_the_derivative_of_its_smoothed_expectation(
    structure, noise, samples, sigma
):
    scores = scores_of(structure).requires_grad_()
    costs = COSTS[:, : scores.shape[-1]]
    (smoothed_mean(structure, scores, noise, sigma) * costs).sum().backward()
    gradient = PerturbedOptimizer(num_samples=samples, sigma=sigma, noise=noise)
    assert scores.grad is not None
    found = gradients(structure, gradient, scores.detach(), lambda z: z * costs, 40_000 // samples)
    assert_agree(found, scores.grad.flatten())


@each_structure
@each_noise
def test_it_decodes_the_smoothed_mean(structure, noise):
    scores = scores_of(structure)
    torch.manual_seed(0)
    layer = SolverLayer(structure, PerturbedOptimizer(num_samples=40_000, noise=noise, sigma=0.7))
    expected = smoothed_mean(structure, scores, noise, 0.7)
    torch.testing.assert_close(layer(scores), expected, rtol=0, atol=0.012)


@each_noise
def test_the_limit_for_many_samples_is_the_derivative_at_the_mean(noise):
    """Of L(E z), for a loss that is not linear: not that of E L(z), which differs from it."""
    structure = nestruct.Categorical(3)
    scores, mixing = scores_of(structure), 3 * scores_of(nestruct.KSubset(3, 1), 5)[:, None]

    def loss(z):
        return (z * mixing[:, 0]).sum(-1).tanh()

    leaf = scores.clone().requires_grad_()
    mean = smoothed_mean(structure, leaf, noise, 1.0)
    (expected,) = torch.autograd.grad(loss(mean).sum(), leaf, retain_graph=True)
    members = torch.eye(3, dtype=torch.float64)[:, None].expand(3, 2, 3)
    (other,) = torch.autograd.grad((loss(members).T * mean).sum(), leaf)
    found = gradients(
        structure, PerturbedOptimizer(num_samples=2000, noise=noise), scores, loss, 50
    )
    distance = (found.mean(0) - expected.flatten()).norm()
    assert distance < 0.05 * expected.norm()
    assert (other - expected).norm() > 0.2 * expected.norm()


@each_noise
def test_leaving_one_out_saves_variance(noise):
    """Where z . g has a mean far from 0: a number added to all costs would drown the estimate."""
    structure = nestruct.KSubset(4, 2)
    scores, costs = scores_of(structure), COSTS + 10
    alone = gradients(
        structure, PerturbedOptimizer(num_samples=1, noise=noise), scores, lambda z: z * costs, 4000
    )
    several = gradients(
        structure, PerturbedOptimizer(num_samples=8, noise=noise), scores, lambda z: z * costs, 4000
    )
    assert several.var(0).sum() < 0.02 * alone.var(0).sum() / 8


@pytest.mark.parametrize("samples", [1, 4])
def test_as_an_estimator_it_decodes_one_mean_of_each_example(samples):
    model = toys.Costs(nestruct.KSubset(4, 2), lambda z: (z * COSTS).sum(-1))
    estimator = PerturbedOptimizer(num_samples=samples, noise="gumbel")
    report = estimator.backward(model, model.batch, seed=2, step=5)
    assert int(report.num_solved or 0) == samples * 2
    assert int(report.num_decoded or 0) == 2
    assert int(report.num_evaluations) == 1
    z = model.sample(model.batch, samples, nestruct.Noise(seed=2, step=5))
    torch.testing.assert_close(report.loss, (z.mean(0) * COSTS).sum(-1).mean())


def test_parts_that_cannot_be_chosen_get_nothing():
    scores = torch.tensor([[0.3, -torch.inf, 1.0, 0.2]], dtype=torch.float64, requires_grad=True)
    SolverLayer(nestruct.KSubset(4, 2), PerturbedOptimizer())(scores).backward(COSTS[:1])
    assert scores.grad is not None
    assert scores.grad[0, 1] == 0
    assert (scores.grad[0, [0, 2, 3]] != 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1"),
        ({"noise": "normal"}, "noise must be one of 'gaussian', 'gumbel'"),
    ],
)
def test_mistakes_are_refused(options, message):
    with pytest.raises(InputError, match=f"PerturbedOptimizer: .*{message}"):
        PerturbedOptimizer(**options)
