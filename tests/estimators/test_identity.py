"""Identity: exactly the transpose of its projection's Jacobian, times the loss's slope."""

import pytest
import torch

import nestruct
from nestruct import Identity, InputError, SolverLayer

C = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.2, 0.7, -1.0, 1.5]], dtype=torch.float64)


def scores_of(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def projection(kind: str, scores: torch.Tensor) -> torch.Tensor:
    """Of one instance, as the paper has it."""
    if kind == "centred":
        scores = scores - scores.mean()
    return scores if kind == "none" else scores / scores.norm()


def pulled_back(kind: str, scores: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    jacobian = torch.func.jacrev(lambda h: projection(kind, h))(scores).flatten(scores.dim())
    return (slope.flatten() @ jacobian.view(slope.numel(), -1)).view_as(scores)


def positive(scores):
    return scores > 0


class Trees(nestruct.ProjectiveTree):
    """Which arcs count is all that matters here; the solver would have to be compiled."""

    def argmax(self, scores, **context):
        return torch.zeros_like(scores)


STRUCTURES = {
    "auto, subsets": (nestruct.KSubset(4, 2), "auto", "centred"),
    "auto, a black box": (nestruct.BlackBox(positive, 4), "auto", "norm"),
    "centred, a black box": (nestruct.BlackBox(positive, 4), "centred", "centred"),
    "norm, subsets": (nestruct.KSubset(4, 2), "norm", "norm"),
    "none, subsets": (nestruct.KSubset(4, 2), "none", "none"),
}


@pytest.mark.parametrize("noise", ["gumbel", "none"])
@pytest.mark.parametrize(("structure", "option", "kind"), STRUCTURES.values(), ids=STRUCTURES)
def test_it_is_the_jacobian_of_the_projection(structure, option, kind, noise):
    """For a loss that is no linear function of z, with the slope at the z that was decoded."""
    scores = scores_of(2, 4).requires_grad_()
    z = SolverLayer(structure, Identity(projection=option, noise=noise))(scores)
    z.retain_grad()
    ((z * C).sum(-1) ** 3 + (z * C.exp()).sum(-1)).sum().backward()
    expected = [pulled_back(kind, *rows) for rows in zip(scores.detach(), z.grad, strict=True)]
    torch.testing.assert_close(scores.grad, torch.stack(expected))


def test_matrices_are_projected_as_a_whole():
    scores, slope = scores_of(3, 3), scores_of(4, 3)[:3] ** 2
    leaf = scores.clone().requires_grad_()
    solver = nestruct.BlackBox(positive, (3, 3))
    SolverLayer(solver, Identity(projection="centred"))(leaf).backward(slope)
    torch.testing.assert_close(leaf.grad, pulled_back("centred", scores, slope))


def test_samples_share_a_jacobian():
    scores = scores_of(2, 4)
    found = []
    for samples in (1, 5):
        leaf = scores.clone().requires_grad_()
        z = SolverLayer(nestruct.KSubset(4, 2), Identity(num_samples=samples))(leaf)
        (z * C).view(samples, 2, 4).mean(0).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[0], found[1])


def test_padding_and_forbidden_parts_are_left_out():
    """A sentence beside a longer one, and a score of -inf: as if those parts were not there."""
    trees, scores, slope = Trees(), scores_of(1, 5, 5), scores_of(2, 5, 5)[1:]
    lengths = torch.tensor([2])
    leaf = scores.clone().requires_grad_()
    SolverLayer(trees, Identity())(leaf, lengths=lengths).backward(slope)
    counting = trees.counting(scores, lengths)
    assert counting.sum() == 4
    expected = pulled_back("centred", scores[counting], slope[counting])
    torch.testing.assert_close(leaf.grad[counting], expected)
    assert (leaf.grad[~counting] == 0).all()

    row = torch.tensor([[0.3, -torch.inf, 1.0, 0.2]], dtype=torch.float64, requires_grad=True)
    SolverLayer(nestruct.KSubset(4, 2), Identity())(row).backward(C[:1])
    kept = torch.tensor([0, 2, 3])
    expected = pulled_back("centred", row.detach()[0, kept], C[0, kept])
    torch.testing.assert_close(row.grad[0, kept], expected)
    assert row.grad[0, 1] == 0


def test_equal_scores_have_no_direction_to_lose():
    scores = torch.full((1, 4), 2.0, dtype=torch.float64, requires_grad=True)
    SolverLayer(nestruct.KSubset(4, 2), Identity())(scores).backward(C[:1])
    torch.testing.assert_close(scores.grad, C[:1] - C[:1].mean())


def test_mistakes_are_refused():
    with pytest.raises(InputError, match="Identity: projection must be one of 'auto', 'centred'"):
        Identity(projection="mean")
    with pytest.raises(InputError, match="Identity: noise must be one of 'gumbel', 'none'"):
        Identity(noise="sum_of_gamma")
    with pytest.raises(InputError, match="Identity: num_samples must be a whole number"):
        Identity(num_samples=0)
