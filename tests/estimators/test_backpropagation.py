"""What holds for every estimator that samples structures and differentiates the rest."""

import pytest
import torch
import toys

import nestruct
from nestruct import Reinforce, ScoreNES, StructureNES

MAKERS = pytest.mark.parametrize("make", [Reinforce, ScoreNES, StructureNES])


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


SAMPLERS = pytest.mark.parametrize(
    "make",
    [
        Reinforce,
        lambda: Reinforce(baseline="batch", num_samples=2),
        lambda: Reinforce(baseline="ema", num_samples=2),
        nestruct.NVIL,
        ScoreNES,
        StructureNES,
    ],
)


@SAMPLERS
def test_a_row_without_an_answer_leaves_the_others_alone(make):
    """Its own scores learn nothing; the others' mean is over one example less."""
    model = toys.random_costs(nestruct.SpanningTree(4), rows=3)
    solve = model.structure.argmax

    def fail(scores):
        z = solve(scores)
        z[..., 1, :] = torch.nan
        return z

    two = toys.random_costs(nestruct.SpanningTree(4), rows=3)
    model.structure.argmax = fail
    estimator = make()
    report = estimator.backward(model, model.batch, seed=1)
    gradient = model.scores.grad
    assert int(report.num_failed) == estimator.num_samples
    assert report.loss.isfinite()
    assert gradient.isfinite().all()
    assert (gradient[0] != 0).any()
    assert (gradient[1] == 0).all()
    if not isinstance(estimator, Reinforce) or estimator.baseline == "multi_sample":
        make().backward(two, two.batch, seed=1)  # rows do not see each other
        torch.testing.assert_close(gradient[[0, 2]], two.scores.grad[[0, 2]] * 3 / 2)


@SAMPLERS
def test_a_step_without_a_gradient_moves_nothing(make):
    """An example that is not finite spoils the encoder's whole gradient."""
    model, batch = toys.vae(nestruct.SpanningTree(4)), toys.bits(4, 6)
    batch[1] = torch.nan
    with pytest.raises(nestruct.NestructError, match="no loss is finite, or their gradient is not"):
        make().backward(model, batch, seed=1)
    assert (toys.gradient(model) == 0).all()


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

        def context(self, batch):
            return {"lengths": batch}

    model, lengths = Sentences(), torch.tensor([4, 2])
    make().backward(model, lengths, seed=0)
    counting = model.structure.counting(model.scores, lengths=lengths)
    assert (model.scores.grad[counting] != 0).all()
    assert (model.scores.grad[~counting] == 0).all()
