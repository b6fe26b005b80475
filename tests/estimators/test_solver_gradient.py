"""What all gradients of a SolverLayer share: one definition for both of their roles."""

from dataclasses import dataclass

import pytest
import torch
import toys

import nestruct
from nestruct import IMLE, Identity, InputError, Noise
from nestruct.estimators import SolverGradient


@dataclass(kw_only=True, eq=False)
class Twice(SolverGradient):
    """Passes twice the slope on, so that what reaches it is known."""

    num_samples: int = 1

    def there_and_back(self, structure, scores, draws, **context):
        centre, source = self._repeat(scores, draws)
        return structure.argmax(centre + source.gumbel(centre), **context), lambda g: 2 * g


def curved(z):
    return z.cumsum(-1).square().sum(-1)


@pytest.mark.parametrize("samples", [1, 3])
def test_both_roles_are_one_function(samples):
    """With the same draws: the estimator's gradient is that of the layer's mean loss."""
    model = toys.Costs(nestruct.KSubset(5, 2), curved, rows=4)
    estimator = Twice(num_samples=samples)
    report = estimator.backward(model, model.batch, seed=3, step=2)
    leaf = model.scores.detach().requires_grad_()
    z = estimator.solve(model.structure, leaf, Noise(seed=3, step=2))
    assert z.shape == ((samples, 4, 5) if samples > 1 else (4, 5))
    losses = curved(z)
    losses.mean().backward()
    torch.testing.assert_close(model.scores.grad, leaf.grad)
    torch.testing.assert_close(report.loss, losses.mean().detach())
    one = estimator.solve(model.structure, leaf, torch.Generator().manual_seed(0))
    assert one.shape == z.shape


def test_a_sample_is_that_of_its_stream():
    model = toys.Costs(nestruct.KSubset(5, 2), curved, rows=4)
    noise = Noise(seed=1, step=7)
    z = Twice(num_samples=3).solve(model.structure, model.scores, noise)
    assert torch.equal(z.detach(), model.sample(model.batch, 3, noise))


@pytest.mark.parametrize(
    ("estimator", "calls"), [(IMLE(num_samples=3), 2), (Identity(num_samples=3), 1)], ids=repr
)
def test_what_is_decoded_and_solved(estimator, calls):
    model = toys.Costs(nestruct.KSubset(5, 2), curved, rows=4)
    report = estimator.backward(model, model.batch, seed=0)
    assert int(report.num_evaluations) == 3
    assert int(report.num_decoded) == 3 * 4
    assert int(report.num_solved) == calls * 3 * 4


def test_what_has_no_answer_on_the_way_back_adds_nothing_and_is_counted():
    """A solver that fails at scores moved far: the other examples have their gradient."""

    def near(scores):
        return torch.where((scores > 50).any(-1, keepdim=True), torch.nan, (scores > 0).double())

    structure, weights = nestruct.BlackBox(near, 5), torch.tensor([10.0, -500.0, 20.0, 10.0])
    model = toys.Costs(structure, lambda z: z.sum(-1) * weights, rows=4)
    report = IMLE(strength=1.0).backward(model, model.batch, seed=0)
    assert int(report.num_failed) == 1
    found = model.scores.grad
    assert not found[1].any()
    assert found[[0, 2, 3]].any(-1).all()
    torch.manual_seed(0)
    leaf = model.scores.detach().clone().requires_grad_()
    layer = nestruct.SolverLayer(structure, IMLE(strength=1.0))
    (layer(leaf).sum(-1) * weights).sum().backward()
    assert not leaf.grad[1].any()
    assert leaf.grad[[0, 2, 3]].any(-1).all()


@pytest.mark.parametrize(
    "cost", [lambda z: curved((z > 0.5).double()), lambda z: curved(z.detach())]
)
def test_a_loss_without_a_derivative_is_refused(cost):
    """Values are not enough, and an encoder that never moves would say nothing."""
    model = toys.Costs(nestruct.KSubset(5, 2), cost)
    with pytest.raises(InputError, match=r"IMLE needs the loss's derivative .* use StructureNES"):
        IMLE().backward(model, model.batch, seed=0)
    nestruct.StructureNES(num_samples=4).backward(model, model.batch, seed=0)
    assert (model.scores.grad != 0).any()


def test_a_decoder_alone_may_be_estimated():
    """The encoder is frozen: nothing goes back through the solver."""
    model = toys.vae(nestruct.KSubset(5, 2), divergence="none")
    model.encoder.requires_grad_(False)
    report = IMLE().backward(model, toys.bits(4, 6), seed=0)
    assert report.grad_norm > 0
    assert int(report.num_solved) == 4
    assert all(p.grad is None for p in model.encoder.parameters())


def test_slopes_that_are_none_of_the_losss_are_left_out():
    """A member of no example, padding, moves nothing: the longest sentence decides nothing else."""
    trees = toys.Sentences(nestruct.NonProjectiveTree())
    batch = toys.sentences(2, 4)
    IMLE().backward(trees, batch, seed=0)
    both = toys.gradient(trees)
    alone = []
    for row in range(2):
        one = nestruct.select_rows(batch, torch.tensor([row]))
        one["x"] = one["x"][:, : int(one["words"])]
        estimator = IMLE()
        trees.zero_grad()
        scores, context = trees.encode(one), trees.context(one)
        noise = Noise(seed=0, example=torch.tensor([row]))
        z = estimator.solve(trees.structure, scores, noise, **context)
        trees.loss_at(one, scores, z).sum().backward()
        alone.append(toys.gradient(trees))
    torch.testing.assert_close(both, torch.stack(alone).mean(0))


class Longer(IMLE):
    """A mistake: what comes back is too long."""

    def there_and_back(self, structure, scores, draws, **context):
        z, back = super().there_and_back(structure, scores, draws, **context)
        return z, lambda g: 1.5 * back(g)


def test_check_gradient_compares_with_the_methods_own_limit():
    """Which is far from the truth for a large strength; a mistake is caught all the same."""
    model = toys.Costs(nestruct.KSubset(5, 2), curved, rows=3)
    options = {"num_trials": 100, "num_reference": 4000, "sigma": 0.002}
    right, wrong = (
        nestruct.check_gradient(model, kind(strength=20.0, num_samples=8), model.batch, **options)
        for kind in (IMLE, Longer)
    )
    assert right.biased_by_design
    assert right.bias > 0.2
    assert (right.passed, right.undecided) == (True, False)
    assert (wrong.passed, wrong.undecided) == (False, False)
