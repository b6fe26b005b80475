"""The bounds against exact smoothed losses of functions that jump."""

import itertools
import math
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from nestruct import InputError, theory


class Cells:
    """A loss that is constant on the cells of a grid, and what Gaussian smoothing makes of it."""

    def __init__(self, values, *edges):
        self.values = np.asarray(values, dtype=float)
        self.edges = [np.asarray(e, dtype=float) for e in edges]
        assert self.values.shape == tuple(len(e) + 1 for e in self.edges)

    def __call__(self, points):
        cells = [np.searchsorted(e, x) for e, x in zip(self.edges, points.T, strict=True)]
        return self.values[tuple(cells)]

    def smoothed(self, point, sigma):
        """Value, gradient and Hessian of g, from the normal distribution function."""
        parts = []
        for edges, x in zip(self.edges, point, strict=True):
            u = (edges - x) / sigma
            cdf = np.concatenate([[0.0], norm.cdf(u), [1.0]])
            pdf = np.concatenate([[0.0], norm.pdf(u), [0.0]])
            slope = np.concatenate([[0.0], u * norm.pdf(u), [0.0]])
            parts.append((np.diff(cdf), -np.diff(pdf) / sigma, -np.diff(slope) / sigma**2))
        dim = len(parts)
        unit = np.eye(dim, dtype=int)

        def derivative(orders):
            return reduce(
                lambda total, part: np.tensordot(part[0][part[1]], total, (0, 0)),
                zip(parts, orders, strict=True),
                self.values,
            ).item()

        gradient = np.array([derivative(unit[i]) for i in range(dim)])
        hessian = np.array([[derivative(a + b) for b in unit] for a in unit])
        return derivative(0 * unit[0]), gradient, hessian


def quadrature(loss, point, sigma):
    """Directions and weights of a Gauss-Legendre rule whose panels end where the loss jumps."""
    x, w = np.polynomial.legendre.leggauss(12)
    axes = []
    for edges, centre in zip(loss.edges, point, strict=True):
        cuts = np.clip((edges - centre) / sigma, -10, 10)
        cuts = np.unique(np.concatenate([np.linspace(-10, 10, 21), cuts]))
        middle, half = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts) / 2
        nodes = (middle[:, None] + half[:, None] * x).ravel()
        axes.append((nodes, (half[:, None] * w).ravel() * norm.pdf(nodes)))
    directions = np.array(list(itertools.product(*(nodes for nodes, _ in axes))))
    weights = reduce(np.multiply.outer, (weights for _, weights in axes)).ravel()
    return directions, weights


def by_quadrature(loss, point, sigma, rotation=None):
    directions, weights = quadrature(loss, point, sigma)
    losses = torch.from_numpy(loss(np.asarray(point) + sigma * directions))
    if rotation is not None:  # of the loss about the point: N(0, I) does not change
        directions = directions @ rotation.T
    nodes, weights = torch.from_numpy(directions), torch.from_numpy(weights)
    return theory.smoothed_loss(losses, nodes, sigma=sigma, weights=weights)


def step(loss_bound):
    return Cells([0, loss_bound], [0.0])


def slab(loss_bound, sigma):
    return Cells([0, loss_bound, 0], [-sigma, sigma])


def random_cells(seed, dim, loss_bound, zero_one=False):
    rng = np.random.default_rng(seed)
    edges = [np.sort(rng.normal(size=rng.integers(2, 6))) for _ in range(dim)]
    values = rng.uniform(size=[len(e) + 1 for e in edges])
    return Cells(loss_bound * (values.round() if zero_one else values), *edges)


def descend(loss, point, sigma, step_size, num_steps):
    """Values of g at every point on the way, and squared gradient norms at the steps' starts."""
    values, squares = [], []
    for _ in range(num_steps):
        value, gradient, _ = loss.smoothed(point, sigma)
        values.append(value)
        squares.append(gradient @ gradient)
        point = point - step_size * gradient
    return np.array([*values, loss.smoothed(point, sigma)[0]]), np.array(squares)


PROBLEMS = [(1, 1.0, 0.3), (1, 5.0, 1.0), (2, 1.0, 0.2), (2, 3.0, 0.7)]
problems = pytest.mark.parametrize(("dim", "loss_bound", "sigma"), PROBLEMS)


def test_the_constant_is_the_expectation():
    x, w = np.polynomial.legendre.leggauss(60)
    x, w = 5.5 + 4.5 * x, 4.5 * w  # from 1 to 10, and the other side the same
    expectation = 2 * ((x**2 - 1) * norm.pdf(x)) @ w
    assert pytest.approx(expectation, rel=1e-12) == theory.HESSIAN_CONSTANT
    assert 0.4839 < theory.HESSIAN_CONSTANT < 0.4840


@problems
def test_derivatives_are_those_of_the_exact_smoothed_loss(dim, loss_bound, sigma):
    for seed in range(3):
        loss = random_cells(seed, dim, loss_bound)
        point = np.random.default_rng(seed + 50).normal(size=dim)
        quadratic = by_quadrature(loss, point, sigma)
        for ours, exact in zip(quadratic, loss.smoothed(point, sigma), strict=True):
            np.testing.assert_allclose(ours.numpy(), exact, atol=1e-11 * loss_bound / sigma**2)


@problems
def test_hessian_needs_the_minus_identity(dim, loss_bound, sigma):
    loss = random_cells(7, dim, loss_bound)
    point, h = np.full(dim, 0.1), 1e-3 * sigma
    shifts = h * np.eye(dim)

    def value(at):
        return loss.smoothed(at, sigma)[0]

    differences = np.array(
        [
            [
                value(point + a + b) - value(point + a - b) - value(point - a + b)
                + value(point - a - b)
                for b in shifts
            ]
            for a in shifts
        ]
    ) / (4 * h**2)  # fmt: skip
    g = by_quadrature(loss, point, sigma)
    scale = loss_bound / sigma**2
    np.testing.assert_allclose(g.hessian.numpy(), differences, atol=1e-5 * scale)
    directions, weights = quadrature(loss, point, sigma)
    weighted = weights * loss(point + sigma * directions)
    printed = (directions.T * weighted) @ directions / sigma**2
    excess = g.value.item() / sigma**2 * np.eye(dim)
    np.testing.assert_allclose(printed - differences, excess, atol=1e-5 * scale)
    assert excess[0, 0] > 0.1 * scale


def test_monte_carlo_agrees():
    loss, point, sigma = random_cells(3, 2, 1.0), np.array([0.2, -0.1]), 0.5
    draws = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0)).double()
    losses = torch.from_numpy(loss(point + sigma * draws.numpy()))
    sampled = theory.smoothed_loss(losses, draws, sigma=sigma)
    for ours, exact in zip(sampled, loss.smoothed(point, sigma), strict=True):
        np.testing.assert_allclose(ours.numpy(), exact, atol=5 * 2 / sigma**2 / 200_000**0.5)


@given(
    seed=st.integers(0, 10_000),
    dim=st.integers(1, 3),
    loss_bound=st.sampled_from([0.1, 1.0, 20.0]),
    sigma=st.sampled_from([0.05, 0.5, 2.0]),
    zero_one=st.booleans(),
)
def test_bounds_hold_everywhere(seed, dim, loss_bound, sigma, zero_one):
    loss = random_cells(seed, dim, loss_bound, zero_one)
    rng = np.random.default_rng(seed + 1)
    found = [loss.smoothed(point, sigma) for point in rng.normal(size=(30, dim))]
    gradients = np.array([gradient for _, gradient, _ in found])
    hessians = np.array([hessian for _, _, hessian in found])
    slack = 1 + 1e-9
    norms = np.linalg.norm(gradients, axis=1)
    assert norms.max() <= theory.gradient_bound(loss_bound, sigma) * slack
    curvatures = np.abs(np.linalg.eigvalsh(hessians)).max()
    assert curvatures <= theory.hessian_bound(loss_bound, sigma) * slack
    lemma = np.einsum("ai,bij,aj->ab", gradients, hessians, gradients)  # at any two points
    bound = theory.paper_curvature_bound(loss_bound, sigma, num_parameters=dim)
    assert lemma.max() <= bound


@pytest.mark.parametrize(("loss_bound", "sigma"), [(1.0, 0.1), (4.0, 2.0)])
def test_a_step_attains_the_gradient_bound_and_a_slab_the_hessian_bound(loss_bound, sigma):
    bound = theory.gradient_bound(loss_bound, sigma)
    assert step(loss_bound).smoothed([0.0], sigma)[1] == pytest.approx(bound, rel=1e-12)
    bound = theory.hessian_bound(loss_bound, sigma)
    ridge = slab(loss_bound, sigma)
    valley = Cells(loss_bound - ridge.values, *ridge.edges)
    assert ridge.smoothed([0.0], sigma)[2].item() == pytest.approx(-bound, rel=1e-12)
    assert valley.smoothed([0.0], sigma)[2].item() == pytest.approx(bound, rel=1e-12)
    # A step alone, at one sigma from its edge, has half the slab's curvature.
    assert step(loss_bound).smoothed([sigma], sigma)[2].item() == pytest.approx(-bound / 2)


@pytest.mark.parametrize("angle", [0.0, 0.4, 2.0])
def test_the_bounds_are_attained_in_any_direction_of_the_plane(angle):
    sigma, normal = 0.3, np.array([math.cos(angle), math.sin(angle)])
    rotation = np.column_stack([normal, [-normal[1], normal[0]]])
    half_space, strip = Cells([[0], [2.0]], [0.0], []), Cells([[0], [2.0], [0]], [-0.3, 0.3], [])
    gradient = by_quadrature(half_space, [0.0, 0.0], sigma, rotation).gradient.numpy()
    np.testing.assert_allclose(gradient, theory.gradient_bound(2.0, sigma) * normal, atol=1e-9)
    hessian = by_quadrature(strip, [0.0, 0.0], sigma, rotation).hessian.numpy()
    expected = -theory.hessian_bound(2.0, sigma) * np.outer(normal, normal)
    np.testing.assert_allclose(hessian, expected, atol=1e-9)


def test_the_cauchy_schwarz_step_as_printed_is_false():
    # |integral of phi w k|^2 <= integral of |phi w k|^2, on a step: 0.159 against 0.071.
    directions, weights = quadrature(step(1.0), [0.0], 1.0)
    w, k = directions[:, 0], step(1.0)(directions)
    left, right = (weights @ (w * k)) ** 2, weights @ (norm.pdf(w) * (w * k) ** 2)
    assert left > 2 * right


@problems
def test_descent_keeps_both_bounds(dim, loss_bound, sigma):
    for seed, num_steps in itertools.product(range(3), (1, 3, 30, 300)):
        loss = random_cells(seed, dim, loss_bound, zero_one=True)
        start = np.random.default_rng(seed).normal(size=dim)
        size = theory.step_size(loss_bound, sigma)
        values, squares = descend(loss, start, sigma, size, num_steps)
        assert squares.mean() <= theory.convergence_bound(loss_bound, sigma, num_steps=num_steps)
        assert (values[:-1] - values[1:] >= size / 2 * squares - 1e-12 * loss_bound).all()
        known = {"num_parameters": dim, "num_steps": num_steps}
        best = theory.paper_step_size(loss_bound, sigma, **known)
        for size in (best, 0.1 * best, 10 * best):  # Theorem 1 holds for any step
            _, squares = descend(loss, start, sigma, size, num_steps)
            bound = theory.paper_convergence_bound(loss_bound, sigma, **known, step_size=size)
            assert squares.mean() <= bound


def staircase(num_steps, loss_bound, sigma):
    """Stairs as wide as sigma, so long that descent from the top takes about ``num_steps``."""
    count = round(math.sqrt(num_steps / theory.HESSIAN_CONSTANT))
    edges = sigma * (np.arange(count) + 0.5)
    return Cells(np.linspace(0, loss_bound, count + 1), edges), np.array([count * sigma])


@pytest.mark.parametrize("num_steps", [100, 400, 1600])
def test_no_better_rate_than_one_over_t(num_steps):
    # With steps of 1 / L a straight slope uses up M at half the bound: a factor 2 is all there is.
    loss_bound, sigma = 2.0, 0.3
    loss, top = staircase(num_steps, loss_bound, sigma)
    size = theory.step_size(loss_bound, sigma)
    _, squares = descend(loss, top, sigma, size, num_steps)
    bound = theory.convergence_bound(loss_bound, sigma, num_steps=num_steps)
    assert 0.4 < squares.mean() / bound < 0.5
    paper = theory.paper_convergence_bound(loss_bound, sigma, num_parameters=1, num_steps=num_steps)
    assert paper / squares.mean() > 2 * math.sqrt(num_steps)


def test_a_longer_step_breaks_the_descent():
    # In a valley as curved as the bound allows, twice the step size is where descent stops.
    loss_bound, sigma = 1.0, 1.0
    valley = Cells([1, 0, 1], [-1.0, 1.0])
    size, start = theory.step_size(loss_bound, sigma), np.array([0.05])
    assert np.diff(descend(valley, start, sigma, 1.9 * size, 50)[0]).max() <= 0
    assert np.diff(descend(valley, start, sigma, 2.1 * size, 50)[0]).max() > 0


@pytest.mark.parametrize("delta", [0.01, 0.3, 7.0])
def test_steps_to_reach(delta):
    scale = {"loss_bound": 2.0, "sigma": 0.5}
    count = theory.steps_to_reach(**scale, delta=delta)
    assert theory.convergence_bound(**scale, num_steps=count) <= delta * (1 + 1e-12)
    assert count == 1 or theory.convergence_bound(**scale, num_steps=count - 1) > delta
    scale["num_parameters"] = 3
    count = theory.paper_steps_to_reach(**scale, delta=delta)
    assert theory.paper_convergence_bound(**scale, num_steps=count) <= delta * (1 + 1e-12)
    assert theory.paper_convergence_bound(**scale, num_steps=count - 1) > delta


def test_the_promised_gradient_is_reached():
    loss_bound, sigma, delta = 1.0, 0.5, 0.05
    loss, top = staircase(50, loss_bound, sigma)
    size = theory.step_size(loss_bound, sigma)
    count = theory.steps_to_reach(loss_bound, sigma, delta=delta)
    assert descend(loss, top, sigma, size, count)[1].min() <= delta


@given(num_parameters=st.integers(1, 10**6), num_steps=st.integers(1, 10**9))
def test_the_sharp_bound_is_below_the_papers(num_parameters, num_steps):
    known = {"num_parameters": num_parameters, "num_steps": num_steps}
    paper = theory.paper_convergence_bound(3.0, 0.2, **known)
    assert paper == pytest.approx(math.sqrt(2 * num_parameters / num_steps) * 3.0**2 / 0.2**2)
    assert theory.convergence_bound(3.0, 0.2, num_steps=num_steps) < paper
    silent = paper >= theory.gradient_bound(3.0, 0.2) ** 2  # Theorem 1 says nothing yet
    assert silent == (num_steps <= 8 * math.pi**2 * num_parameters)


def test_theorems_step_size_is_the_best_one():
    known = {"num_parameters": 5, "num_steps": 40}
    best = theory.paper_step_size(2.0, 0.3, **known)
    least = theory.paper_convergence_bound(2.0, 0.3, **known)
    for factor in (0.5, 0.99, 1.01, 2.0):
        bound = theory.paper_convergence_bound(2.0, 0.3, **known, step_size=factor * best)
        assert bound > least


def test_bounds_scale_as_the_loss_and_the_parameters_do():
    # k -> 10 k and mu -> mu / 2 (so sigma / 2): gradients x 20, Hessians x 40, steps / 40.
    assert theory.gradient_bound(10.0, 0.5) == pytest.approx(20 * theory.gradient_bound(1.0, 1.0))
    assert theory.hessian_bound(10.0, 0.5) == pytest.approx(40 * theory.hessian_bound(1.0, 1.0))
    assert theory.step_size(10.0, 0.5) == pytest.approx(theory.step_size(1.0, 1.0) / 40)
    known = {"num_parameters": 7, "num_steps": 9}
    ratio = theory.paper_step_size(10.0, 0.5, **known) / theory.paper_step_size(1.0, 1.0, **known)
    assert ratio == pytest.approx(1 / 40)
    for bound in (
        lambda *scale: theory.convergence_bound(*scale, num_steps=9),
        lambda *scale: theory.paper_convergence_bound(*scale, **known),
    ):
        assert bound(10.0, 0.5) == pytest.approx(400 * bound(1.0, 1.0))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["loss_bound", "sigma", "step_size"])
def test_bad_numbers_are_named(name, bad):
    good = {"loss_bound": 1.0, "sigma": 1.0, "num_parameters": 1, "num_steps": 1}
    with pytest.raises(InputError, match=f"{name} must be positive and finite"):
        theory.paper_convergence_bound(**good | {name: bad})


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.hessian_bound(1.0, 0.0),
        lambda: theory.gradient_bound(math.nan, 1.0),
        lambda: theory.step_size(0.0, 1.0),
        lambda: theory.convergence_bound(1.0, 1.0, num_steps=0),
        lambda: theory.steps_to_reach(1.0, -1.0, delta=1.0),
        lambda: theory.paper_curvature_bound(1.0, 1.0, num_parameters=0),
        lambda: theory.paper_step_size(1.0, 1.0, num_parameters=1, num_steps=0),
        lambda: theory.paper_convergence_bound(1.0, 1.0, num_parameters=0, num_steps=1),
        lambda: theory.paper_steps_to_reach(1.0, 1.0, num_parameters=1, delta=0.0),
        lambda: theory.smoothed_loss(torch.ones(2), torch.ones(2, 1), sigma=0.0),
        lambda: theory.smoothed_loss(torch.ones(0), torch.ones(0, 1), sigma=1.0),
    ],
)
def test_every_function_checks_its_arguments(call):
    with pytest.raises(InputError, match="theory: "):
        call()
