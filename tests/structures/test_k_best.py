"""The k best members and max-marginals against the list of all members."""

import pytest
import torch
from cases import KBEST_CASES, Case, total_of, totals
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nestruct
from nestruct import InputError
from nestruct.structures import kbest, max_marginals

# Few distinct values make ties; -inf forbids.
SCORE = st.one_of(
    st.sampled_from([-2.0, 0.0, 0.0, 1.0, 1.5, -torch.inf]), st.floats(-100, 100, width=32)
)
each_case = pytest.mark.parametrize("case", KBEST_CASES, ids=repr)


def check(case: Case, scores: torch.Tensor, members: torch.Tensor, z, values) -> None:
    """One row: the totals are the best ones in order, of distinct members that have them."""
    total = totals(members, scores)
    total = total[total > -torch.inf].sort(descending=True).values
    found = min(len(z), len(total))
    torch.testing.assert_close(values[:found].double(), total[:found], rtol=1e-6, atol=1e-5)
    assert (values[found:] == -torch.inf).all()
    assert not z[found:].any()
    listed = {tuple(member) for member in members.flatten(1).tolist()}
    answers = [tuple(member) for member in z[:found].double().flatten(1).tolist()]
    assert set(answers) <= listed
    assert len(set(answers)) == found
    again = total_of(z[:found], scores, len(case.shape))
    torch.testing.assert_close(again, total[:found], rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each_case
@settings(max_examples=15)
@given(data=st.data())
def test_the_k_best_are_those_of_the_list(case, dtype, data):
    scores = torch.from_numpy(data.draw(hnp.arrays("float64", (2, *case.shape), elements=SCORE)))
    k, context = data.draw(st.integers(1, 8)), {}
    lists = [case.members()] * 2
    if case.is_sized:
        lengths, each = case.lengths(data, 2)
        context = {"lengths": lengths}
        lists = [case.members(length) for length in each]
    scores = scores.to(dtype)
    with nestruct.nan_rows():
        z, values = case.structure.kbest(scores, k, **context)
        best_with = case.structure.max_marginals(scores, **context)
    assert z.shape == (k, *scores.shape)
    assert values.shape == (k, 2)
    assert z.dtype == values.dtype == best_with.dtype == dtype
    for row, members in enumerate(lists):
        total = totals(members, scores[row])
        if total.max() == -torch.inf:
            assert z[:, row].isnan().all()
            assert values[:, row].isnan().all()
            assert best_with[row].isnan().all()
            continue
        check(case, scores[row], members, z[:, row], values[:, row])
        each = total.view(-1, *[1] * len(case.shape))
        expected = torch.where(members == 1, each, -torch.inf).amax(0)
        torch.testing.assert_close(best_with[row].double(), expected, rtol=1e-6, atol=1e-5)


@each_case
def test_every_member_is_listed_once(case):
    members = case.members()
    scores = torch.zeros(case.shape)  # all tie
    z, values = case.structure.kbest(scores, len(members) + 1)
    check(case, scores, members, z, values)


@each_case
def test_leading_axes_vmap_and_the_first_member(case):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, *case.shape, generator=generator, dtype=torch.float64)
    z, values = case.structure.kbest(scores, 3)
    assert torch.equal(z[0], case.structure.argmax(scores))
    best_with = case.structure.max_marginals(scores)
    for i in range(2):
        for j in range(3):
            one, its_values = case.structure.kbest(scores[i, j], 3)
            assert torch.equal(one, z[:, i, j])
            assert torch.equal(its_values, values[:, i, j])
            assert torch.equal(case.structure.max_marginals(scores[i, j]), best_with[i, j])
    mapped = torch.func.vmap(lambda s: case.structure.kbest(s, 3), out_dims=1)(scores)
    assert torch.equal(mapped[0], z)
    assert torch.equal(mapped[1], values)
    assert torch.equal(torch.func.vmap(case.structure.max_marginals)(scores), best_with)


@each_case
def test_totals_are_differentiable(case):
    scores = torch.randn(2, *case.shape, generator=torch.Generator().manual_seed(0))
    scores.requires_grad_()
    z, values = case.structure.kbest(scores, 1)
    assert not z.requires_grad
    (slope,) = torch.autograd.grad(values.sum(), scores)
    assert torch.equal(slope, z[0])


def test_large_offsets_and_masks_do_not_cost_digits():
    for structure, shape in [
        (nestruct.SpanningTree(4), (6,)),
        (nestruct.KSubset(6, 3), (6,)),
        (nestruct.Permutation(3), (3, 3)),
        (nestruct.NonProjectiveTree(), (4, 4)),
    ]:
        scores = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        scores.view(-1)[2] = -1e9  # a mask that is finite
        tree = isinstance(structure, nestruct.NonProjectiveTree)
        members = structure.enumerate(3 if tree else None).double()
        total = totals(members, scores).sort(descending=True).values
        _, values = structure.kbest(scores, len(members))
        torch.testing.assert_close(values, total, rtol=1e-15, atol=1e-13)


def knapsack(scores, weights):
    """All subsets of four items whose weights are at most 5; NaN where none is allowed."""
    subsets = (torch.arange(16)[:, None] >> torch.arange(4)) & 1
    total = torch.where(subsets == 1, scores[:, None], 0.0).sum(-1)
    total = torch.where(weights @ subsets.T.to(weights) <= 5, total, -torch.inf)
    best, index = total.max(-1, keepdim=True)
    return torch.where(best > -torch.inf, subsets[index[:, 0]].to(scores), torch.nan)


def test_any_solver_that_honours_minus_infinity():
    """Members within members: the best subset may lie inside or around another."""
    box = nestruct.BlackBox(knapsack, shape=4)
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]])
    scores = torch.randn(2, 4, generator=torch.Generator().manual_seed(2))
    scores[1, 3] = -torch.inf
    z, values = kbest(box, scores, 12, weights=weights)
    best_with = max_marginals(box, scores, weights=weights)
    subsets = (torch.arange(16)[:, None] >> torch.arange(4)) & 1
    for row in range(2):
        legal = subsets[(subsets @ weights[row].long()) <= 5].double()
        case = Case(nestruct.KSubset(4, 2), None)
        check(case, scores[row], legal, z[:, row], values[:, row])
        total = totals(legal, scores[row])
        expected = torch.where(legal == 1, total[:, None], -torch.inf).amax(0)
        torch.testing.assert_close(best_with[row].double(), expected)
    one, its_values = kbest(box, scores[0], 3, weights=weights[0])
    assert torch.equal(one, z[:3, 0])
    assert torch.equal(its_values, values[:3, 0])


def test_it_is_asked_for_in_parts_of_what_memory_holds(monkeypatch):
    trees = (nestruct.SpanningTree(5), nestruct.ConstituencyTree())
    for tree, shape in zip(trees, [(3, 10), (3, 4, 4)], strict=True):
        scores = torch.randn(shape, dtype=torch.float64)
        whole = (*tree.kbest(scores, 6), tree.max_marginals(scores))
        monkeypatch.setattr("nestruct.structures.k_best.MAX_SCORES", 60)
        monkeypatch.setattr("nestruct.structures.relaxations.k_derivations.MAX_VALUES", 1)
        pieces = (*tree.kbest(scores, 6), tree.max_marginals(scores))
        for one, other in zip(whole, pieces, strict=True):
            assert torch.equal(one, other)


def test_mistakes_are_refused_in_a_sentence():
    subset, scores = nestruct.KSubset(3, 1), torch.zeros(2, 3)
    with pytest.raises(InputError, match="k must be a whole number of at least 1"):
        subset.kbest(scores, 0)
    with pytest.raises(InputError, match="float32 or float64"):
        subset.kbest(scores.long(), 1)
    scores[1] = torch.nan
    with pytest.raises(InputError, match=r"row 1 holds NaN"):
        subset.kbest(scores, 1)
    with pytest.raises(InputError, match=r"row 1 holds NaN"):
        subset.max_marginals(scores)
    counts = nestruct.BlackBox(lambda scores: 2 * (scores > 0), shape=3, binary=False)
    with pytest.raises(InputError, match="members must be 0 and 1"):
        kbest(counts, torch.zeros(3), 1)
    with pytest.raises(InputError, match="no part can be forced"):
        max_marginals(nestruct.GridPath(2, 2, moves="four"), torch.zeros(2, 2))
    with pytest.raises(InputError, match=r"BlackBox has no kbest: .*nestruct\.structures\.kbest"):
        nestruct.BlackBox(lambda scores: scores > 0, shape=3).kbest  # noqa: B018
