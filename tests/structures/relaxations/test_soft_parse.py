"""The soft parse against the law of its splits, listed; both forms; its derivative; its limits."""

import resource

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nestruct
from nestruct import InputError, ProjectiveTree
from nestruct.structures.relaxations.log_domain import FORBIDDEN
from nestruct.structures.relaxations.soft_parse import parse_on_cpu
from nestruct.structures.relaxations.soft_parse_batched import parse_batched

RULES = [True, False]
each_rule = pytest.mark.parametrize("single_root", RULES)
each_form = pytest.mark.parametrize("form", [parse_on_cpu, parse_batched])
SCORE = st.one_of(st.sampled_from([0.0, 0.0, 1.0, -torch.inf]), st.floats(-30, 30, width=32))

# A law over sets of arcs, and its value.
Soft = tuple[float, dict[frozenset, float]]


def mix(options: list[Soft]) -> Soft:
    values = torch.tensor([value for value, _ in options], dtype=torch.float64)
    weights = values.softmax(0).tolist()
    law: dict[frozenset, float] = {}
    for weight, (_, part) in zip(weights, options, strict=True):
        for arcs, chance in part.items():
            law[arcs] = law.get(arcs, 0.0) + weight * chance
    return sum(w * o[0] for w, o in zip(weights, options, strict=True) if w), law


def join(first: Soft, second: Soft, arc=None, score: float = 0.0) -> Soft:
    own = frozenset() if arc is None else frozenset([arc])
    law = {a | b | own: p * q for a, p in first[1].items() for b, q in second[1].items()}
    return first[0] + second[0] + score, law


def law_of(scores: torch.Tensor, length: int, single_root: bool) -> Soft:
    """Corro and Titov's Algorithm, with whole laws in place of shares."""
    s = torch.where(scores == -torch.inf, FORBIDDEN, scores).tolist()
    one: Soft = (0.0, {frozenset(): 1.0})

    def right(i, j):
        return mix([join(arc_right(i, k), right(k, j)) for k in range(i + 1, j + 1)] or [one])

    def left(i, j):
        return mix([join(left(i, k), arc_left(k, j)) for k in range(i, j)] or [one])

    def inner(i, j):
        return mix([join(right(i, k), left(k + 1, j)) for k in range(i, j)])

    def arc_right(i, j):
        return join(inner(i, j), one, (i, j), s[i][j])

    def arc_left(i, j):
        return join(inner(i, j), one, (j, i), s[j][i] if i > 0 else FORBIDDEN)

    if length == 0:
        return one
    if not single_root:
        return right(0, length)
    words = range(1, length + 1)
    return mix([join(left(1, m), right(m, length), (0, m), s[0][m]) for m in words])


@each_rule
@given(data=st.data())
def test_it_is_the_mean_tree_of_the_law_of_its_splits(single_root, data):
    tree = ProjectiveTree(single_root)
    scores = torch.from_numpy(data.draw(hnp.arrays("float64", (2, 5, 5), elements=SCORE)))
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=2)))
    scores[:, :, 0] = torch.nan
    for row, length in enumerate(lengths.tolist()):
        scores[row, length + 1 :], scores[row, :, length + 1 :] = torch.nan, torch.nan
    with nestruct.nan_rows():
        found = tree.soft_argmax(scores, 1.0, lengths=lengths)
        legal = ~tree.argmax(scores, lengths=lengths).flatten(1).isnan().any(1)
    assert found[~legal].isnan().all()
    for z, row, length in zip(found[legal], scores[legal], lengths[legal].tolist(), strict=True):
        expected = torch.zeros(5, 5, dtype=torch.float64)
        members = {frozenset(map(tuple, m.nonzero().tolist())) for m in tree.enumerate(length)}
        for arcs, chance in law_of(row, length, single_root)[1].items():
            assert arcs in members or chance == 0
            for arc in arcs:
                expected[arc] += chance
        torch.testing.assert_close(z, expected, rtol=0, atol=1e-11)


@each_rule
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_the_kernel_equals_the_batched_form(n, single_root):
    generator = torch.Generator().manual_seed(n)
    tree, lengths = ProjectiveTree(single_root), torch.arange(21) % (n + 1)
    scores = torch.randn(21, n + 1, n + 1, generator=generator, dtype=torch.float64)
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = FORBIDDEN
    scores = torch.where(tree.counting(scores, lengths=lengths), scores, FORBIDDEN)
    slope = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
    for given_slope in (None, slope):
        kernel = parse_on_cpu(scores, lengths, single_root, given_slope)
        batched = parse_batched(scores, lengths, single_root, given_slope)
        torch.testing.assert_close(kernel[1], batched[1], rtol=1e-10, atol=1e-10)
        legal = kernel[1] > FORBIDDEN / 2
        assert legal.sum() > 10
        torch.testing.assert_close(kernel[0][legal], batched[0][legal], rtol=1e-10, atol=1e-10)


@each_form
@each_rule
def test_derivatives(single_root, form):
    tree = ProjectiveTree(single_root)
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 4, 6):
        lengths = torch.tensor([n, n - 1, n])
        scores = torch.randn(3, n + 1, n + 1, generator=generator, dtype=torch.float64)
        scores = torch.where(tree.counting(scores, lengths=lengths), scores, FORBIDDEN)
        scores[1] = torch.where(scores[1] == FORBIDDEN, FORBIDDEN, 0.0)  # all ties
        slope = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
        found = form(scores, lengths, single_root, slope)[0]
        expected = torch.zeros_like(found)
        for place in (scores > FORBIDDEN).nonzero():
            shift = torch.zeros_like(scores)
            shift[tuple(place)] = 1e-5
            up, down = (form(scores + s, lengths, single_root)[0] for s in (shift, -shift))
            expected[tuple(place)] = ((up - down) * slope).sum() / 2e-5
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@each_rule
def test_gradcheck_through_the_structure(single_root):
    tree = ProjectiveTree(single_root)
    scores = torch.randn(2, 2, 5, 5, generator=torch.Generator().manual_seed(1)).double()
    scores[0, 0, 2, 3] = -torch.inf
    lengths = torch.tensor([[4, 3], [1, 0]])
    scores.requires_grad_()

    def parse(scores):
        return tree.soft_argmax(torch.where(blocked, -torch.inf, scores), 0.7, lengths=lengths)

    blocked = scores.detach() == -torch.inf
    finite = torch.where(blocked, 0.0, scores.detach()).requires_grad_()
    assert torch.autograd.gradcheck(parse, finite)
    slope = torch.autograd.grad(
        tree.soft_argmax(scores, 0.7, lengths=lengths)[..., 1:].square().sum(), scores
    )
    assert slope[0].isfinite().all()
    assert slope[0][0, 0, 2, 3] == 0


@each_form
@each_rule
def test_a_low_temperature_gives_the_best_tree(single_root, form):
    tree, generator = ProjectiveTree(single_root), torch.Generator().manual_seed(2)
    for n in (1, 3, 12):
        lengths = torch.arange(30) % (n + 1)
        scores = torch.randn(30, n + 1, n + 1, generator=generator, dtype=torch.float64)
        counting = tree.counting(scores, lengths=lengths)
        found = form(torch.where(counting, scores / 1e-6, FORBIDDEN), lengths, single_root)[0]
        torch.testing.assert_close(found, tree.argmax(scores, lengths=lengths), rtol=0, atol=1e-6)
    cold = tree.soft_argmax(scores, 1e-6, lengths=lengths)
    torch.testing.assert_close(cold, tree.argmax(scores, lengths=lengths), rtol=0, atol=1e-6)


@each_rule
def test_it_is_a_mixture_of_trees_but_not_the_marginals(single_root):
    tree = ProjectiveTree(single_root)
    scores = torch.randn(8, 9, 9, generator=torch.Generator().manual_seed(3)).double()
    z = tree.soft_argmax(scores, 1.0)
    torch.testing.assert_close(z[:, :, 1:].sum(1), torch.ones(8, 8).double())  # one head each
    assert (z >= 0).all()
    roots = z[:, 0].sum(-1)
    assert (roots - 1).abs().max() < 1e-12 if single_root else (roots > 1).all()
    assert (z - tree.relax(scores, 1.0)).abs().max() > 0.01
    shifted = scores + 3 * torch.randn(8, 1, 9, generator=torch.Generator().manual_seed(4)).double()
    torch.testing.assert_close(tree.soft_argmax(shifted, 1.0), z)  # every word has one head


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_word_no_words_no_sentences_and_leading_axes(dtype):
    tree = ProjectiveTree()
    assert tree.soft_argmax(torch.zeros(2, 2, dtype=dtype), 1.0).tolist() == [[0, 1], [0, 0]]
    assert tree.soft_argmax(torch.zeros(1, 1, dtype=dtype), 1.0).tolist() == [[0]]
    assert tree.soft_argmax(torch.zeros(0, 3, 3, dtype=dtype), 1.0).shape == (0, 3, 3)
    scores = torch.randn(3, 4, 6, 6, dtype=dtype, generator=torch.Generator().manual_seed(5))
    z = tree.soft_argmax(scores, 0.5, lengths=torch.tensor(4))
    assert z.dtype == dtype
    flat = [tree.soft_argmax(row[:5, :5], 0.5) for row in scores.flatten(0, 1)]
    torch.testing.assert_close(z[..., :5, :5].flatten(0, 1), torch.stack(flat))
    assert (z[..., 5, :] == 0).all()
    assert (z[..., 5] == 0).all()


@each_rule
def test_bad_rows_are_named_or_nan_and_leave_the_others_alone(single_root):
    tree = ProjectiveTree(single_root)
    scores = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(6)).double()
    expected = tree.soft_argmax(scores, 1.0)
    bad = scores.clone()
    bad[1, 0, 2], bad[2, 1, 2], bad[3, :, 2] = torch.nan, torch.inf, -torch.inf
    with pytest.raises(InputError, match=r"soft_argmax: scores row 1 holds NaN .*3 such rows"):
        tree.soft_argmax(bad, 1.0)
    with pytest.raises(InputError, match="row 0 leaves no legal member"):
        tree.soft_argmax(bad[3:], 1.0)
    with pytest.raises(InputError, match="row 1 has a length that does not fit"):
        tree.soft_argmax(scores, 1.0, lengths=torch.tensor([1, 4, 3, -1, 0]))
    with pytest.raises(InputError, match="temperature must be positive"):
        tree.soft_argmax(scores, 0.0)
    bad.requires_grad_()
    with nestruct.nan_rows():
        z = tree.soft_argmax(bad, 1.0)
    assert z[1:4].isnan().all()
    torch.testing.assert_close(z[[0, 4]], expected[[0, 4]])
    slope = torch.autograd.grad(torch.where(z.isnan(), 0.0, z).square().sum(), bad)[0]
    assert slope.isfinite().all()
    assert (slope[1:4] == 0).all()


def test_huge_scores_and_finite_masks():
    tree, generator = ProjectiveTree(), torch.Generator().manual_seed(7)
    for mask in (-1e4, -1e9, torch.finfo(torch.float32).min):
        scores = 50 * torch.randn(20, 9, 9, generator=generator)
        blocked = torch.rand(scores.shape, generator=generator) < 0.2
        blocked[:, 0] = False
        hard = torch.where(blocked, -torch.inf, scores)
        soft = torch.where(blocked, mask, scores).requires_grad_()
        z = tree.soft_argmax(soft, 1.0)
        torch.testing.assert_close(z, tree.soft_argmax(hard, 1.0), rtol=0, atol=1e-4)
        assert torch.autograd.grad((z * scores).sum(), soft)[0].isfinite().all()
    torch.testing.assert_close(
        tree.soft_argmax(torch.full((4, 4), 2.0**20), 1.0), tree.soft_argmax(torch.zeros(4, 4), 1.0)
    )


@each_rule
def test_sentences_of_250_words(single_root):
    """Nothing of size n^3 is kept: that would be 125 MB for each of the three kinds of span."""
    tree = ProjectiveTree(single_root)
    scores = torch.randn(2, 251, 251, generator=torch.Generator().manual_seed(8)).requires_grad_()
    lengths = torch.tensor([250, 249])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    z = tree.soft_argmax(scores, 1.0, lengths=lengths)
    slope = torch.autograd.grad((z * scores.detach()).sum(), scores)[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    heads = z.detach().sum(1)
    torch.testing.assert_close(heads[0, 1:], torch.ones(250))
    torch.testing.assert_close(heads[1, 1:250], torch.ones(249))
    assert slope.isfinite().all()
    assert slope.abs().max() > 0.01


def test_results_do_not_depend_on_threads_or_on_company():
    tree, generator = ProjectiveTree(), torch.Generator().manual_seed(9)
    scores, lengths = torch.randn(90, 12, 12, generator=generator), torch.arange(90) % 12
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(tree.soft_argmax(scores, 1.0, lengths=lengths))
    torch.set_num_threads(before)
    assert torch.equal(*found)
    assert torch.equal(found[0][5:6], tree.soft_argmax(scores[5:6], 1.0, lengths=lengths[5:6]))
