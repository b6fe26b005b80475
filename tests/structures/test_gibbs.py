"""Gibbs quantities and samplers of every structure that has them, against the list of members."""

import pytest
import torch
from cases import GIBBS_CASES, SAMPLE_CASES, Case, chi_square, count_members, totals
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nestruct
from nestruct import InputError

SCORE = st.one_of(
    st.sampled_from([-2.0, 0.0, 0.0, 1.0, -torch.inf]), st.floats(-100, 100, width=32)
)
DEPENDENCY_TREES = [
    kind(rule)
    for kind in (nestruct.ProjectiveTree, nestruct.NonProjectiveTree)
    for rule in (True, False)
]

each_case = pytest.mark.parametrize("case", GIBBS_CASES, ids=repr)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def oracle(case: Case, scores: torch.Tensor, length: int | None = None):
    """Log-partition, marginals and entropy of one row by listing, in float64."""
    members = case.members(length)
    total = totals(members, scores)
    log_z = total.logsumexp(-1)
    chance = (total - log_z).exp()
    entropy = torch.special.entr(chance).sum(-1)
    return log_z, torch.einsum("m,m...->...", chance, members), entropy


def gaussian(case: Case, *lead: int, dtype=torch.float64, deviation=1.0, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*lead, *case.shape, dtype=torch.float64, generator=generator)
    return (deviation * scores).to(dtype)


@each_dtype
@each_case
@settings(max_examples=25)
@given(data=st.data())
def test_log_partition_marginals_and_entropy(case, dtype, data):
    structure = case.structure
    scores = torch.from_numpy(data.draw(hnp.arrays("float64", (2, *case.shape), elements=SCORE)))
    lengths, length_list = case.lengths(data, 2)
    if case.is_sized:
        scores = torch.where(case.structure.counting(scores, lengths=lengths), scores, torch.nan)
    scores = scores.to(dtype)
    expected = [oracle(case, row, length) for row, length in zip(scores, length_list, strict=True)]
    log_z, marginals, entropy = (torch.stack(column) for column in zip(*expected, strict=True))
    possible = log_z > -torch.inf
    if not possible.all():
        row = int((~possible).nonzero()[0])
        for method in (structure.log_partition, structure.marginals, structure.entropy):
            with pytest.raises(InputError, match=f"row {row} leaves no legal member"):
                method(scores, lengths=lengths)
    with nestruct.nan_rows():
        results = [
            structure.log_partition(scores, lengths=lengths),
            structure.marginals(scores, lengths=lengths),
            structure.entropy(scores, lengths=lengths),
        ]
    # A float32 score of 100 is itself only known to 4e-6, and a log-partition adds a few of them.
    tolerance = (
        {"rtol": 1e-5, "atol": 2e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    )
    for result, truth in zip(results, (log_z, marginals, entropy), strict=True):
        assert result.dtype == dtype
        assert result[~possible].isnan().all()
        torch.testing.assert_close(result[possible].double(), truth[possible], **tolerance)


@pytest.mark.parametrize("case", [c for c in GIBBS_CASES if c.num_parts > 0], ids=repr)
def test_float32_is_right_at_a_deviation_of_fifty(case):
    structure = case.structure
    scores = gaussian(case, 200, dtype=torch.float32, deviation=50.0)
    expected = [oracle(case, row) for row in scores]
    log_z, marginals, entropy = (torch.stack(column) for column in zip(*expected, strict=True))
    assert (structure.log_partition(scores) - log_z).abs().max() < 1e-4
    assert (structure.marginals(scores) - marginals).abs().max() < 1e-4
    assert (structure.entropy(scores) - entropy).abs().max() < 1e-5


LARGE: list[tuple] = [
    (nestruct.KSubset(45, 9), (45,)),
    (nestruct.SpanningTree(30), (435,)),
    *[(structure, (31, 31)) for structure in DEPENDENCY_TREES],
    (nestruct.LinearChain(5), (29, 5, 5)),
    (nestruct.SemiMarkov(3, 6), (30, 6, 3)),
    (nestruct.Alignment(), (30, 25)),
    (nestruct.ConstituencyTree(), (25, 25)),
    (nestruct.ConstituencyTree(3), (20, 20, 3)),
]


@pytest.mark.parametrize(("structure", "shape"), LARGE, ids=[repr(s) for s, _ in LARGE])
def test_float32_at_a_deviation_of_fifty_where_determinants_fail(structure, shape):
    scores = 50 * torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))
    wide = scores.double()
    torch.testing.assert_close(
        structure.log_partition(scores).double(),
        structure.log_partition(wide),
        rtol=1e-6,
        atol=1e-4,
    )
    marginals = structure.marginals(scores)
    torch.testing.assert_close(marginals.double(), structure.marginals(wide), rtol=0, atol=3e-4)
    torch.testing.assert_close(
        structure.entropy(scores).double(), structure.entropy(wide), rtol=0, atol=1e-5
    )
    # The law concentrates on its best member: nothing is lost by going through sums.
    assert ((marginals - structure.argmax(scores)).abs().flatten(1).max(1).values < 0.5).any()


def test_the_textbook_determinant_fails_where_ours_does_not():
    """Why the elimination exists: the claim of the module docstring, checked."""
    n = 10
    scores = (
        50 * torch.randn(20, n * (n - 1) // 2, generator=torch.Generator().manual_seed(0)).double()
    )
    weights = torch.zeros(20, n, n, dtype=torch.float64)
    low, high = torch.triu_indices(n, n, 1)
    weights[:, low, high] = weights[:, high, low] = scores.exp()
    laplacian = torch.diag_embed(weights.sum(-1)) - weights
    textbook = torch.linalg.slogdet(laplacian[:, 1:, 1:]).logabsdet
    best = (nestruct.SpanningTree(n).argmax(scores) * scores).sum(-1)
    ours = nestruct.SpanningTree(n).log_partition(scores)
    assert (ours >= best).all()  # a sum is no smaller than its largest term
    assert (ours - best < 5).all()
    assert ((textbook - ours).abs() > 1).any()


@each_case
def test_derivatives(case):
    structure = case.structure
    scores = gaussian(case, 2, deviation=2.0).requires_grad_()
    assert torch.autograd.gradcheck(structure.log_partition, scores)
    assert torch.autograd.gradcheck(structure.marginals, scores)
    assert torch.autograd.gradcheck(structure.entropy, scores)
    gradient = torch.autograd.grad(structure.log_partition(scores).sum(), scores)[0]
    torch.testing.assert_close(gradient, structure.marginals(scores.detach()))
    equal = torch.zeros(1, *case.shape, dtype=torch.float64, requires_grad=True)  # all ties
    assert torch.autograd.gradcheck(structure.marginals, equal)


@pytest.mark.parametrize("mask", [-1e4, -1e9, torch.finfo(torch.float32).min])
@each_dtype
@each_case
def test_finite_masks_and_common_offsets(case, dtype, mask):
    """People mask with large numbers, and scores may carry an offset that says nothing."""
    generator = torch.Generator().manual_seed(0)
    scores = gaussian(case, 30, dtype=dtype)
    scores = torch.where(torch.rand(scores.shape, generator=generator) < 0.3, mask, scores)
    for row in scores:
        log_z, marginals, entropy = oracle(case, row)
        if log_z > mask / 2:  # else the mask itself is what remains
            tolerance = 1e-4 if dtype == torch.float32 else 1e-6
            torch.testing.assert_close(
                case.structure.marginals(row).double(), marginals, rtol=0, atol=tolerance
            )
            torch.testing.assert_close(
                case.structure.entropy(row).double(), entropy, rtol=0, atol=tolerance
            )
    if len(case.members().flatten(1).sum(1).unique()) > 1:
        return  # an offset then says something
    flat = torch.full(case.shape, 2.0**20, dtype=dtype)
    zero = torch.zeros(case.shape, dtype=dtype)
    torch.testing.assert_close(case.structure.marginals(flat), case.structure.marginals(zero))
    torch.testing.assert_close(case.structure.entropy(flat), case.structure.entropy(zero))


@pytest.mark.parametrize("case", [c for c in GIBBS_CASES if len(c.members()) > 1], ids=repr)
def test_derivatives_stay_finite_beside_forbidden_parts_and_huge_gaps(case):
    scores = gaussian(case, 50, dtype=torch.float32, deviation=300.0)
    blocked = torch.rand(scores.shape, generator=torch.Generator().manual_seed(2)) < 0.15
    scores = torch.where(blocked, -torch.inf, scores)
    with nestruct.nan_rows():
        usable = ~case.structure.log_partition(scores).isnan()
    scores = scores[usable].requires_grad_()
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(3))
    second = torch.autograd.grad((case.structure.marginals(scores) * weights).sum(), scores)[0]
    assert second.isfinite().all()
    assert (second[blocked[usable]] == 0).all()
    entropy = torch.autograd.grad(case.structure.entropy(scores).sum(), scores)[0]
    assert entropy.isfinite().all()


@each_case
def test_vmap_batches_and_empty_batches(case):
    structure = case.structure
    scores = gaussian(case, 3, 4)
    vmap = torch.func.vmap
    for method in (structure.log_partition, structure.marginals, structure.entropy):
        flat = method(scores)
        torch.testing.assert_close(vmap(method)(scores), flat)
        torch.testing.assert_close(vmap(vmap(method))(scores), flat)
        torch.testing.assert_close(torch.stack([method(row) for row in scores]), flat)
        assert method(scores[:0]).shape == (0, *flat.shape[1:])
        strided = scores.transpose(0, -1).contiguous().transpose(0, -1)
        torch.testing.assert_close(method(strided), flat)
    if case.members().any():
        scores[(1, 2, *case.first_part())] = torch.nan
        for method in (structure.log_partition, structure.marginals, structure.entropy):
            with pytest.raises(InputError, match=r"row \(1, 2\) holds NaN or \+inf"):
                method(scores)
            result = vmap(method)(scores)
            assert result[1, 2].isnan().all()
            assert result.isnan().reshape(12, -1).all(-1).sum() == 1


@each_case
def test_relaxation_tends_to_the_argmax(case):
    scores = gaussian(case, 5)
    with pytest.raises(InputError, match="temperature must be positive"):
        case.structure.relax(scores, 0.0)
    cold = case.structure.relax(scores, 1e-5)
    torch.testing.assert_close(cold, case.structure.argmax(scores), rtol=0, atol=1e-6)
    torch.testing.assert_close(case.structure.relax(scores, 1.0), case.structure.marginals(scores))


@each_dtype
@pytest.mark.parametrize("case", SAMPLE_CASES, ids=repr)
@pytest.mark.parametrize("setting", ["plain", "peaked", "forbidden"])
def test_samples_follow_the_gibbs_law(case, dtype, setting):
    scores = gaussian(case, dtype=dtype, deviation=3.0 if setting == "peaked" else 1.0, seed=4)
    if setting == "forbidden":
        generator = torch.Generator().manual_seed(5)
        allowed = case.members()[torch.randperm(len(case.members()), generator=generator)[:3]].sum(
            0
        )
        scores = torch.where(allowed > 0, scores, -torch.inf)
    generator = torch.Generator().manual_seed(6)
    draws = case.structure.sample(scores.expand(8000, *case.shape), generator)
    assert draws.dtype == dtype
    assert case.structure.contains(draws).all()
    chances = totals(case.members(), scores).softmax(-1)
    assert chi_square(count_members(case.members(), draws), chances) > 1e-3


@pytest.mark.parametrize("structure", DEPENDENCY_TREES, ids=repr)
def test_sampling_respects_lengths(structure):
    case = Case(structure, 4)
    scores = gaussian(case)
    scores[3:], scores[:, 3:] = torch.nan, torch.nan
    lengths = torch.full((8000,), 2)
    draws = structure.sample(
        scores.expand(8000, 5, 5), torch.Generator().manual_seed(0), lengths=lengths
    )
    assert structure.contains(draws, lengths=lengths).all()
    chances = totals(case.members(2), scores).softmax(-1)
    assert chi_square(count_members(case.members(2), draws), chances) > 1e-3


@pytest.mark.parametrize("structure", DEPENDENCY_TREES, ids=repr)
def test_a_sentence_of_no_words_has_one_sample(structure):
    for scores in (torch.zeros(2, 1, 1), torch.full((1, 1), torch.nan)):
        draws = structure.sample(scores, torch.Generator())
        assert torch.equal(draws, torch.zeros_like(scores))


@pytest.mark.parametrize("case", SAMPLE_CASES, ids=repr)
def test_samples_are_reproducible_and_checked(case):
    scores = gaussian(case, 3, 2)
    draws = [case.structure.sample(scores, torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(*draws)
    assert draws[0].shape == scores.shape
    assert case.structure.sample(scores[:0], torch.Generator()).shape == (0, 2, *case.shape)
    if case.members().any():
        scores[(1, 1, *case.first_part())] = torch.nan
        with pytest.raises(InputError, match=r"sample: scores row \(1, 1\) holds NaN"):
            case.structure.sample(scores, torch.Generator())
        with nestruct.nan_rows():
            draws = case.structure.sample(scores, torch.Generator())
        assert draws[1, 1].isnan().all()
        assert case.structure.contains(draws).sum() == 5


def test_samples_come_at_any_score_scale():
    """Random walks would never finish here; the draws are within chance of the best tree."""
    structure = nestruct.SpanningTree(20)
    scores = 1000 * torch.randn(50, 190, generator=torch.Generator().manual_seed(8))
    z = structure.sample(scores, torch.Generator().manual_seed(9))
    assert structure.contains(z).all()
    assert ((structure.argmax(scores) - z) * scores).sum(-1).max() < 30


SAMPLED = [*DEPENDENCY_TREES, nestruct.SpanningTree(4), nestruct.GridPath(2, 3, scores="edges")]


@pytest.mark.parametrize("structure", SAMPLED, ids=repr)
def test_sampling_inside_vmap(structure):
    shape = getattr(structure, "part_shape", (4, 4))
    scores = torch.randn(3, 5, *shape, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    draw = torch.func.vmap(lambda s: structure.sample(s, generator), randomness="different")
    assert structure.contains(draw(scores)).all()


def test_only_the_last_resort_root_when_a_word_has_no_other_head():
    """A word that only the root can head: the elimination must keep it for last."""
    for word in range(1, 5):
        scores = gaussian(Case(nestruct.NonProjectiveTree(), 4))
        scores[1:, word] = -torch.inf
        case = Case(nestruct.NonProjectiveTree(), 4)
        log_z, marginals, _ = oracle(case, scores)
        torch.testing.assert_close(case.structure.log_partition(scores), log_z)
        torch.testing.assert_close(case.structure.marginals(scores), marginals)
        assert marginals[0, word] == pytest.approx(1.0)
