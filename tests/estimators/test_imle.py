"""IMLE against enumeration, numerical integration, and its formula written with numpy."""

import numpy as np
import pytest
import torch
import toys

import nestruct
from nestruct import IMLE, InputError, Noise, SolverLayer, perturb_and_map_law

SMALL = [nestruct.Categorical(3), nestruct.Categorical(4), nestruct.KSubset(4, 2)]
each_structure = pytest.mark.parametrize("structure", SMALL, ids=repr)
COSTS = torch.tensor([[1.0, -2.0, 0.5, 0.3], [0.2, 0.7, -1.0, 1.5]], dtype=torch.float64)


def scores_of(structure, *lead: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, *structure.part_shape, dtype=torch.float64, generator=generator)


def gradients(structure, gradient, scores, loss, trials: int) -> torch.Tensor:
    """One row for each of many independent calls of the layer, made in one call."""
    torch.manual_seed(0)
    leaf = scores.expand(trials, *scores.shape).clone().requires_grad_()
    loss(SolverLayer(structure, gradient)(leaf)).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.flatten(1)


def assert_agree(found: torch.Tensor, expected: torch.Tensor, error: float = 0.0) -> None:
    """The mean is within four standard errors, which are small, and an error that is known."""
    spread = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - expected).abs() < 4 * spread + error).all()
    assert expected.norm() > 15 * spread.norm()


@each_structure
@pytest.mark.parametrize("strength", [0.3, 2.0])
def test_linear_losses_give_the_finite_difference_of_the_smoothed_loss(structure, strength):
    """(E z(h) - E z(h - lambda c)) / lambda, by the chances of all members."""
    scores, members = scores_of(structure, 2), structure.enumerate().double()
    costs = COSTS[:, : scores.shape[-1]]

    def mean(scores):
        return perturb_and_map_law(structure, scores) @ members

    expected = (mean(scores) - mean(scores - strength * costs)) / strength
    found = gradients(structure, IMLE(strength=strength), scores, lambda z: z * costs, 20_000)
    assert_agree(found, expected.flatten())


@each_structure
def test_a_small_strength_gives_the_derivative_of_a_linear_loss(structure):
    """One-sided differences of a smooth function: what is left is of the order of lambda."""
    scores, members = scores_of(structure, 2).requires_grad_(), structure.enumerate().double()
    costs = COSTS[:, : scores.shape[-1]]
    law = perturb_and_map_law(structure, scores)
    ((law @ members) * costs).sum().backward()
    found = gradients(structure, IMLE(strength=0.02), scores.detach(), lambda z: z * costs, 200_000)
    assert scores.grad is not None
    assert_agree(found, scores.grad.flatten(), error=0.01)


def joint_law(first: np.ndarray, second: dict[int, np.ndarray], size: int = 1200) -> np.ndarray:
    """P(argmax(h + eps) = i and argmax(h_i + eps) = j), by integrating over eps_i and eps_j.

    Scores ``first`` are h, ``second[i]`` the h_i; the other Gumbel variables are integrated out.
    """
    classes = len(first)
    quantiles = (np.arange(size) + 0.5) / size
    u, v = np.meshgrid(*2 * [-np.log(-np.log(quantiles))], indexing="ij")
    chances = np.exp(first) / np.exp(first).sum()
    joint = np.zeros((classes, classes))
    for i in range(classes):
        a, b = first, second[i]
        for j in set(range(classes)) - {i}:
            inside = ((u + a[i] >= v + a[j]) & (v + b[j] >= u + b[i])).astype(float)
            for k in set(range(classes)) - {i, j}:
                bound = np.minimum(u + a[i] - a[k], v + b[j] - b[k])
                inside = inside * np.exp(-np.exp(-bound))
            joint[i, j] = inside.mean()
        joint[i, i] = chances[i] - joint[i].sum()
    return joint


@pytest.mark.parametrize("classes", [3, 4])
def test_other_losses_agree_with_numerical_integration(classes):
    """The slope depends on z, so what counts is the law of both solutions together."""
    structure, strength = nestruct.Categorical(classes), 1.5
    scores, target = scores_of(structure), COSTS[0, :classes]
    mixing = scores_of(structure, classes, seed=5)

    def loss(z):
        return ((z @ mixing).tanh() - target).square().sum(-1)

    members = torch.eye(classes, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(loss(members).sum(), members)
    moved = {i: (scores - strength * slopes[i]).numpy() for i in range(classes)}
    joint = joint_law(scores.numpy(), moved)
    expected = torch.from_numpy(joint.sum(1) - joint.sum(0)) / strength
    found = gradients(structure, IMLE(strength=strength), scores, loss, 40_000)
    assert_agree(found, expected, error=1e-3)


def test_many_parts_and_any_loss_agree_with_a_long_run_of_the_formula():
    structure, strength, runs = nestruct.KSubset(5, 2), 2.0, 100_000
    scores, mixing = scores_of(structure), scores_of(structure, 5, seed=5)

    def loss(z):
        return (z @ mixing).tanh().sum(-1)

    eps = -np.log(np.random.default_rng(0).exponential(size=(runs, 5)))
    perturbed = scores.numpy() + eps

    def top_two(values: np.ndarray) -> np.ndarray:
        best = np.argsort(-values, axis=1)[:, :2]
        z = np.zeros_like(values)
        np.put_along_axis(z, best, 1.0, axis=1)
        return z

    z = top_two(perturbed)
    slope = (1 - np.tanh(z @ mixing.numpy()) ** 2) @ mixing.numpy().T
    each = torch.from_numpy((z - top_two(perturbed - strength * slope)) / strength)
    found = gradients(structure, IMLE(strength=strength), scores, loss, 20_000)
    error = (each.var(0) / runs + found.var(0) / len(found)).sqrt()
    assert ((found.mean(0) - each.mean(0)).abs() < 4 * error).all()
    assert each.mean(0).norm() > 20 * error.norm()


def test_several_samples_are_the_mean_of_the_formula():
    """For a loss that averages over samples, whatever way it does that."""
    structure, strength = nestruct.KSubset(4, 2), 1.5
    scores = scores_of(structure, 2).requires_grad_()
    torch.manual_seed(3)
    z = SolverLayer(structure, IMLE(strength=strength, num_samples=7))(scores)
    assert z.shape == (7, 2, 4)
    (z.mean(0) * COSTS).sum().backward()
    torch.manual_seed(3)
    eps = -torch.empty(7, 2, 4, dtype=torch.float64).exponential_().log()
    moved = structure.argmax(scores.detach() + eps - strength * COSTS)
    assert torch.equal(z.detach(), structure.argmax(scores.detach() + eps))
    torch.testing.assert_close(scores.grad, (z.detach() - moved).mean(0) / strength)


def test_without_a_strength_the_scale_of_the_loss_does_not_matter():
    """The largest entry moves its score by two; what comes out is proportional to the loss."""
    structure, scores = nestruct.KSubset(4, 2), scores_of(nestruct.KSubset(4, 2), 2)

    def gradient(factor: float, own: float | None) -> torch.Tensor:
        return gradients(structure, IMLE(strength=own), scores, lambda z: factor * z * COSTS, 50)

    torch.testing.assert_close(gradient(1e-3, None) * 1e3, gradient(1.0, None))
    for row, costs in enumerate(COSTS):
        own = gradient(1.0, 2 / float(costs.abs().max())).view(50, 2, 4)[:, row]
        torch.testing.assert_close(gradient(1.0, None).view(50, 2, 4)[:, row], own)


def test_as_an_estimator_it_takes_the_loss_of_each_example():
    """The same formula with the model's own draws, whatever the size of the batch."""
    model = toys.Costs(nestruct.KSubset(4, 2), lambda z: (z * COSTS).sum(-1).exp())
    IMLE(strength=0.7, num_samples=3).backward(model, model.batch, seed=2, step=5)
    streams = Noise(seed=2, step=5, stream=torch.arange(3)[:, None])
    scores = model.scores.detach()
    perturbed = scores + streams.gumbel(scores)
    z = model.structure.argmax(perturbed)
    slope = COSTS * (z * COSTS).sum(-1, keepdim=True).exp()
    moved = model.structure.argmax(perturbed - 0.7 * slope)
    expected = (z - moved).mean(0) / 0.7 / len(scores)
    torch.testing.assert_close(model.scores.grad, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": 0.0}, "strength must be positive"),
        ({"strength": -1.0}, "strength must be positive"),
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1"),
        ({"noise": "normal"}, "noise must be one of 'gumbel', 'sum_of_gamma'"),
        ({"noise": "sum_of_gamma"}, "needs k, the parts of every member"),
        ({"noise": "sum_of_gamma", "k": 0}, "k must be a whole number of at least 1"),
    ],
)
def test_mistakes_are_refused(options, message):
    with pytest.raises(InputError, match=f"IMLE: .*{message}"):
        IMLE(**options)
