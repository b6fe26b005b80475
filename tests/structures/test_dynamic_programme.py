"""Dynamic programmes: members found without a recurrence, all their uses, and one of a user's."""

import itertools
import math

import numpy as np
import pytest
import torch
from cases import PROGRAMME_CASES, Case, chi_square, count_members, totals
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nestruct
from nestruct import InputError, Noise
from nestruct.structures import DynamicProgramme, Recurrence
from nestruct.structures.relaxations import inside_outside
from nestruct.structures.rows import NO_MEMBER, OK
from nestruct.structures.solvers.best_derivation import derivation_batched, derivation_plain

SCORE = st.one_of(st.sampled_from([-2.0, 0.0, 0.0, 1.0, -torch.inf]), st.floats(-50, 50, width=32))
# Of five states, a chain has kernels of its own.
each_case = pytest.mark.parametrize(
    "case", [*PROGRAMME_CASES, Case(nestruct.LinearChain(5), 3)], ids=repr
)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def chains(n, states):
    for path in itertools.product(range(states), repeat=n):
        yield [(t, path[t], path[t + 1]) for t in range(n - 1)]


def segmentations(n, states, longest):
    if n == 0:
        yield []
    for length in range(1, min(n, longest) + 1):
        for rest in segmentations(n - length, states, longest):
            for state in range(states):
                yield [*rest, (n - 1, length - 1, state)]


def paths(i, j):
    if (i, j) == (0, 0):
        yield [(0, 0)]
    for a, b in ((i - 1, j), (i, j - 1), (i - 1, j - 1)):
        if a >= 0 and b >= 0:
            for rest in paths(a, b):
                yield [*rest, (i, j)]


def brackets(i, j):
    if i == j:
        yield [(i, i)]
    for k in range(i, j):
        for left, right in itertools.product(brackets(i, k), brackets(k + 1, j)):
            yield [(i, j), *left, *right]


def labelled(trees, labels):
    for tree in trees:
        for names in itertools.product(range(labels), repeat=len(tree)):
            yield [(*span, name) for span, name in zip(tree, names, strict=True)]


BY_HAND = [
    (nestruct.LinearChain(3), 4, lambda: chains(4, 3), 3**4),
    (nestruct.SemiMarkov(2, 3), 4, lambda: segmentations(4, 2, 3), 52),
    (nestruct.SemiMarkov(1, 9), 5, lambda: segmentations(5, 1, 9), 2**4),
    (nestruct.Alignment(), (4, 3), lambda: paths(3, 2), 25),  # Delannoy numbers
    (nestruct.Alignment(), 4, lambda: paths(3, 3), 63),
    (nestruct.ConstituencyTree(), 5, lambda: brackets(0, 4), 14),  # Catalan numbers
    (nestruct.ConstituencyTree(2), 3, lambda: labelled(brackets(0, 2), 2), 2 * 2**5),
]


@pytest.mark.parametrize(
    ("structure", "size", "members", "count"), BY_HAND, ids=[repr(each[0]) for each in BY_HAND]
)
def test_the_members_are_those_found_by_hand(structure, size, members, count):
    listed = {frozenset(map(tuple, z.nonzero().tolist())) for z in structure.enumerate(size)}
    assert listed == {frozenset(parts) for parts in members()}
    assert len(listed) == count


def test_large_spaces_are_counted():
    def count(structure, *size):
        return structure.log_count(torch.tensor(size)).tolist()

    for n in (2, 7, 50):
        assert count(nestruct.LinearChain(5), n)[0] == pytest.approx(n * math.log(5))
    catalan = [math.log(math.comb(2 * n, n) // (n + 1)) for n in (6, 39)]
    assert count(nestruct.ConstituencyTree(), 7, 40) == pytest.approx(catalan)
    delannoy = sum(math.comb(29, k) * math.comb(19, k) * 2**k for k in range(20))
    assert nestruct.Alignment().log_count((30, 20)).item() == pytest.approx(math.log(delannoy))


def problem(case: Case, scores: torch.Tensor, lengths: torch.Tensor):
    return case.structure._problem("argmax", scores, {"lengths": lengths})


@each_case
@settings(max_examples=25)
@given(data=st.data())
def test_kernels_equal_batched_forms_and_the_twin(case, data):
    """Ties included: the first edge wins everywhere."""
    scores = torch.from_numpy(data.draw(hnp.arrays("float64", (3, *case.shape), elements=SCORE)))
    lengths, _ = case.lengths(data, 3)
    recurrence, goals, flat = problem(case, scores, lengths)
    with nestruct.nan_rows():
        z = case.structure.argmax(scores, lengths=lengths).flatten(1)
    found, codes = derivation_batched(flat, goals, recurrence.handle)
    for row in range(3):
        try:
            expected = derivation_plain(flat[row].numpy(), int(goals[row]), recurrence)
        except ValueError:
            assert codes[row] == NO_MEMBER
            assert z[row].isnan().all()
        else:
            assert codes[row] == OK
            np.testing.assert_array_equal(z[row].numpy(), expected)
            np.testing.assert_array_equal(found[row].numpy(), expected)


@each_case
@pytest.mark.parametrize("deviation", [1.0, 50.0])
def test_sums_and_samples_by_kernel_and_batched(case, deviation):
    scores = deviation * gaussian(40, *case.shape)
    lengths = case.least + torch.arange(40) % (case.size + 1 - case.least)
    recurrence, goals, flat = problem(case, scores, lengths)
    slopes = gaussian(*flat.shape, seed=1)
    for slope, want in ((None, False), (None, True), (slopes, True)):
        by_kernel = inside_outside._on_cpu(recurrence, flat, goals, slope, want)
        batched = inside_outside.sums_batched(recurrence, flat, goals, slope, want)
        torch.testing.assert_close(by_kernel, batched, rtol=1e-8, atol=1e-8)
    uniform = torch.rand(40, recurrence.num_nodes, generator=torch.Generator().manual_seed(2))
    by_kernel = inside_outside.sample(recurrence, flat, goals, uniform)
    batched = inside_outside.sample_batched(recurrence, flat, goals, uniform)
    assert torch.equal(by_kernel[0], batched[0])


@each_case
@settings(max_examples=25)
@given(data=st.data())
def test_k_best_and_max_marginals(case, data):
    scores = torch.from_numpy(data.draw(hnp.arrays("float64", (2, *case.shape), elements=SCORE)))
    lengths, sizes = case.lengths(data, 2)
    k = data.draw(st.sampled_from([1, 2, 5]))
    with nestruct.nan_rows():
        z, values = case.structure.kbest(scores, k, lengths=lengths)
        found = case.structure.max_marginals(scores, lengths=lengths)
    for row in range(2):
        members = case.members(sizes[row])
        total = totals(members, scores[row])
        if total.max() == -torch.inf:
            assert z[:, row].isnan().all()
            assert values[:, row].isnan().all()
            assert found[row].isnan().all()
            continue
        best = torch.full((k,), -torch.inf, dtype=torch.float64)
        best[: len(total)] = total.sort(descending=True).values[:k]
        torch.testing.assert_close(values[:, row], best)
        here = values[:, row] > -torch.inf
        assert (z[~here, row] == 0).all()
        assert len(z[here, row].unique(dim=0)) == here.sum()
        own = torch.where(z[here, row] == 1, scores[row], 0.0).flatten(1).sum(1)
        torch.testing.assert_close(own, best[here])
        by_part = total.view(-1, *[1] * len(case.shape))
        expected = torch.where(members == 1, by_part, -torch.inf).amax(0)
        torch.testing.assert_close(found[row], expected)


def test_kernels_of_ones_own_equal_those_of_every_recurrence(monkeypatch):
    """For chains of many states: of several lengths, with impossible and bad rows among them."""
    chain, scores = nestruct.LinearChain(9), 50 * gaussian(30, 6, 9, 9)
    scores[3, :, 2:] = -torch.inf
    scores[4, 2] = -torch.inf
    scores[5, 4, 0, 0] = torch.nan
    scores[6, 1, 8, 8] = torch.inf
    lengths = 2 + torch.arange(30) % 6
    recurrence, goals, flat = chain._problem("argmax", scores, {"lengths": lengths})
    slopes = gaussian(*flat.shape, seed=1)
    assert recurrence.kernels is not None

    def everything():
        with nestruct.nan_rows():
            z = chain.argmax(scores, lengths=lengths)
        sums = [
            inside_outside._on_cpu(recurrence, flat, goals, slope, want)
            for slope, want in ((None, False), (None, True), (slopes, True))
        ]
        return z, sums

    z, sums = everything()
    monkeypatch.setattr(recurrence, "kernels", None)
    other_z, other_sums = everything()
    torch.testing.assert_close(z, other_z, rtol=0, atol=0, equal_nan=True)
    assert z.isnan().flatten(1).all(1).tolist() == [row in (4, 5) for row in range(30)]
    torch.testing.assert_close(sums, other_sums, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_alignments_by_their_own_kernel_equal_those_of_every_recurrence(monkeypatch, dtype):
    """With many ties, forbidden cells, two lengths, and bad rows."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(-2, 2, (203, 7, 5), generator=generator).to(dtype)
    scores[torch.rand(scores.shape, generator=generator) < 0.15] = -torch.inf
    scores[3, 0, 0], scores[4, 6, 4] = torch.nan, torch.inf
    lengths = {"lengths": 1 + torch.arange(203) % 7, "other_lengths": 1 + torch.arange(203) % 5}
    lengths["lengths"][5] = 8
    recurrence = nestruct.Alignment().recurrence(7, 5)
    with nestruct.nan_rows():
        z = nestruct.Alignment().argmax(scores, **lengths)
        monkeypatch.setattr(recurrence, "kernels", None)
        other = nestruct.Alignment().argmax(scores, **lengths)
    assert torch.equal(z.nan_to_num(2), other.nan_to_num(2))
    none = z.isnan().flatten(1).all(1)
    assert none[[3, 5]].all()
    assert 50 < none.sum() < 150


def test_k_best_values_are_differentiable():
    scores = gaussian(2, 4, 3, 3).requires_grad_()
    z, values = nestruct.LinearChain(3).kbest(scores, 3)
    slope = torch.autograd.grad(values[1].sum(), scores)[0]
    assert torch.equal(slope, z[1])
    with pytest.raises(InputError, match="k must be a whole number"):
        nestruct.LinearChain(3).kbest(scores, 0)


@each_case
def test_a_draw_belongs_to_its_example_and_padding_changes_nothing(case):
    structure, noise = case.structure, Noise(seed=3, step=1)
    scores = gaussian(6, *case.shape)
    whole = structure.sample(scores, noise)
    assert structure.contains(whole).all()
    assert torch.equal(structure.sample(scores[:2], noise), whole[:2])
    padded = torch.full((6, *case.wider(2)), torch.nan, dtype=torch.float64)
    inside = (slice(None), *(slice(0, size) for size in case.shape))
    padded[inside] = scores
    drawn = structure.sample(padded, noise, lengths=torch.full((6,), case.size))
    assert torch.equal(drawn[inside], whole)
    streams = noise.replace(stream=torch.arange(500)[:, None])
    z = structure.sample(scores[:2], streams)
    assert z.shape == (500, 2, *case.shape)
    chances = totals(case.members(), scores[1]).softmax(-1)
    assert chi_square(count_members(case.members(), z[:, 1]), chances) > 1e-3


def test_alignments_of_two_lengths():
    alignment, scores = nestruct.Alignment(), gaussian(2, 4, 5)
    rows, columns = torch.tensor([3, 4]), torch.tensor([5, 2])
    z = alignment.argmax(scores, lengths=rows, other_lengths=columns)
    for i, (n, m) in enumerate([(3, 5), (4, 2)]):
        assert torch.equal(z[i, :n, :m], alignment.argmax(scores[i, :n, :m]))
        assert z[i, n:].sum() + z[i, :, m:].sum() == 0
    sizes = alignment.size_of(scores, lengths=rows, other_lengths=columns)
    expected = [math.log(len(alignment.enumerate(size))) for size in ((3, 5), (4, 2))]
    assert alignment.log_count(sizes).tolist() == pytest.approx(expected)
    with pytest.raises(InputError, match="other_lengths of shape"):
        alignment.argmax(scores, other_lengths=torch.tensor([1, 1, 1]))


def test_sizes_that_are_none():
    for wrong in ((2, 3, 4), (2,)):
        for method in (nestruct.Alignment().log_count, nestruct.Alignment().enumerate):
            with pytest.raises(InputError, match="an instance has 2 sizes"):
                method(wrong)
    for wrong in ("3", [[1], [2, 3]], {}):
        with pytest.raises(InputError, match="lengths must be whole numbers"):
            nestruct.LinearChain(2).argmax(torch.zeros(2, 2, 2, 2), lengths=wrong)


def test_a_derivative_too_many_is_refused_not_left_out():
    scores = gaussian(2, 3, 2, 2).requires_grad_()
    marginals = nestruct.LinearChain(2).marginals(scores)
    (slope,) = torch.autograd.grad(marginals.square().sum(), scores, create_graph=True)
    with pytest.raises(InputError, match="can be differentiated once"):
        (slope.square().sum() + scores.sum()).backward()


def test_pair_scores_fold_in_single_states():
    states, transitions = gaussian(2, 4, 3), gaussian(3, 3, seed=1)
    pairs = nestruct.LinearChain.pair_scores(states, transitions)
    for member, path in zip(
        nestruct.LinearChain(3).enumerate(4), itertools.product(range(3), repeat=4), strict=True
    ):
        path = [int(member[0].sum(1).argmax()), *(int(z.sum(0).argmax()) for z in member)]
        own = sum(states[:, t, path[t]] for t in range(4))
        own = own + sum(transitions[a, b] for a, b in itertools.pairwise(path))
        torch.testing.assert_close((member * pairs).flatten(1).sum(1), own)
    own = gaussian(2, 1, 3, 3, seed=2)  # of each example
    both = nestruct.LinearChain.pair_scores(states, own)
    for one, state, transition in zip(both, states, own, strict=True):
        expected = nestruct.LinearChain.pair_scores(state, transition[0])
        torch.testing.assert_close(one, expected, rtol=0, atol=0)
    for wrong in (gaussian(4, 3, 3), gaussian(2, 2), gaussian(3), gaussian(2, 2, 3, 3)):
        with pytest.raises(InputError, match="transitions must be a tensor"):
            nestruct.LinearChain.pair_scores(states[0], wrong)
    with pytest.raises(InputError, match="states must be a tensor"):
        nestruct.LinearChain.pair_scores(states[0, 0])
    with pytest.raises(InputError, match="a chain of one position has no pairs"):
        nestruct.LinearChain.pair_scores(states[:, :1])
    with pytest.raises(InputError, match="for n >= 2 positions"):
        nestruct.LinearChain(3).argmax(torch.zeros(2, 0, 3, 3))


class Apart(DynamicProgramme):
    """Items of which no two neighbours are taken: a recurrence, and nothing else."""

    def shape(self, *sizes):
        return sizes

    def recurrence(self, *sizes):
        # Node i: the first i items are settled. Item i is left out, or taken and the one before it
        # not. A tail one beyond the last node is the value 1.
        nodes = range(1, sizes[0] + 1)
        levels = [([i], [[i - 1, max(i - 2, 0)]], -1, [[-1, i - 1]]) for i in nodes]
        return Recurrence((sizes[0] + 1,), sizes[0], levels, range(sizes[0] + 1))


def test_a_recurrence_of_ones_own_is_enough():
    apart = Apart()
    members = apart.enumerate(6)
    assert len(members) == 21  # Fibonacci
    assert not (members[:, 1:] * members[:, :-1]).any()
    assert apart.contains(members).all()
    scores = gaussian(20, 6)
    total = scores @ members.double().T
    assert torch.equal(apart.argmax(scores), members[total.argmax(1)].double())
    torch.testing.assert_close(apart.log_partition(scores), total.logsumexp(1))
    torch.testing.assert_close(apart.marginals(scores), total.softmax(1) @ members.double())
    torch.testing.assert_close(apart.kbest(scores, 3)[1], total.topk(3).values.T)
    assert apart.contains(apart.sample(scores, torch.Generator().manual_seed(0))).all()


class ApartByState(Apart):
    """The same with a node for whether the last item was taken: none was before the first."""

    def recurrence(self, *sizes):
        node = np.arange(2 * sizes[0] + 2).reshape(-1, 2)
        levels = [(node[0, 1:], [[-1]], -1, -1)]
        for i, (free, taken) in enumerate(node[:-1]):
            levels.append((node[i + 1], [[free, taken], [free, -1]], -1, [[-1, -1], [i, -1]]))
        levels.append(([node.size], [node[-1]], -1, -1))
        goals = [-1] * sizes[0] + [node.size]
        return Recurrence((node.size + 1,), sizes[0], levels, goals)


def test_a_node_that_nothing_leads_to():
    scores, slope = gaussian(9, 4).requires_grad_(), gaussian(9, 4, seed=1)
    found = []
    for space in (Apart(), ApartByState()):
        marginals, entropy = space.marginals(scores), space.entropy(scores)
        found.append(torch.autograd.grad((marginals * slope).sum() + entropy.sum(), scores)[0])
    torch.testing.assert_close(*found)
