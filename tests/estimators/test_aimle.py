"""AIMLE against enumeration with its own lambda, and its state against the rule by hand."""

import copy

import pytest
import torch
import toys

import nestruct
from nestruct import AIMLE, IMLE, InputError, SolverLayer, perturb_and_map_law

SUBSETS = nestruct.KSubset(4, 2)
SMALL = [nestruct.Categorical(3), SUBSETS]
COSTS = torch.tensor([[1.0, -2.0, 0.5, 0.3], [0.2, 0.7, -1.0, 1.5]], dtype=torch.float64)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def mean(structure, scores: torch.Tensor) -> torch.Tensor:
    return perturb_and_map_law(structure, scores) @ structure.enumerate().double()


@pytest.mark.parametrize("structure", SMALL, ids=repr)
@pytest.mark.parametrize("differences", ["forward", "central"])
def test_linear_losses_give_differences_of_the_smoothed_loss(structure, differences):
    """By the chances of all members, with lambda = beta |h| / |g| over both instances."""
    scores, beta = numbers(2, *structure.part_shape), 0.6
    costs = COSTS[:, : scores.shape[-1]]
    strength = beta * scores.norm() / costs.norm()
    upper = scores + strength * costs if differences == "central" else scores
    width = strength * (2 if differences == "central" else 1)
    lower = scores - strength * costs
    expected = (mean(structure, upper) - mean(structure, lower)) / width
    gradient = AIMLE(differences=differences, beta=beta, beta_step=0.0)
    layer = SolverLayer(structure, gradient)
    torch.manual_seed(0)
    trials = []
    for _ in range(40):  # one call is one batch: many samples of it, whose ratio of norms is it too
        gradient.num_samples = 500
        leaf = scores.clone().requires_grad_()
        (layer(leaf) * costs).mean(0).sum().backward()
        assert leaf.grad is not None
        trials.append(leaf.grad.flatten())
    found = torch.stack(trials)
    spread = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - expected.flatten()).abs() < 4 * spread).all()
    assert expected.norm() > 15 * spread.norm()


def test_central_differences_have_less_bias():
    scores, costs = numbers(2, 4), COSTS
    leaf = scores.clone().requires_grad_()
    (mean(SUBSETS, leaf) * costs).sum().backward()
    strength = 0.5 * scores.norm() / costs.norm()
    lower = mean(SUBSETS, scores - strength * costs)
    forward = (mean(SUBSETS, scores) - lower) / strength
    central = (mean(SUBSETS, scores + strength * costs) - lower) / (2 * strength)
    assert (central - leaf.grad).norm() < 0.5 * (forward - leaf.grad).norm()


def test_forward_it_is_imle_with_that_strength():
    """The same draws, the same differences; any scale of the loss, several samples."""
    scores = numbers(2, 4)
    for factor in (1.0, 1e-3):
        found = []
        strength = 0.9 * scores.norm() / (factor * COSTS).norm()
        for gradient in (
            AIMLE(num_samples=3, beta=0.9),
            IMLE(num_samples=3, strength=float(strength)),
        ):
            torch.manual_seed(0)
            leaf = scores.clone().requires_grad_()
            (factor * SolverLayer(SUBSETS, gradient)(leaf) * COSTS).sum(-1).mean(0).sum().backward()
            found.append(leaf.grad)
        torch.testing.assert_close(*found)
        assert (found[0] != 0).any()


def by_hand(beta: float, average: float | None, components: float, step: float):
    average = components if average is None else 0.9 * average + 0.1 * components
    return beta + (step if average < 1 else -step if average > 1 else 0.0), average


@pytest.mark.parametrize("role", ["layer", "estimator"])
@pytest.mark.parametrize("differences", ["forward", "central"])
def test_beta_follows_the_number_of_components(role, differences):
    gradient = AIMLE(differences=differences, beta=0.3, beta_step=0.05)
    model = toys.Costs(SUBSETS, lambda z: (z * COSTS).sum(-1))
    beta, average = 0.3, None
    layer, seen = SolverLayer(SUBSETS, gradient), set()
    for step in range(30):
        model.scores.grad = None
        if role == "layer":
            torch.manual_seed(step)
            (layer(model.scores) * COSTS).sum().backward()
        else:
            gradient.backward(model, model.batch, seed=0, step=step)
        components = float((model.scores.grad != 0).sum()) / 2
        beta, average = by_hand(beta, average, components, 0.05)
        beta = max(beta, 0.0)
        seen.add(components)
        state = gradient.state_dict()
        assert float(state["beta"]) == pytest.approx(beta)
        assert float(state["average"]) == pytest.approx(average)
    assert len(seen) > 1  # or the rule would not be seen


def test_it_finds_the_beta_that_is_wanted():
    scores, costs = numbers(64, 6), numbers(64, 6, seed=1)
    for start in (0.01, 3.0):
        gradient = AIMLE(beta=start, beta_step=0.02)
        layer, counts = SolverLayer(nestruct.KSubset(6, 2), gradient), []
        torch.manual_seed(0)
        for _ in range(400):
            leaf = scores.clone().requires_grad_()
            (layer(leaf) * costs).sum().backward()
            counts.append(float((leaf.grad != 0).sum()) / 64)
        assert abs(counts[0] - 1) > 0.5
        assert sum(counts[-100:]) / 100 == pytest.approx(1.0, abs=0.1)


def test_the_state_of_a_layer_is_in_its_state_dict():
    """It is saved, loaded, copied, and nothing moves it in evaluation mode."""
    layer, scores = SolverLayer(SUBSETS, AIMLE(beta_step=0.1)), numbers(2, 4)

    def step(layer: SolverLayer) -> torch.Tensor:
        torch.manual_seed(5)
        leaf = scores.clone().requires_grad_()
        (layer(leaf) * COSTS).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    module = torch.nn.Sequential(torch.nn.Linear(4, 4), layer)
    step(layer), step(layer)
    saved = {name: value.clone() for name, value in module.state_dict().items()}
    assert float(saved["1.gradient.beta"]) == pytest.approx(0.8)
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), SolverLayer(SUBSETS, AIMLE(beta_step=0.1)))
    other.load_state_dict(saved)
    assert torch.equal(step(other[1]), step(layer))
    before = layer.state_dict()
    layer.eval()(scores)
    with torch.no_grad():
        layer.train()(scores)
    step(copy.deepcopy(layer))
    assert layer.state_dict() == before
    del saved["1.gradient.beta"]
    with pytest.raises(RuntimeError, match=r"Missing key.*1\.gradient\.beta"):
        other.load_state_dict(saved)
    other.load_state_dict(saved, strict=False)


def test_scores_of_zero_and_no_slope_give_nothing_and_no_nan():
    layer = SolverLayer(SUBSETS, AIMLE())
    for scores, costs in ((torch.zeros(2, 4), COSTS), (numbers(2, 4), torch.zeros(2, 4))):
        leaf = scores.double().requires_grad_()
        (layer(leaf) * costs).sum().backward()
        assert leaf.grad is not None
        assert not leaf.grad.any()


def test_check_layer_leaves_the_state_alone():
    layer = SolverLayer(SUBSETS, AIMLE(beta_step=0.1))
    nestruct.check_layer(layer, lambda z: (z * COSTS).sum(-1), numbers(2, 4), SUBSETS)
    assert layer.state_dict()["gradient.average"].isnan()
    (layer(numbers(2, 4).requires_grad_()) * COSTS).sum().backward()
    before = layer.state_dict()
    found = nestruct.check_layer(layer, lambda z: (z * COSTS).sum(-1), numbers(2, 4), SUBSETS)
    assert found.passed
    assert layer.state_dict() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, "beta must be positive"),
        ({"target": -1.0}, "target must be positive"),
        ({"beta_step": -0.1}, "beta_step is a number that must not be negative"),
        ({"beta_step": None}, "beta_step is a number that must not be negative"),
        ({"differences": "both"}, "differences must be one of 'forward', 'central'"),
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1"),
    ],
)
def test_mistakes_are_refused(options, message):
    with pytest.raises(InputError, match=f"AIMLE: .*{message}"):
        AIMLE(**options)
