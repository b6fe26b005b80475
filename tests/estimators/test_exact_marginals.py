"""ExactMarginals against the covariance of listed members, for every structure with a Gibbs law."""

import pytest
import torch
import toys
from cases import SAMPLE_CASES, Case, totals

import nestruct
from nestruct import ExactMarginals, InputError, SolverLayer
from nestruct.structures import Gibbs

CASES = [case for case in SAMPLE_CASES if isinstance(case.structure, Gibbs) and case.num_parts]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def law_of(case: Case, scores: torch.Tensor, length: int | None = None) -> torch.Tensor:
    return totals(case.members(length), scores).softmax(-1)


def covariance(case: Case, scores: torch.Tensor, length: int | None = None) -> torch.Tensor:
    """``[*batch, parts, parts]``, by listing members."""
    law, members = law_of(case, scores, length), case.members(length).flatten(1)
    mean = law @ members
    second = torch.einsum("...m,mi,mj->...ij", law, members, members)
    return second - mean[..., :, None] * mean[..., None, :]


def gradient_of(case: Case, gradient, scores, loss, **context) -> torch.Tensor:
    leaf = scores.clone().requires_grad_()
    torch.manual_seed(0)
    loss(SolverLayer(case.structure, gradient)(leaf, **context)).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_linear_loss_has_the_exact_derivative_of_its_expectation(case):
    """Cov(z) c, and by differentiating sum of p(z) c . z; not on average, but always."""
    scores, costs = numbers(3, *case.shape), numbers(3, *case.shape, seed=1)
    found = gradient_of(case, ExactMarginals(), scores, lambda z: z * costs)
    by_hand = torch.einsum("bij,bj->bi", covariance(case, scores), costs.flatten(1))
    torch.testing.assert_close(found.flatten(1), by_hand)
    leaf = scores.clone().requires_grad_()
    (law_of(case, leaf) * (costs.flatten(1) @ case.members().flatten(1).T)).sum().backward()
    torch.testing.assert_close(found, leaf.grad)


@pytest.mark.parametrize("case", [case for case in CASES if case.size == 3], ids=repr)
def test_sentences_of_different_lengths(case):
    """Beyond its length nothing counts, whatever stands there."""
    if case.structure.context_names != ("lengths",):
        return  # an alignment has two
    lengths = torch.tensor([2, 3])
    scores, costs = numbers(2, *case.shape), numbers(2, *case.shape, seed=1)
    gradient = ExactMarginals(num_samples=2)
    found = gradient_of(case, gradient, scores, lambda z: (z * costs).mean(0), lengths=lengths)
    for row, length in enumerate((2, 3)):
        by_hand = covariance(case, scores[row], length) @ costs[row].flatten()
        torch.testing.assert_close(found[row].flatten(), by_hand)


@pytest.mark.parametrize("samples", [1, 3])
def test_other_losses_have_the_mean_of_their_tangents(samples):
    """E[Cov(z) g(z)], over all members; with several samples with less noise."""
    case = Case(nestruct.KSubset(5, 2), None)
    scores, mixing = numbers(5), numbers(5, 5, seed=5)

    def loss(z):
        return (z @ mixing).tanh().sum(-1)

    members = case.members().requires_grad_()
    (slopes,) = torch.autograd.grad(loss(members).sum(), members)
    expected = covariance(case, scores) @ (law_of(case, scores) @ slopes)
    torch.manual_seed(0)
    leaf = scores.expand(5000, 5).clone().requires_grad_()
    z = SolverLayer(case.structure, ExactMarginals(num_samples=samples))(leaf)
    loss(z).view(samples, -1).mean(0).sum().backward()
    assert leaf.grad is not None
    toys.assert_mean(leaf.grad, expected)


def test_samples_follow_the_gibbs_law():
    """Which is not the law of perturb-and-MAP."""
    case = Case(nestruct.KSubset(4, 2), None)
    scores = torch.tensor([2.0, 0.0, -1.0, 1.0])
    torch.manual_seed(0)
    z = SolverLayer(case.structure, ExactMarginals(num_samples=20_000))(scores)
    mean = law_of(case, scores) @ case.members()
    perturbed = nestruct.perturb_and_map_law(case.structure, scores.double()) @ case.members()
    assert (mean - perturbed).abs().max() > 0.03
    torch.testing.assert_close(z.mean(0).double(), mean, rtol=0, atol=0.015)


def test_as_an_estimator_with_the_divergence_of_its_law():
    """Decoder and divergence included: the gradient of the exact ELBO, where it is linear in z."""
    structure = nestruct.KSubset(4, 2)
    costs, members = numbers(2, 4), structure.enumerate().double()

    class Linear(toys.Costs):
        def divergence(self, scores, batch):
            return nestruct.objective.gibbs_divergence(structure, scores)

    model = Linear(structure, lambda z: (z * costs).sum(-1))
    report = ExactMarginals(num_samples=3).backward(model, model.batch, seed=0)
    assert int(report.num_solved or 0) == 0
    assert int(report.num_decoded or 0) == 3 * 2
    found = model.scores.grad
    model.scores.grad = None
    law = (model.scores @ members.T).softmax(-1)
    exact = (law * (costs @ members.T)).sum(-1) + model.divergence(model.scores, None)
    exact.mean().backward()
    torch.testing.assert_close(found, model.scores.grad)


@pytest.mark.parametrize(
    "structure",
    [nestruct.BlackBox(lambda s: s > 0, 4), nestruct.Permutation(3)],
    ids=repr,
)
def test_structures_without_a_law_are_refused(structure):
    message = r"ExactMarginals: .* no exact samples of its Gibbs law; take IMLE"
    with pytest.raises(InputError, match=message):
        SolverLayer(structure, ExactMarginals())
    model = toys.Costs(nestruct.Categorical(4), lambda z: z.sum(-1))
    model.structure = structure
    with pytest.raises(InputError, match=message):
        ExactMarginals().backward(model, model.batch, seed=0)
