"""StraightThrough against Jacobians of relaxations, ReinMax against the exact gradient."""

import itertools

import pytest
import torch
from cases import CASES

import nestruct
from nestruct import InputError, Relaxable, SolverLayer, StraightThrough

RELAXED = [
    case
    for case in CASES
    if isinstance(case.structure, Relaxable) and case.num_parts and case.size in (None, 3)
]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("case", RELAXED, ids=repr)
def test_it_is_the_jacobian_of_the_relaxation_at_the_perturbed_scores(case):
    """By central differences, part by part; with the slope at the hard structure."""
    scores, mixing = numbers(2, *case.shape), numbers(2, *case.shape, seed=1)
    gradient, leaf = StraightThrough(temperature=0.8), scores.clone().requires_grad_()
    torch.manual_seed(3)
    z = SolverLayer(case.structure, gradient)(leaf)
    ((z * mixing).flatten(1).sum(1).exp()).sum().backward()
    torch.manual_seed(3)
    perturbed = scores - torch.empty_like(scores).exponential_().log()
    expected_z = case.structure.argmax(perturbed)
    assert torch.equal(z.detach(), expected_z)
    slope = mixing * (expected_z * mixing).flatten(1).sum(1).exp().view(-1, *[1] * len(case.shape))
    eye = 1e-5 * torch.eye(case.num_parts, dtype=torch.float64).view(-1, 1, *case.shape)
    plus, minus = (
        (case.structure.relax(perturbed + sign * eye, 0.8) * slope).flatten(2).sum(2)
        for sign in (1, -1)
    )
    expected = ((plus - minus) / 2e-5).T
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.flatten(1), expected, rtol=1e-5, atol=1e-6)


def mean_over_classes(estimator: str, scores: torch.Tensor, loss, temperature: float = 1.0):
    """The expectation of the estimate, by asking the layer for a long list of samples."""
    num = 60_000
    leaf = scores.expand(num, len(scores)).clone().requires_grad_()
    layer = SolverLayer(
        nestruct.Categorical(len(scores)),
        StraightThrough(estimator=estimator, temperature=temperature),  # type: ignore[arg-type]
    )
    torch.manual_seed(0)
    loss(layer(leaf)).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.mean(0), leaf.grad.std(0) / num**0.5


def exact(scores: torch.Tensor, loss) -> torch.Tensor:
    leaf = scores.clone().requires_grad_()
    (leaf.softmax(-1) * loss(torch.eye(len(scores), dtype=torch.float64))).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


SCORES, MATRIX, TARGET = numbers(4), numbers(4, 4, seed=5), numbers(4, seed=6)


def quadratic(z):
    return (z @ MATRIX - TARGET).square().sum(-1)


def curved(z):
    return (0.7 * (z @ MATRIX)).tanh().sum(-1)


def test_reinmax_is_exact_for_quadratic_losses():
    truth = exact(SCORES, quadratic)
    found, error = mean_over_classes("reinmax", SCORES, quadratic)
    assert ((found - truth).abs() < 4 * error).all()
    assert truth.norm() > 20 * error.norm()
    first, _ = mean_over_classes("gumbel", SCORES, quadratic)
    assert (first - truth).norm() > 0.2 * truth.norm()


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_reinmax_by_listing_all_classes(temperature):
    """As derived: half of both ends' tangents; as published at other temperatures."""
    classes = torch.eye(4, dtype=torch.float64).requires_grad_()
    (g,) = torch.autograd.grad(curved(classes).sum(), classes)
    p, q = SCORES.softmax(-1), (SCORES / temperature).softmax(-1)
    expected = torch.zeros(4, dtype=torch.float64)
    for i in range(4):
        hot = classes.detach()[i]
        half = (hot + q) / 2
        published = 2 * (half * g[i] - half * (half @ g[i])) - (p * g[i] - p * (p @ g[i])) / 2
        if temperature == 1:
            derived = (p * (g[i] - g[i] @ hot) + hot * (g[i] @ (hot - p))) / 2
            torch.testing.assert_close(published, derived)
        expected += p[i] * published
    found, error = mean_over_classes("reinmax", SCORES, curved, temperature)
    assert ((found - expected).abs() < 4 * error).all()


def test_reinmax_is_of_second_order():
    """The less a loss bends, the faster its error falls: as the square, not in proportion."""
    distances = {"reinmax": [], "one end": []}
    for bend in (0.4, 0.2, 0.1):
        classes = torch.eye(4, dtype=torch.float64).requires_grad_()

        def loss(z, bend=bend):
            return (bend * (z @ MATRIX)).exp().sum(-1) / bend

        (g,) = torch.autograd.grad(loss(classes).sum(), classes)
        p, hot = SCORES.softmax(-1), classes.detach()
        truth = exact(SCORES, loss)
        inner = (g * hot).sum(-1, keepdim=True)
        ends = (p * (g - inner) + hot * ((g * hot).sum(-1) - g @ p)[:, None]) / 2
        one = p * (g - (g @ p)[:, None])  # straight-through with the softmax: S(p) g
        for name, each in (("reinmax", ends), ("one end", one)):
            distances[name].append(float((p @ each - truth).norm()))
    ratios = {name: [a / b for a, b in itertools.pairwise(d)] for name, d in distances.items()}
    assert min(ratios["reinmax"]) > 3.2  # towards 4, as the bend is halved
    assert max(ratios["one end"]) < 2.8  # towards 2


def test_several_categories_and_samples():
    """Rows of a matrix of categories are instances of their own."""
    scores, wanted = numbers(3, 5, 4).requires_grad_(), numbers(3, 5, 4, seed=1)
    gradient = StraightThrough(estimator="reinmax", num_samples=4)
    z = SolverLayer(nestruct.Categorical(4), gradient)(scores)
    assert z.shape == (4, 3, 5, 4)
    (z * wanted).mean(0).sum().backward()
    one = scores.detach()[1, 2].softmax(-1)
    g, hot = wanted[1, 2], z.detach()[:, 1, 2]
    each = (one * (g - (hot * g).sum(-1, keepdim=True)) + hot * (hot @ g - one @ g)[:, None]) / 2
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad[1, 2], each.mean(0))


@pytest.mark.parametrize(
    ("options", "structure", "message"),
    [
        ({}, nestruct.BlackBox(lambda s: s > 0, 4), "has no relaxation; take IMLE"),
        ({}, nestruct.GridPath(3, 3, moves="four"), "has no relaxation; take IMLE"),
        ({"estimator": "reinmax"}, nestruct.KSubset(4, 2), "is for categories only; say"),
        ({"temperature": 0.0}, nestruct.KSubset(4, 2), "temperature must be positive"),
        ({"estimator": "st"}, nestruct.KSubset(4, 2), "estimator must be one of 'gumbel', 'rein"),
    ],
)
def test_mistakes_are_refused(options, structure, message):
    with pytest.raises(InputError, match=f"StraightThrough: .*{message}"):
        SolverLayer(structure, StraightThrough(**options))


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_reinmax_passes_the_check_against_its_own_limit(temperature):
    gradient = StraightThrough(estimator="reinmax", temperature=temperature)
    layer = SolverLayer(nestruct.Categorical(4), gradient)
    found = nestruct.check_layer(layer, curved, numbers(2, 4), nestruct.Categorical(4))
    assert found.biased_by_design
    assert found.passed
    assert found.cosine > 0.9
