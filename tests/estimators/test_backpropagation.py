"""What holds for every estimator that samples structures and differentiates the rest."""

import pytest
import torch
import toys

import nestruct
from nestruct import Reinforce, ScoreNES, StructureNES

MAKERS = pytest.mark.parametrize("make", [Reinforce, ScoreNES, StructureNES])


@MAKERS
def test_seed_and_step_are_all_that_is_random(make):
    model, batch = toys.vae(nestruct.SpanningTree(4)), toys.bits(5, 6)

    def gradient(**place) -> torch.Tensor:
        make().backward(model, batch, **place)
        return toys.gradient(model).clone()

    first = gradient(seed=1, step=4)
    assert torch.equal(gradient(seed=1, step=4), first)
    assert not torch.equal(gradient(seed=1, step=5), first)
    assert not torch.equal(gradient(seed=2, step=4), first)


@MAKERS
def test_rows_do_not_see_each_other(make):
    model = toys.random_costs(nestruct.SpanningTree(4), rows=3)
    make().backward(model, model.batch, seed=1)
    before = model.scores.grad
    with torch.no_grad():
        model.scores[2] *= -1
    make().backward(model, model.batch, seed=1)
    assert torch.equal(model.scores.grad[:2], before[:2])
    assert not torch.allclose(model.scores.grad[2], before[2])


@MAKERS
def test_any_solver_will_do(make):
    """A black box that picks the best class gives what Categorical gives."""

    def best(scores):
        return torch.nn.functional.one_hot(scores.argmax(-1), 4)

    batch = toys.bits(5, 6)
    gradients = []
    for structure in (nestruct.Categorical(4), nestruct.BlackBox(best, 4)):
        model = toys.vae(structure, divergence="gumbel")
        make().backward(model, batch, seed=1)
        gradients.append(toys.gradient(model))
    assert gradients[0].norm() > 0
    torch.testing.assert_close(gradients[1], gradients[0])


@MAKERS
def test_rows_that_are_not_finite_are_counted(make):
    model, batch = toys.vae(nestruct.SpanningTree(4)), toys.bits(4, 6)
    batch[1] = torch.nan
    estimator = make()
    report = estimator.backward(model, batch, seed=1)
    assert int(report.num_failed) == estimator.num_samples  # of one row
    assert report.loss.isnan()
    assert toys.gradient(model).isnan().all()


@pytest.mark.parametrize("make", [ScoreNES, StructureNES])
def test_parts_that_cannot_be_chosen_get_no_gradient(make):
    """Padding, the diagonal and arcs into the root of dependency trees."""

    class Sentences(nestruct.StructuredModel):
        def __init__(self):
            super().__init__()
            self.structure = nestruct.ProjectiveTree()
            self.scores = torch.nn.Parameter(torch.zeros(2, 5, 5, dtype=torch.float64))
            self.costs = torch.arange(25, dtype=torch.float64).view(5, 5)

        def encode(self, batch):
            return self.scores

        def decode(self, batch, z):
            return -(z * self.costs).sum((-1, -2))

        def lengths(self, batch):
            return batch

    model, lengths = Sentences(), torch.tensor([4, 2])
    make().backward(model, lengths, seed=0)
    counting = model.structure.counting(model.scores, lengths)
    assert (model.scores.grad[counting] != 0).all()
    assert (model.scores.grad[~counting] == 0).all()
