"""What every registered structure must do, against the list of all its members."""

import ast
import copy
import itertools
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import CASES, SIZED_CASES, Case, pad, total_of, totals
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nestruct
from nestruct import InputError
from nestruct.structures.base import Countable, Samplable
from nestruct.structures.registry import STRUCTURES

DTYPES = [torch.float32, torch.float64]
# Few distinct values make ties; -inf forbids.
SCORE = st.one_of(
    st.sampled_from([-2.0, 0.0, 0.0, 1.0, 1.5, -torch.inf]),
    st.floats(-100, 100, width=32),
)


def by_name(case: Case) -> str:
    return repr(case)


each_case = pytest.mark.parametrize("case", CASES, ids=by_name)
each_sized = pytest.mark.parametrize("case", SIZED_CASES, ids=by_name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def gaussian(
    case: Case, *lead: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, *case.shape, dtype=dtype, generator=generator)


@each_case
def test_members_are_distinct_legal_and_counted(case):
    members = case.members()
    assert case.structure.contains(members).all()
    assert len({tuple(member) for member in members.flatten(1).tolist()}) == len(members)
    if case.is_sized:
        assert torch.equal(case.structure.counting(members[0]), members.any(0))
    if isinstance(case.structure, Countable):
        sizes = (case.size,) if case.is_sized else ()
        assert case.structure.log_count(*sizes).exp().item() == pytest.approx(len(members))


@each_case
def test_members_of_equal_sizes_have_equally_many_parts(case):
    num_sizes = case.members().flatten(1).sum(1).unique().numel()
    assert num_sizes == 1 or not case.structure.equal_sizes


@pytest.mark.parametrize("case", [case for case in CASES if case.num_parts <= 16], ids=by_name)
def test_contains_rejects_every_other_binary_array(case):
    codes = torch.arange(2**case.num_parts)
    arrays = (codes[:, None] >> torch.arange(case.num_parts)) & 1
    accepted = case.structure.contains(arrays.reshape(len(codes), *case.shape))
    assert accepted.sum() == len(case.members())


@each_case
@pytest.mark.parametrize("value", [0.5, 2.0, -1.0, torch.nan, torch.inf])
def test_contains_rejects_other_values(case, value):
    members = case.members()[:1].repeat(case.num_parts, *[1] * len(case.shape))
    flat = members.flatten(1)
    flat.fill_diagonal_(value)  # one part of each copy
    assert not case.structure.contains(flat.view_as(members)).any()


@each_sized
def test_contains_rejects_parts_outside_lengths(case):
    structure, lengths = case.structure, torch.tensor(case.size)
    z = pad(case.members()[0], case.wider(1))
    assert structure.contains(z, lengths=lengths)
    for place in pad(torch.zeros(case.shape), z.shape, value=1.0).nonzero().tolist():
        wrong = z.clone()
        wrong[tuple(place)] = 1
        assert not structure.contains(wrong, lengths=lengths)
    assert not structure.contains(z)  # without lengths the padding is a word without a head


@each_dtype
@each_case
@given(data=st.data())
def test_argmax_is_the_best_member_or_names_the_row(case, dtype, data):
    scores = torch.from_numpy(data.draw(hnp.arrays("float64", (3, *case.shape), elements=SCORE)))
    lengths, sizes = case.lengths(data, 3)
    lists = [case.members(size) for size in sizes]
    if case.is_sized:
        junk = data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e30]))
        scores = torch.where(case.structure.counting(scores, lengths=lengths), scores, junk)
    scores, given = case.counted(scores.to(dtype)), scores.to(dtype)
    best = torch.stack(
        [totals(members, row).max() for members, row in zip(lists, scores, strict=True)]
    )
    impossible = (best == -torch.inf).nonzero().flatten().tolist()
    if impossible:
        with pytest.raises(InputError, match=f"row {impossible[0]} leaves no legal member"):
            case.structure.argmax(given, lengths=lengths)
        with nestruct.nan_rows():
            z = case.structure.argmax(given, lengths=lengths)
    else:
        z = case.structure.argmax(given, lengths=lengths)
    assert z.dtype == dtype
    assert z.shape == scores.shape
    possible = best > -torch.inf
    assert torch.equal(case.structure.contains(z, lengths=lengths), possible)
    assert z[~possible].isnan().all()
    found = total_of(z, scores, len(case.shape))
    torch.testing.assert_close(found[possible], best[possible])


@each_case
def test_leading_axes_and_layout_do_not_matter(case):
    structure = case.structure
    scores = gaussian(case, 2, 3)
    before = scores.clone()
    z = structure.argmax(scores)
    assert torch.equal(scores, before)
    for i, j in itertools.product(range(2), range(3)):
        assert torch.equal(structure.argmax(scores[i, j]), z[i, j])
    strided = scores.transpose(0, -1).contiguous().transpose(0, -1)
    assert not case.shape[-1] > 1 or not strided.is_contiguous()
    assert torch.equal(structure.argmax(strided), z)
    assert torch.equal(
        structure.argmax(scores.expand(4, 2, 3, *case.shape)), z.expand(4, 2, 3, *case.shape)
    )
    for lead in [(0,), (0, 3), (2, 0)]:
        assert structure.argmax(gaussian(case, *lead)).shape == (*lead, *case.shape)
        assert structure.contains(gaussian(case, *lead)).shape == lead


@each_case
def test_argmax_is_not_differentiable(case):
    scores = gaussian(case, 3).requires_grad_()
    z = case.structure.argmax(scores)
    assert not z.requires_grad
    assert torch.equal(torch.autograd.grad((z * scores).sum(), scores)[0], z)
    assert torch.equal(
        torch.func.grad(lambda s: (case.structure.argmax(s) * s).sum())(scores.detach()), z
    )


@each_case
def test_vmapped_equals_flat_equals_looped(case):
    argmax = case.structure.argmax
    scores = gaussian(case, 6, 4)
    flat = argmax(scores)
    looped = torch.stack([argmax(row) for row in scores])
    assert torch.equal(flat, looped)
    vmap = torch.func.vmap
    assert torch.equal(vmap(argmax)(scores), flat)
    assert torch.equal(vmap(vmap(argmax))(scores), flat)
    assert torch.equal(vmap(argmax, chunk_size=4)(scores), flat)
    assert torch.equal(vmap(argmax, in_dims=1, out_dims=1)(scores), flat)
    assert torch.equal(vmap(argmax, in_dims=-1)(scores.movedim(0, -1)), flat)
    encoded = vmap(lambda scale: argmax(scale * scores))(
        torch.tensor([1.0, -1.0], dtype=torch.float64)
    )
    assert torch.equal(encoded[0], flat)
    assert torch.equal(encoded[1], argmax(-scores))
    with torch.enable_grad():
        assert not vmap(argmax)(scores.clone().requires_grad_()).requires_grad


@each_sized
def test_vmap_over_lengths(case):
    def argmax(scores, lengths):
        return case.structure.argmax(scores, lengths=lengths)

    scores = gaussian(case, 3, 5)
    lengths = case.least + torch.arange(15).view(3, 5) % (case.size + 1 - case.least)
    flat = argmax(scores, lengths)
    vmap = torch.func.vmap
    assert torch.equal(vmap(argmax)(scores, lengths), flat)
    assert torch.equal(vmap(vmap(argmax))(scores, lengths), flat)
    assert torch.equal(
        vmap(argmax, in_dims=(0, None))(scores, lengths[0]), argmax(scores, lengths[0])
    )
    expected = torch.stack([argmax(scores[0], row) for row in lengths])
    assert torch.equal(vmap(argmax, in_dims=(None, 0))(scores[0], lengths), expected)
    assert torch.equal(argmax(scores, lengths.int()), flat)


@each_sized
def test_padding_never_changes_a_result(case):
    structure, wider = case.structure, case.wider(3)
    scores, lengths = gaussian(case, 4), torch.full((4,), case.size)
    ties = structure.argmax(torch.zeros(4, *wider), lengths=lengths)
    assert torch.equal(ties, pad(structure.argmax(torch.zeros(4, *case.shape)), wider))
    for junk in (torch.nan, torch.inf, -torch.inf, 1e38):
        padded = pad(scores, wider, value=junk)
        z = structure.argmax(padded, lengths=lengths)
        assert torch.equal(z, pad(structure.argmax(scores), wider))
        torch.testing.assert_close(
            structure.log_partition(padded, lengths=lengths), structure.log_partition(scores)
        )
        torch.testing.assert_close(
            structure.entropy(padded, lengths=lengths), structure.entropy(scores)
        )
        marginals = structure.marginals(padded, lengths=lengths)
        torch.testing.assert_close(marginals, pad(structure.marginals(scores), wider))


@pytest.mark.parametrize("case", [case for case in CASES if case.members().any()], ids=by_name)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_bad_score_is_named_or_becomes_nan(case, value):
    structure = case.structure
    scores = gaussian(case, 2, 3)
    clean = structure.argmax(scores)
    scores[(1, 2, *case.first_part())] = value
    with pytest.raises(InputError, match=r"argmax: scores row \(1, 2\) holds NaN or \+inf"):
        structure.argmax(scores)
    with pytest.raises(InputError, match=r"argmax: scores row 2 holds NaN or \+inf"):
        structure.argmax(scores[1])
    with pytest.raises(InputError, match=r"argmax: scores holds NaN or \+inf"):
        structure.argmax(scores[1, 2])
    with nestruct.nan_rows():
        lenient = structure.argmax(scores)
    for z in (lenient, torch.func.vmap(structure.argmax)(scores)):
        assert z[1, 2].isnan().all()
        z[1, 2] = clean[1, 2]
        assert torch.equal(z, clean)


@each_case
def test_mistakes_are_refused_in_a_sentence(case):
    structure = case.structure
    scores = gaussian(case, 2)
    with pytest.raises(InputError, match="float32 or float64"):
        structure.argmax(scores.long())
    with pytest.raises(InputError, match="float32 or float64"):
        structure.argmax(scores.half())
    with pytest.raises(InputError, match="scores must end in"):
        structure.argmax(torch.zeros(2, 0, 97))
    with pytest.raises(InputError, match="scores must end in"):
        structure.argmax(torch.zeros(()))
    with pytest.raises(InputError, match="z must end in"):
        structure.contains(torch.ones(0, 97))
    if isinstance(structure, Samplable):
        with pytest.raises(InputError, match=r"draws must be a torch\.Generator.*got 0"):
            structure.sample(scores, 0)
    if case.is_sized:
        n = max(1, case.least)
        for lengths in ([n, n, n], [n], [[n], [n]]):  # a single one is not stretched
            with pytest.raises(InputError, match=r"lengths of shape .* do not fit"):
                structure.argmax(scores, lengths=torch.tensor(lengths))
        assert torch.equal(
            structure.argmax(scores, lengths=torch.tensor(n)),
            structure.argmax(scores, lengths=torch.tensor([n, n])),
        )
        with pytest.raises(InputError, match="lengths must be whole numbers"):
            structure.argmax(scores, lengths=torch.tensor([1.0, 1.0]))
        for method in (
            structure.argmax,
            structure.contains,
            structure.log_partition,
            structure.entropy,
        ):
            for wrong in (-1, case.least - 1, case.size + 1):
                with pytest.raises(InputError, match="row 1 has a length that does not fit"):
                    method(scores, lengths=torch.tensor([n, wrong]))
        with pytest.raises(InputError, match="pass size"):
            structure.enumerate()
        with pytest.raises(InputError, match="pass lengths"):
            structure.log_count()
        with pytest.raises(InputError, match="size must be a whole number from 0 to"):
            structure.enumerate(31)
    else:
        with pytest.raises(InputError, match="context 'lengths' is not known here; it takes"):
            structure.argmax(scores, lengths=torch.tensor([1, 1]))
        hint = "start and goal" if structure.context_names else "leave it out"
        if isinstance(structure, Countable):
            with pytest.raises(InputError, match=hint):
                structure.log_count(torch.tensor([1, 1, 1]))
        with pytest.raises(InputError, match=hint):
            structure.enumerate(3)


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        (nestruct.Categorical, {"num_classes": 0}),
        (nestruct.KSubset, {"num_items": 3, "k": 4}),
        (nestruct.KSubset, {"num_items": 3, "k": -1}),
        (nestruct.KSubset, {"num_items": 3, "k": True}),
        (nestruct.SpanningTree, {"num_nodes": 0}),
        (nestruct.SpanningTree, {"num_nodes": 2.5}),
        (nestruct.Permutation, {"size": 0}),
        (nestruct.GridPath, {"height": 0, "width": 2}),
    ],
)
def test_impossible_sizes_are_refused(structure, options):
    with pytest.raises(InputError, match="must be a whole number"):
        structure(**options)


def test_numpy_integers_are_whole_numbers():
    assert nestruct.SpanningTree(np.int64(4)).num_nodes == 4
    assert len(nestruct.ProjectiveTree().enumerate(np.int32(2))) == 2
    assert nestruct.BlackBox(lambda scores: scores > 0, shape=np.int64(3)).part_shape == (3,)


@pytest.mark.parametrize(
    ("structure", "name"),
    [
        (nestruct.Permutation(3), "log_partition"),
        (nestruct.Permutation(3), "sample"),
        (nestruct.BlackBox(lambda scores: scores > 0, shape=(3,)), "log_count"),
    ],
)
def test_what_a_space_does_not_have_is_said(structure, name):
    with pytest.raises(nestruct.InputError, match=f"{type(structure).__name__} has no {name}: "):
        getattr(structure, name)
    assert not hasattr(structure, name)
    with pytest.raises(AttributeError, match="no attribute 'argmin'"):
        structure.argmin  # noqa: B018
    assert repr(copy.deepcopy(structure)) == repr(structure)


def test_large_spaces_are_counted_but_not_listed():
    assert nestruct.SpanningTree(10).log_count().exp().item() == pytest.approx(10**8)
    for large in (nestruct.SpanningTree(10), nestruct.KSubset(45, 9), nestruct.Permutation(12)):
        with pytest.raises(InputError, match="too many to list"):
            large.enumerate()


def test_only_what_stands_above_the_structures_imports_one():
    """They are a layer of the import contract, which so needs no line for each of them."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (layers,) = (
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["nestruct.structures"]
    )
    above = " | ".join(layers[: layers.index("black_box")]).split(" | ")
    room = Path(nestruct.__file__).parent / "structures"
    spaces = {entry.structure.__module__ for entry in STRUCTURES.values()}
    importing = {
        str(file.relative_to(room).with_suffix(""))
        for file in room.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in spaces
    }
    assert {"__init__", "registry"} <= importing <= {"__init__", *above}


def test_a_subclass_needs_only_argmax():
    class Signs(nestruct.Structure):
        def argmax(self, scores, lengths=None):
            return (scores > 0).to(scores.dtype)

    assert torch.equal(Signs().argmax(torch.tensor([1.0, -1.0])), torch.tensor([1.0, 0.0]))
    with pytest.raises(TypeError):
        nestruct.Structure()
