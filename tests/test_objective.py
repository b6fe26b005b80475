"""Divergences against their definitions; the loss bound."""

import pytest
import torch

import nestruct
from nestruct import InputError
from nestruct.objective import DIVERGENCES, bound_log_probability


def gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_gumbel_divergence_is_the_kl_of_the_noises():
    scores = gaussian(2, 3)
    place = torch.linspace(-30, 60, 200_001, dtype=torch.float64)

    def log_density(x, location):
        return -(x - location) - torch.exp(-(x - location))

    kl = torch.zeros(2, dtype=torch.float64)
    for row in range(2):
        for h in scores[row]:
            q = log_density(place, h)
            kl[row] += torch.trapezoid(
                q.exp() * (q - log_density(place, torch.zeros(())).clamp(min=-1e30)), place
            )
    found = DIVERGENCES["gumbel"](nestruct.KSubset(3, 1), scores)
    torch.testing.assert_close(found, kl)


def test_gumbel_divergence_counts_only_parts_that_can_be_chosen():
    structure = nestruct.NonProjectiveTree()
    scores = gaussian(1, 5, 5)
    small = DIVERGENCES["gumbel"](structure, scores[:, :3, :3])
    scores[:, 3:], scores[:, :, 3:] = torch.nan, torch.nan
    padded = DIVERGENCES["gumbel"](structure, scores, lengths=torch.tensor([2]))
    torch.testing.assert_close(padded, small)
    u = scores[0, [0, 0, 1, 2], [1, 2, 2, 1]]
    torch.testing.assert_close(small[0], (u + torch.exp(-u) - 1).sum())
    blocked = torch.tensor([[0.5, -torch.inf]], requires_grad=True)
    value = DIVERGENCES["gumbel"](nestruct.Categorical(2), blocked)
    assert torch.autograd.grad(value.sum(), blocked)[0].isfinite().all()


@pytest.mark.parametrize(
    ("structure", "shape"),
    [
        (nestruct.Categorical(5), (2, 5)),
        (nestruct.SpanningTree(4), (2, 6)),
        (nestruct.ProjectiveTree(), (2, 4, 4)),
    ],
    ids=repr,
)
def test_gibbs_divergence_is_the_kl_to_uniform(structure, shape):
    scores = gaussian(*shape)
    members = structure.enumerate(3 if len(shape) == 3 else None).double().flatten(1)
    chances = (scores.flatten(1) @ members.T).softmax(-1)
    kl = (chances * (chances * len(members)).log()).sum(-1)
    torch.testing.assert_close(DIVERGENCES["gibbs"](structure, scores), kl)


def test_none_is_zero_and_impossible_choices_are_refused():
    assert (DIVERGENCES["none"](nestruct.Permutation(2), gaussian(3, 2, 2)) == 0).all()
    with pytest.raises(InputError, match="tractable Gibbs law"):
        DIVERGENCES["gibbs"](nestruct.Permutation(2), gaussian(3, 2, 2))


def test_the_bound_clamps_each_component():
    values = torch.tensor([[-0.5, -7.0], [-3.0, 0.0]])
    assert torch.equal(
        bound_log_probability(values, 3.0), torch.tensor([[-0.5, -3.0], [-3.0, 0.0]])
    )
    assert bound_log_probability(values, None) is values


def test_the_appendix_is_refused_with_its_new_name():
    with pytest.raises(InputError, match=r"a model of its own now, nestruct\.models\.AppendixVAE"):
        nestruct.models.RelationalVAE(4, 10, divergence="paper-appendix")
    with pytest.raises(InputError, match="divergence must be one of 'gumbel', 'gibbs', 'none'"):
        nestruct.models.RelationalVAE(4, 10, divergence="kl")
