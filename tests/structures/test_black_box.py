"""A user's own solver: torch or numpy, batched or not, inside vmap, its mistakes caught."""

import numpy as np
import pytest
import torch

import nestruct
from nestruct import BlackBox, InputError

WEIGHTS = np.array([3, 1, 4, 1, 5])
CAPACITY = 7


def knapsack(values: np.ndarray) -> np.ndarray:
    """The most valuable items that fit, by dynamic programming; edits what it is given."""
    values[values < 0] = 0
    best = [(0.0, ())] * (CAPACITY + 1)
    for item, (value, weight) in enumerate(zip(values, WEIGHTS, strict=True)):
        for room in range(CAPACITY, weight - 1, -1):
            with_item = best[room - weight][0] + value, (*best[room - weight][1], item)
            best[room] = max(best[room], with_item)
    z = np.zeros(len(values), dtype=bool)
    z[list(best[CAPACITY][1])] = True
    return z


def best_of_two(scores: torch.Tensor) -> torch.Tensor:
    """Batched torch: takes the better of the first or the last half; edits what it is given."""
    halves = scores.unflatten(-1, (2, -1))
    first = (halves[..., 0, :].sum(-1) > halves[..., 1, :].sum(-1))[..., None]
    scores.zero_()
    return torch.cat([first, ~first], -1).repeat_interleave(scores.shape[-1] // 2, -1)


@pytest.fixture(params=["numpy-single", "torch-batched", "numpy-batched", "torch-single"])
def box(request) -> BlackBox:
    if request.param == "numpy-single":
        return BlackBox(knapsack, (5,), batched=False, backend="numpy")
    if request.param == "torch-batched":
        return BlackBox(best_of_two, 6)
    if request.param == "numpy-batched":
        return BlackBox(lambda s: (s > 0).astype(np.int8), (2, 3), backend="numpy")
    return BlackBox(lambda s: s.view(-1) > s.mean(), [4], batched=False)


def gaussian(box: BlackBox, *lead: int, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*lead, *box.part_shape, dtype=dtype, generator=generator)


def test_the_knapsack_is_solved():
    box = BlackBox(knapsack, (5,), batched=False, backend="numpy")
    scores = gaussian(box, 30)
    members = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * 5)
    members = members[members @ torch.from_numpy(WEIGHTS).double() <= CAPACITY]
    best = (members @ scores.T).max(0).values
    z = box.argmax(scores)
    torch.testing.assert_close((z * scores.clamp(min=0)).sum(-1), best)


def test_shapes_dtypes_and_vmap(box):
    for dtype in (torch.float32, torch.float64):
        scores = gaussian(box, 3, 4, dtype=dtype).requires_grad_()
        before = scores.detach().clone()
        z = box.argmax(scores)
        assert torch.equal(scores, before)
        assert z.dtype == dtype
        assert z.shape == scores.shape
        assert not z.requires_grad
        assert torch.equal(z[1, 2], box.argmax(scores[1, 2]))
        vmap = torch.func.vmap
        assert torch.equal(vmap(box.argmax)(scores), z)
        assert torch.equal(vmap(vmap(box.argmax))(scores), z)
        assert torch.equal(vmap(box.argmax, chunk_size=2)(scores), z)
        assert torch.equal(vmap(box.argmax, in_dims=1, out_dims=1)(scores), z)
        gradient = torch.func.grad(lambda s, box=box: (box.argmax(s) * s).sum())(scores.detach())
        assert torch.equal(gradient, z)
    assert box.argmax(gaussian(box, 0, 2)).shape == (0, 2, *box.part_shape)


def test_one_flat_call_per_vmapped_chunk():
    calls = []

    def solve(scores):
        calls.append(tuple(scores.shape))
        return scores > 0

    scores = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))
    box = BlackBox(solve, (3,))
    torch.func.vmap(torch.func.vmap(box.argmax), chunk_size=2)(scores)
    assert calls == [(10, 3)] * 3


def test_a_bad_row_is_named_or_becomes_nan(box):
    scores = gaussian(box, 2, 3)
    clean = box.argmax(scores)
    scores[1, 0].view(-1)[0] = torch.nan
    with pytest.raises(InputError, match=r"row \(1, 0\) holds NaN or \+inf"):
        box.argmax(scores)
    z = torch.func.vmap(box.argmax)(scores)
    assert z[1, 0].isnan().all()
    z[1, 0] = clean[1, 0]
    assert torch.equal(z, clean)
    with nestruct.nan_rows():
        assert box.argmax(torch.full_like(scores, torch.nan)).isnan().all()


def test_a_solver_may_say_that_there_is_no_answer():
    box = BlackBox(
        lambda s: torch.where(s.sum(-1, keepdim=True) > 0, 1.0, torch.nan).expand_as(s), 2
    )
    scores = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    with pytest.raises(InputError, match="row 1 has no answer"):
        box.argmax(scores)
    with nestruct.nan_rows():
        assert torch.equal(box.argmax(scores).isnan().all(-1), torch.tensor([False, True]))


def test_any_array_of_zeros_and_ones_will_do():
    scores = torch.tensor([[0.2, -0.8], [-1.0, 0.5]])
    expected = (scores > 0).float()
    for convert in (
        lambda z: z[:, ::-1].copy()[:, ::-1],
        lambda z: z.astype(">f8"),
        lambda z: z.astype(np.longdouble),
        lambda z: z.astype(object),
        lambda z: z.tolist(),
        lambda z: list(z),
        lambda z: torch.from_numpy(z),
    ):
        box = BlackBox(lambda s, convert=convert: convert(s > 0), 2, backend="numpy")
        assert torch.equal(box.argmax(scores), expected)
    constant = BlackBox(lambda s: np.broadcast_to(np.array([1, 0]), s.shape), 2, backend="numpy")
    assert torch.equal(constant.argmax(scores), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, on first use
def test_forward_mode_sees_a_constant():
    scores = torch.tensor([[0.2, -0.8], [-1.0, 0.5]])
    tangent = torch.func.jvp(BlackBox(lambda s: s > 0, 2).argmax, (scores,), (scores,))[1]
    assert (tangent == 0).all()


def test_what_comes_back_is_checked():
    scores = torch.tensor([[0.2, 0.8], [1.0, 0.0]])
    for wrong in (None, "no", [[1], [0, 1]]):
        with pytest.raises(InputError, match="must return"):
            BlackBox(lambda s, wrong=wrong: wrong, (2,)).argmax(scores)
    with pytest.raises(InputError, match="must return 0 and 1 only"):  # not rounded to 1 first
        BlackBox(lambda s: torch.full_like(s, 1 - 1e-9, dtype=torch.float64), (2,)).argmax(scores)
    with pytest.raises(InputError, match="must return 0 and 1 only"):
        BlackBox(lambda s: s, (2,)).argmax(scores)
    with pytest.raises(
        InputError, match=r"must return the shape \(2, 2\), got \(2,\); if it takes one"
    ):
        BlackBox(lambda s: s.argmax(-1), (2,)).argmax(scores)
    with pytest.raises(InputError, match=r"must return the shape \(2,\), got \(\)\.$"):
        BlackBox(lambda s: s.argmax(-1), (2,), batched=False).argmax(scores)
    with pytest.raises(InputError, match="must return 0 and 1 only"):  # also where bad rows are NaN
        torch.func.vmap(BlackBox(lambda s: s, (2,)).argmax)(scores)
    with pytest.raises(InputError, match=r"must end in the shape \(3,\)"):
        BlackBox(lambda s: s > 0, (3,)).argmax(scores)


def test_mistakes_in_its_options_are_refused():
    with pytest.raises(InputError, match="backend must be"):
        BlackBox(lambda s: s, (2,), backend="jax")
    with pytest.raises(InputError, match="solve must be a function"):
        BlackBox(None, (2,))
    with pytest.raises(InputError, match="every entry of shape"):
        BlackBox(lambda s: s, (2, -1))


def test_a_function_without_a_return_is_named():
    with pytest.raises(InputError, match="returned nothing; it must return 0 and 1"):
        nestruct.BlackBox(lambda scores: None, 3).argmax(torch.zeros(2, 3))
