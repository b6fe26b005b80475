"""SparseMAP against a quadratic programme over all members; its derivative; its limits."""

import numpy as np
import pytest
import scipy.optimize
import torch
from cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nestruct
from nestruct import InputError, NonProjectiveTree, ProjectiveTree
from nestruct.structures.relaxations.sparse_map import sparse_map

SCORE = st.one_of(
    st.sampled_from([0.0, 0.0, 0.5, 1.0, -torch.inf]),
    st.floats(-2, 2, width=32),
    st.floats(-50, 50, width=32),
)
LINEAR = [case for case in CASES if case.structure.forced_by_scores]
each_case = pytest.mark.parametrize("case", LINEAR, ids=repr)


def gaussian(*shape: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_nearest(z: torch.Tensor, members: torch.Tensor, scores: torch.Tensor) -> None:
    """That z is the point of the hull nearest to scores: exact conditions, for all members.

    It is a mixture of members (a linear programme finds the weights), and no member is further in
    the direction from z to the scores than z is.
    """
    flat, target = members.flatten(1), scores.flatten()
    flat = flat[~((flat == 1) & (target == -torch.inf)).any(1)]
    residual = torch.where((flat > 0).any(0), target, 0.0) - z.flatten()
    gains = flat @ residual
    assert gains.max() - z.flatten() @ residual < 1e-9 * (1 + gains.abs().max())
    system = torch.cat([flat.T, torch.ones(1, len(flat)).double()])
    wanted = np.r_[z.flatten().numpy(), 1.0]
    found = scipy.optimize.linprog(np.zeros(len(flat)), A_eq=system.numpy(), b_eq=wanted)
    assert found.status == 0, found.message


def nearest(members: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The same point by non-negative least squares, which is a quadratic programme.

    The weights that bring ``|sum of w_i (m_i - scores)|^2 + (sum of w_i - 1)^2`` to its minimum are
    those of the nearest point, up to their sum (Lawson and Hanson's least distance programming).
    """
    away = (members - scores).flatten(1).T
    system = torch.cat([away, torch.ones(1, len(members)).double()])
    weights = scipy.optimize.nnls(system.numpy(), np.r_[np.zeros(len(away)), 1.0])[0]
    weights = torch.from_numpy(weights / weights.sum())
    return torch.einsum("m,m...->...", weights, members)


def distance(z: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    used = torch.where(scores > -torch.inf, scores, 0.0)
    return (z - used).square().flatten(1).sum(1)


@each_case
@settings(max_examples=25)
@given(data=st.data())
def test_it_is_the_nearest_point_of_the_hull(case, data):
    structure = case.structure
    scores = torch.from_numpy(data.draw(hnp.arrays("float64", (2, *case.shape), elements=SCORE)))
    lengths, length_list = case.lengths(data, 2)
    if case.is_sized:
        scores = torch.where(case.structure.counting(scores, lengths=lengths), scores, torch.nan)
    with nestruct.nan_rows():
        legal = ~structure.argmax(scores, lengths=lengths).flatten(1).isnan().any(1)
        found = sparse_map(structure, scores, lengths=lengths, max_iterations=200)
    assert found[~legal].isnan().all()
    for row in legal.nonzero()[:, 0].tolist():
        assert_nearest(found[row], case.members(length_list[row]), scores[row])


@each_case
def test_it_equals_a_quadratic_programme(case):
    scores = gaussian(20, *case.shape)
    z = sparse_map(case.structure, scores, max_iterations=200)
    counting = case.structure.counting(scores)
    given = scores if counting is None else torch.where(counting, scores, 0.0)
    expected = torch.stack([nearest(case.members(), row) for row in given])
    torch.testing.assert_close(z, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", [c for c in LINEAR if c.num_parts > 0], ids=repr)
def test_derivatives(case):
    """With these scores, no step of the difference changes which members are in the mixture."""
    scores, slope = gaussian(4, 1, *case.shape, seed=1), gaussian(4, 1, *case.shape, seed=12)
    steps = 1e-6 * torch.eye(case.num_parts).double().view(case.num_parts, *case.shape)
    for limit in (1, 2, 10, 200):

        def loss(scores, limit=limit):
            flat = scores.flatten(0, 1)
            z = sparse_map(case.structure, flat, max_iterations=limit).view(scores.shape)
            return (z * slope).flatten(2).sum(-1)

        expected = (loss(scores + steps) - loss(scores - steps)) / 2e-6
        given = scores.clone().requires_grad_()
        found = torch.autograd.grad(loss(given).sum(), given)[0]
        torch.testing.assert_close(found, expected.view(found.shape), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("structure", [NonProjectiveTree(), ProjectiveTree(False)], ids=repr)
def test_lengths_padding_and_forbidden_arcs(structure):
    scores, lengths = gaussian(6, 8, 8, seed=2), torch.tensor([7, 5, 1, 0, 3, 7])
    scores[0, 2, 3] = scores[5, 1, 1:3] = -torch.inf
    found = sparse_map(structure, scores, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = sparse_map(structure, scores[row : row + 1, : length + 1, : length + 1])
        torch.testing.assert_close(found[row : row + 1, : length + 1, : length + 1], alone)
        assert found[row].sum() == pytest.approx(length)
        assert (found[row, length + 1 :] == 0).all()
        assert (found[row, :, length + 1 :] == 0).all()
        if isinstance(structure, NonProjectiveTree) and length:
            assert found[row, 0].sum() == pytest.approx(1)  # a single root
    assert found[0, 2, 3] == 0
    counting = structure.counting(scores, lengths=lengths)
    padded = torch.where(counting, scores, torch.nan).requires_grad_()
    again = sparse_map(structure, padded, lengths=lengths)
    torch.testing.assert_close(again, found)
    slope = torch.autograd.grad((again * found).sum(), padded)[0]
    assert slope.isfinite().all()
    assert (slope[~structure.counting(scores, lengths=lengths)] == 0).all()


def test_more_iterations_are_no_worse_and_the_mixture_is_sparse():
    tree, scores = NonProjectiveTree(), gaussian(30, 13, 13, seed=3)
    last = distance(tree.argmax(scores), scores)
    for limit in range(1, 12):
        z = sparse_map(tree, scores, max_iterations=limit)
        assert (distance(z, scores) <= last + 1e-9).all()
        assert ((z > 0).sum((1, 2)) <= 12 * (limit + 1)).all()
        torch.testing.assert_close(z.sum(1)[:, 1:], torch.ones(30, 12).double())
        last = distance(z, scores)
    exact = sparse_map(tree, scores, max_iterations=500)
    assert (distance(exact, scores) <= last).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each_case
def test_large_scores_give_the_argmax(case, dtype):
    scores = gaussian(9, *case.shape, seed=4, dtype=dtype)
    z = sparse_map(case.structure, 1e4 * scores)
    assert z.dtype == dtype
    torch.testing.assert_close(z, case.structure.argmax(scores))


def test_offsets_and_finite_masks():
    tree, scores = NonProjectiveTree(), gaussian(9, 7, 7, seed=5)
    expected = sparse_map(tree, scores, max_iterations=200)
    shifted = scores + 2.0**20 * torch.rand(9, 1, 7, generator=torch.Generator().manual_seed(6))
    found = sparse_map(tree, shifted, max_iterations=200)  # every word has one head
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    blocked = torch.rand(scores.shape, generator=torch.Generator().manual_seed(7)) < 0.2
    blocked[:, 0] = False
    for mask in (-1e4, -1e9, torch.finfo(torch.float32).min):
        torch.testing.assert_close(
            sparse_map(tree, torch.where(blocked, mask, scores)),
            sparse_map(tree, torch.where(blocked, -torch.inf, scores)),
        )


def test_rows_without_an_answer_leave_the_others_alone():
    tree, scores = NonProjectiveTree(), gaussian(5, 4, 4, seed=8)
    expected = sparse_map(tree, scores)
    bad = scores.clone()
    bad[1, 0, 2], bad[2, 1, 2], bad[3, :, 2] = torch.nan, torch.inf, -torch.inf
    with pytest.raises(InputError, match="row 1 holds NaN"):
        sparse_map(tree, bad)
    bad.requires_grad_()
    with nestruct.nan_rows():
        z = sparse_map(tree, bad)
    assert z[1:4].isnan().all()
    torch.testing.assert_close(z[[0, 4]], expected[[0, 4]])
    slope = torch.autograd.grad(torch.where(z.isnan(), 0.0, z).square().sum(), bad)[0]
    assert slope.isfinite().all()
    assert (slope[1:4] == 0).all()
    assert sparse_map(tree, scores[:0]).shape == (0, 4, 4)
    with nestruct.nan_rows():
        assert sparse_map(tree, bad[1:4]).isnan().all()


@pytest.mark.parametrize(
    ("structure", "shape"),
    [
        (NonProjectiveTree(), (4, 4)),
        (nestruct.Permutation(4), (4, 4)),
        (nestruct.Categorical(4), (4,)),
        (nestruct.BlackBox(torch.sign, (4, 4)), (4, 4)),
    ],
    ids=repr,
)
def test_says_what_it_cannot_use(structure, shape):
    scores = gaussian(2, *shape)
    with pytest.raises(InputError, match=r"sparse_map: scores must be \[batch, \*parts\], got \(4"):
        sparse_map(structure, scores[0])
    with pytest.raises(InputError, match=r"float32 or float64 tensor, got torch\.int64"):
        sparse_map(structure, scores.long())
    with pytest.raises(InputError, match="float32 or float64 tensor, got list"):
        sparse_map(structure, scores.tolist())
    with pytest.raises(InputError, match="max_iterations must be a whole number of at least 1"):
        sparse_map(structure, scores, max_iterations=0)


def test_any_solver_of_your_own():
    """Members with different numbers of parts: any subset; the hull is the cube."""
    cube = nestruct.BlackBox(lambda rows: rows > 0, 6, backend="numpy")
    scores = gaussian(50, 6, seed=9)
    z = sparse_map(cube, scores, max_iterations=100)
    torch.testing.assert_close(z, scores.clamp(0, 1), rtol=0, atol=1e-6)
    greedy = nestruct.BlackBox(lambda rows: rows > 0.4, 6)  # not the best member
    z = sparse_map(greedy, scores, max_iterations=100)
    assert ((z > -1e-12) & (z < 1 + 1e-12)).all()


def test_sentences_of_250_words():
    for tree in (NonProjectiveTree(), ProjectiveTree()):
        scores = gaussian(2, 251, 251, seed=10, dtype=torch.float32).requires_grad_()
        lengths = torch.tensor([250, 249])
        z = sparse_map(tree, scores, lengths=lengths)
        torch.testing.assert_close(z.detach().sum(1)[0, 1:], torch.ones(250))
        assert torch.autograd.grad((z * scores.detach()).sum(), scores)[0].isfinite().all()


def test_it_is_for_all_sentences_at_once():
    """As many calls of the solver as there are iterations, whatever the batch."""
    calls: list[int] = []
    tree = NonProjectiveTree()

    def solve(rows: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        return tree.argmax(rows)

    sparse_map(nestruct.BlackBox(solve, (9, 9)), gaussian(40, 9, 9, seed=11))
    assert calls[0] == 40
    assert 2 < len(calls) <= 11
    assert calls == sorted(calls, reverse=True)  # those that are exact take no part


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_a_trained_parser(seed):
    """Rounding may offer a member that depends on those in the mixture, which is then complete."""
    generator = torch.Generator().manual_seed(seed)
    scores = 30 * torch.randn(32, 45, 45, generator=generator, dtype=torch.float64)
    tree = nestruct.NonProjectiveTree()
    z = sparse_map(tree, scores, max_iterations=60)
    left = scores - z
    gain = (left * (tree.argmax(left) - z)).sum((1, 2))
    assert gain.max() < 1e-7


def test_paths_whose_positive_scores_count_as_0_are_refused():
    with pytest.raises(nestruct.InputError, match="a positive score counts as 0"):
        sparse_map(nestruct.GridPath(3, 3, moves="four"), torch.zeros(1, 3, 3))
