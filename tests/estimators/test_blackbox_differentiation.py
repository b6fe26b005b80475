"""BlackboxDifferentiation against its interpolation, and against I-MLE without noise."""

import pytest
import torch
import toys

import nestruct
from nestruct import BlackboxDifferentiation, InputError, SolverLayer

STRUCTURES = [nestruct.Categorical(4), nestruct.KSubset(4, 2), nestruct.SpanningTree(3)]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_it_is_the_derivative_of_the_papers_interpolation(structure):
    """Theorem 1: of f(z(h - lambda g)) + (h . z(h - lambda g) - h . z(h)) / lambda, g held fixed.

    Losses are linear in z. The sign is that of a solver that maximises.
    """
    strength, members = 1.3, structure.enumerate().double()
    scores, costs = numbers(5, *structure.part_shape), numbers(5, *structure.part_shape, seed=1)

    def best(scores):  # by listing
        return members[(scores @ members.T).argmax(-1)]

    leaf = scores.clone().requires_grad_()
    plain, moved = best(leaf.detach()), best(leaf.detach() - strength * costs)
    interpolated = (costs * moved).sum(-1) + ((leaf * (plain - moved)).sum(-1)) / strength
    interpolated.sum().backward()
    found = scores.clone().requires_grad_()
    layer = SolverLayer(structure, BlackboxDifferentiation(strength=strength))
    (layer(found) * costs).sum().backward()
    torch.testing.assert_close(found.grad, leaf.grad)
    # Between the loss now and the least one, it is continuous: what makes it worth a derivative.
    assert (interpolated <= (costs * plain).sum(-1) + 1e-12).all()


def test_without_a_strength_the_scale_of_the_loss_does_not_matter():
    structure, scores, costs = nestruct.KSubset(4, 2), numbers(9, 4), numbers(9, 4, seed=1)

    def gradient(factor: float) -> torch.Tensor:
        leaf = scores.clone().requires_grad_()
        layer = SolverLayer(structure, BlackboxDifferentiation())
        (factor * layer(leaf) * costs).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    torch.testing.assert_close(gradient(1e-3) * 1e3, gradient(1.0))
    assert (gradient(1.0) != 0).any()


def test_as_an_estimator_it_trains_the_loss_at_the_argmax():
    costs = numbers(2, 4, seed=1)
    model = toys.Costs(nestruct.KSubset(4, 2), lambda z: (z * costs).sum(-1).exp())
    report = BlackboxDifferentiation(strength=0.7).backward(model, model.batch, seed=2)
    scores = model.scores.detach()
    z = model.structure.argmax(scores)
    losses = (z * costs).sum(-1).exp()
    moved = model.structure.argmax(scores - 0.7 * costs * losses[:, None])
    torch.testing.assert_close(model.scores.grad, (z - moved) / 0.7 / 2)
    torch.testing.assert_close(report.loss, losses.mean())
    assert int(report.num_solved or 0) == 4
    assert int(report.num_decoded or 0) == 2


def test_mistakes_are_refused():
    with pytest.raises(InputError, match="BlackboxDifferentiation: strength must be positive"):
        BlackboxDifferentiation(strength=0.0)
    with pytest.raises(TypeError, match="num_samples"):  # they would all be the same
        BlackboxDifferentiation(num_samples=2)
