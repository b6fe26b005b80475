"""Instances of different sizes in one padded batch: cut, masked, and as though each were alone."""

import itertools

import numpy as np
import pytest
import torch

import nestruct
from nestruct import BlackBox, InputError

SIZES = (3, 1, 5, 4)
MASK = torch.arange(5) < torch.tensor(SIZES)[:, None]
SCORES = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHTS = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)) + 0.1
ROOM = torch.tensor([1.0, 0.4, 1.5, 0.9])


def pack(worth, weights, room):
    """The best value within the room, by trying all; weights are as many as scores."""
    best, value = np.zeros(len(worth)), 0.0
    for items in itertools.product((0.0, 1.0), repeat=len(worth)):
        z = np.array(items)
        if z @ weights <= room and z @ worth > value:
            best, value = z, z @ worth
    return best


def pack_all(worth, weights, room, mask):
    """The same for padded rows."""
    worth, weights = worth.masked_fill(~mask, -9.0), weights.masked_fill(~mask, 0.0)
    every = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).to(worth)] * worth.shape[-1])
    fits = weights.to(worth) @ every.T <= room[:, None]
    values = torch.where(fits, worth @ every.T, -torch.inf)
    return every[values.argmax(-1)]


BOXES = {
    "numpy": BlackBox(pack, (None,), batched=False, backend="numpy"),
    "torch": BlackBox(
        lambda s, weights, room: torch.from_numpy(pack(s.numpy(), weights.numpy(), float(room))),
        (None,),
        batched=False,
    ),
    "batched": BlackBox(pack_all, (None,)),
    "batched numpy": BlackBox(
        lambda *given, **more: pack_all(
            *map(torch.from_numpy, given), **{k: torch.from_numpy(v) for k, v in more.items()}
        ).numpy(),
        None,
        backend="numpy",
    ),
}


@pytest.fixture(params=list(BOXES.values()), ids=list(BOXES))
def box(request) -> BlackBox:
    return request.param


def alone(scores: torch.Tensor, row: int) -> torch.Tensor:
    """What an instance comes to by itself, without padding; filled up with zeros."""
    size = SIZES[row]
    z = pack(scores[row, :size].numpy(), WEIGHTS[row, :size].numpy(), float(ROOM[row]))
    return torch.nn.functional.pad(torch.from_numpy(z), (0, 5 - size))


EXPECTED = torch.stack([torch.stack([alone(s, row) for row in range(4)]) for s in SCORES])


def test_each_is_solved_as_though_it_were_alone(box):
    found = box.argmax(SCORES, mask=MASK, weights=WEIGHTS, room=ROOM)
    assert torch.equal(found, EXPECTED)
    assert found[:, MASK].any()
    more = torch.nn.functional.pad(SCORES, (0, 2), value=7.0)  # more padding changes nothing
    mask, weights = (torch.nn.functional.pad(t, (0, 2)) for t in (MASK, WEIGHTS))
    found = box.argmax(more, mask=mask, weights=weights, room=ROOM)
    assert torch.equal(found, torch.nn.functional.pad(EXPECTED, (0, 2)))


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
def test_what_padding_holds_does_not_matter(box, garbage):
    scores = torch.where(MASK, SCORES, garbage)
    assert torch.equal(box.argmax(scores, mask=MASK, weights=WEIGHTS, room=ROOM), EXPECTED)


def test_vmap_and_masks_of_each_member(box):
    def call(scores, mask):
        return box.argmax(scores, mask=mask, weights=WEIGHTS, room=ROOM)

    vmap = torch.func.vmap
    assert torch.equal(vmap(call, in_dims=(0, None))(SCORES, MASK), EXPECTED)
    assert torch.equal(vmap(call, in_dims=(0, None), chunk_size=1)(SCORES, MASK), EXPECTED)
    each = vmap(call, in_dims=(None, 1))(SCORES[0], torch.stack([MASK, MASK], 1))
    assert torch.equal(each, EXPECTED[:1].expand(2, 4, 5))


def test_one_instance_and_a_mask_shaped_as_all_scores(box):
    one = box.argmax(SCORES[0, 0], mask=MASK[0], weights=WEIGHTS[0], room=ROOM[0])
    assert torch.equal(one, EXPECTED[0, 0])
    whole = MASK.expand(2, 4, 5).clone()
    whole[1, 2, 3:] = False
    found = box.argmax(SCORES, mask=whole, weights=WEIGHTS, room=ROOM)
    assert torch.equal(found[0], EXPECTED[0])
    assert not found[1, 2, 3:].any()


def test_a_bad_score_that_counts_is_named(box):
    scores = SCORES.clone()
    scores[1, 2, 4] = torch.nan
    given = {"mask": MASK, "weights": WEIGHTS, "room": ROOM}
    with pytest.raises(InputError, match=r"row \(1, 2\) holds NaN or \+inf"):
        box.argmax(scores, **given)
    with nestruct.nan_rows():
        found = box.argmax(scores, **given)
    assert found[1, 2].isnan().all()
    found[1, 2] = EXPECTED[1, 2]
    assert torch.equal(found, EXPECTED)


def seen(shape, scores, *, backend="numpy", **context) -> list[dict]:
    """What an unbatched solver is given, instance by instance."""
    calls = []

    def solve(scores, **context):
        calls.append({"scores": scores, **context})
        return scores > 0

    BlackBox(solve, shape, batched=False, backend=backend).argmax(scores, **context)
    return calls


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_context_is_cut_along_every_axis_of_the_padded_size(backend):
    given = {
        "vectors": torch.rand(4, 5, 3),
        "distances": torch.rand(4, 5, 5),
        "demands": torch.randint(9, (4, 2, 5)),
        "is_open": torch.rand(4, 5) > 0.5,
        "start": torch.arange(4),
        "limits": torch.rand(4, 2),
    }
    for row, one in enumerate(seen((None,), SCORES[0], mask=MASK, backend=backend, **given)):
        n = SIZES[row]
        expected = {
            "scores": SCORES[0, row, :n],
            "mask": MASK[row, :n],
            "vectors": given["vectors"][row, :n],
            "distances": given["distances"][row, :n, :n],
            "demands": given["demands"][row, :, :n],
            "is_open": given["is_open"][row, :n],
            "start": given["start"][row],
            "limits": given["limits"][row],
        }
        for name, value in expected.items():
            found = torch.as_tensor(one[name])
            assert torch.equal(found, value)
            assert found.dtype == value.dtype
            assert found.dim() == 0 or found.is_contiguous()
        kind = torch.Tensor if backend == "torch" else np.ndarray
        assert isinstance(one["distances"], kind)


def test_two_axes_that_vary_and_one_that_does_not():
    rows, columns = torch.tensor([2, 3, 4]), torch.tensor([5, 1, 2])
    mask = (torch.arange(4) < rows[:, None])[..., None] & (torch.arange(5) < columns[:, None, None])
    scores = torch.randn(3, 4, 5)
    given = {"of_rows": torch.rand(3, 4), "of_columns": torch.rand(3, 5, 2)}
    for row, one in enumerate(seen((None, None), scores, mask=mask, **given)):
        r, c = int(rows[row]), int(columns[row])
        assert one["scores"].tolist() == scores[row, :r, :c].tolist()
        assert one["of_rows"].shape == (r,)
        assert one["of_columns"].shape == (c, 2)
        assert one["mask"].all()
    found = [one["scores"].shape for one in seen((None, 5), scores, mask=mask)]
    assert found == [(2, 5), (3, 5), (4, 5)]
    found = seen((None, 3), torch.randn(3, 4, 3), mask=mask[..., :3], of=torch.rand(3, 4, 3))
    assert [one["of"].shape for one in found] == [(2, 3), (3, 3), (4, 3)]


def test_parts_within_that_do_not_count_are_forbidden():
    """By scores of -inf, for batched solvers too; and in a shape that does not vary."""
    mask = torch.tensor([[True, False, True, False], [True, True, True, True]])
    scores = torch.ones(2, 4)
    first, second = seen((None,), scores, mask=mask)
    assert first["scores"].tolist() == [1, -np.inf, 1]
    assert first["mask"].tolist() == [True, False, True]
    assert second["scores"].tolist() == [1, 1, 1, 1]
    first, _ = seen((4,), scores, mask=mask)
    assert first["scores"].tolist() == [1, -np.inf, 1, -np.inf]
    largest = BlackBox(lambda s: s == s.amax(-1, keepdim=True), (None,))  # names no mask
    found = largest.argmax(torch.tensor([[1.0, 2.0, 9.0], [1.0, 2.0, 9.0]]), mask=mask[:, 1:])
    assert found.tolist() == [[0, 1, 0], [0, 0, 1]]


def test_a_solver_that_names_the_mask_always_has_one():
    box = BlackBox(lambda s, mask: (s > 0) & mask, (None,))
    assert box.argmax(torch.ones(2, 3)).all()
    assert box.argmax(torch.ones(2, 3), mask=MASK[:2, :3]).sum() == 3 + 1
    constant = BlackBox(lambda s: np.ones_like(s) * 7, (None,), backend="numpy", binary=False)
    assert constant.argmax(torch.ones(4, 5), mask=MASK).sum() == 7 * sum(SIZES)


def test_another_answer_in_padding_is_no_answer_there():
    box = BlackBox(lambda s: torch.where(s > 0, 1.0, torch.nan), (None,))
    assert torch.equal(box.argmax(torch.ones(4, 5), mask=MASK), MASK.float())


def test_a_table_as_long_as_the_padding_is_noticed_or_said():
    table = torch.arange(20.0).view(4, 5)
    box = BlackBox(lambda s, table: s > table.sum(), (None,), batched=False, backend="numpy")
    box.argmax(SCORES[0], mask=MASK, table=table)
    wide = [torch.nn.functional.pad(t, (0, 1)) for t in (SCORES[0], MASK)]
    with pytest.raises(InputError, match=r"'table' is as long as .* say whole=\('table',\)"):
        box.argmax(wide[0], mask=wide[1], table=table)
    sums = []
    whole = BlackBox(
        lambda s, table: sums.append(table.sum()) or s > 0,
        (None,),
        batched=False,
        backend="numpy",
        whole="table",
    )
    whole.cache_bytes = 0
    whole.argmax(SCORES[0], mask=MASK, table=table)
    whole.argmax(wide[0], mask=wide[1], table=table)
    assert sums == table.sum(-1).tolist() * 2
    with pytest.raises(InputError, match="whole names 'tabel', which solve does not take"):
        BlackBox(lambda s, table: s > 0, (None,), whole=("tabel",))


def test_an_axis_that_could_be_either_is_refused():
    mask = torch.ones(1, 4, 4, dtype=torch.bool)
    mask[0, 3:] = False
    with pytest.raises(InputError, match="has an axis of 4, as more than one axis"):
        seen((None, None), torch.ones(1, 4, 4), mask=mask, of_rows=torch.ones(1, 4))
    (one,) = seen((None, None), torch.ones(1, 4, 4), mask=mask, each=torch.ones(1, 4, 4))
    assert one["each"].shape == (3, 4)
    (one,) = seen((None, None), torch.ones(1, 4, 4), mask=mask & mask.mT, node=torch.ones(1, 4))
    assert one["node"].shape == (3,)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (MASK.float(), "must be a tensor of booleans.*got torch.float32"),
        (MASK.numpy(), "must be a tensor of booleans.*got ndarray"),
        (MASK[:, :4], r"must have the shape of the scores, \(4, 5\), got \(4, 4\)"),
        (MASK[:3], r"must have the shape of the scores, \(4, 5\), got \(3, 5\)"),
        (MASK[0], r"must have the shape of the scores, \(4, 5\), got \(5,\)"),
        (MASK & (torch.arange(4) != 2)[:, None], "lets no part of example 2 count"),
    ],
)
def test_masks_that_do_not_fit(box, mask, message):
    with pytest.raises(InputError, match=message):
        box.argmax(SCORES, mask=mask, weights=WEIGHTS, room=ROOM)
    if "example" in message:  # data, not something learnt: also where bad rows are NaN
        with nestruct.nan_rows(), pytest.raises(InputError, match=message):
            box.argmax(SCORES, mask=mask, weights=WEIGHTS, room=ROOM)


def test_other_mistakes():
    wrong = BlackBox(lambda s, size: np.ones(int(size)), (None,), batched=False, backend="numpy")
    sizes = torch.tensor(SIZES)
    with pytest.raises(InputError, match=r"got \(3,\); if instances differ in size, give the con"):
        wrong.argmax(SCORES[0], size=sizes)
    assert torch.equal(wrong.argmax(SCORES[0], size=sizes, mask=MASK), MASK.double())
    box = BlackBox(lambda s: s[:3] > 0, (None,), batched=False)
    with pytest.raises(InputError, match=r"must return the shape \(5,\), got \(3,\)\.$"):
        box.argmax(SCORES[0], mask=torch.ones(4, 5, dtype=torch.bool))
    with pytest.raises(InputError, match=r"must end in the shape \(None, 3\), got \(2, 4, 5\)"):
        BlackBox(lambda s: s > 0, (None, 3)).argmax(SCORES)
    with pytest.raises(InputError, match="'lengths' is not known here; it takes mask"):
        BlackBox(lambda s: s > 0, (None,)).argmax(SCORES, lengths=sizes)
    with pytest.raises(InputError, match="'noise' cannot be context, that name is reserved"):
        BlackBox(lambda s, **context: s > 0, (None,)).argmax(SCORES, noise=sizes)


def test_what_counts_is_what_the_mask_says():
    box = BOXES["batched"]
    assert box.counting(SCORES[0], weights=WEIGHTS) is None
    assert torch.equal(box.counting(SCORES, mask=MASK, weights=WEIGHTS)[1], MASK)
    kl = nestruct.objective.gumbel_divergence
    padded = torch.where(MASK, SCORES[0], torch.nan)
    found = kl(box, padded, mask=MASK, weights=WEIGHTS, room=ROOM)
    expected = [kl(box, SCORES[:1, i, :n])[0] for i, n in enumerate(SIZES)]
    torch.testing.assert_close(found, torch.stack(expected))
