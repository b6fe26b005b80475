"""What a solver may return and be given: numbers other than 0 and 1, kinds of arrays, context."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import nestruct
from nestruct import BlackBox, InputError

SCORES = torch.tensor([[0.2, -0.8, 3.7], [-1.0, 2.5, 0.0]])


def rounded(**options) -> BlackBox:
    return BlackBox(lambda s: s.round(), 3, binary=False, **options)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_any_finite_numbers(backend, batched):
    box = rounded(backend=backend, batched=batched)
    assert not box.binary
    for scores in (SCORES, SCORES.double()):
        z = box.argmax(scores)
        assert z.dtype == scores.dtype
        assert torch.equal(z, scores.round())
    both = SCORES.expand(2, 2, 3)
    assert torch.equal(torch.func.vmap(box.argmax)(both), both.round())
    with pytest.raises(InputError, match="must return 0 and 1 only; for other numbers say binary="):
        BlackBox(lambda s: s.round(), 3, backend=backend, batched=batched).argmax(SCORES)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, 1e300])
def test_numbers_must_be_finite_in_the_dtype_of_the_scores(value):
    box = BlackBox(lambda s: torch.full_like(s, value, dtype=torch.float64), 3, binary=False)
    with pytest.raises(InputError, match="must return finite numbers"):
        box.argmax(SCORES)
    if value == 1e300:
        assert (box.argmax(SCORES.double()) == value).all()


def test_nan_still_says_that_there_is_no_answer():
    box = BlackBox(lambda s: torch.where(s < -0.9, torch.nan, 7.0), 3, binary=False)
    with pytest.raises(InputError, match="row 1 has no answer"):
        box.argmax(SCORES)
    with nestruct.nan_rows():
        assert box.argmax(SCORES).isnan().any(-1).tolist() == [False, True]


@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (lambda z: z.astype(complex), "ndarray of complex128"),
        (lambda z: z.astype(str), "ndarray of <U"),
        (lambda z: z.astype(str).astype(object), "ndarray of object"),
        (lambda z: np.full_like(z, None, dtype=object), "ndarray of object"),
        (lambda z: z.astype("datetime64[D]"), "ndarray of datetime64"),
        (lambda z: {"z": z}, r"dict\.$"),
        (lambda z: "10", r"str\.$"),
        (lambda z: torch.from_numpy(z).to(torch.complex64), "torch.complex64"),
        (lambda z: [[1, 0, 1], [1, 0]], "list"),
    ],
)
@pytest.mark.parametrize("binary", [True, False])
def test_what_are_no_numbers_is_refused(convert, message, binary):
    box = BlackBox(lambda s: convert((s > 0).astype(int)), 3, backend="numpy", binary=binary)
    wanted = "0 and 1" if binary else "numbers"
    with pytest.raises(InputError, match=rf"must return an array of {wanted}, got .*{message}"):
        box.argmax(SCORES)


def test_objects_that_are_numbers_will_do():
    def solve(scores):
        return np.array([Fraction(1, 2), np.bool_(True), 3], dtype=object)

    box = BlackBox(solve, 3, batched=False, binary=False, backend="numpy")
    assert box.argmax(SCORES).tolist() == [[0.5, 1.0, 3.0]] * 2


def test_instances_may_differ_in_kind():
    answers = [torch.tensor([True, False, True]), [2, 0, 1], np.array([0.5, 0, 0])]
    box = BlackBox(lambda s: answers.pop(0), 3, batched=False, binary=False)
    expected = [[1, 0, 1], [2, 0, 1], [0.5, 0, 0]]
    assert box.argmax(torch.zeros(3, 3)).tolist() == expected


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize(
    "context",
    [
        torch.arange(2),
        torch.tensor([True, False]),
        torch.rand(2, 3, 4, dtype=torch.float64),
        torch.rand(2, 3, requires_grad=True),
        torch.arange(12, dtype=torch.int32).view(2, 6).T.contiguous().T,
    ],
    ids=lambda value: f"{str(value.dtype)[6:]} {tuple(value.shape)}",
)
def test_context_comes_as_it_is(backend, batched, context):
    """Its dtype and axes; in the function's own kind of array, which it may edit."""
    seen = []

    def solve(scores, of):
        seen.append(torch.as_tensor(of).clone())
        assert isinstance(scores, torch.Tensor if backend == "torch" else np.ndarray)
        assert isinstance(of, torch.Tensor if backend == "torch" else np.ndarray | np.generic)
        if of.ndim:
            of[:] = 0
        return scores > 0

    before = context.detach().clone()
    box = BlackBox(solve, 3, backend=backend, batched=batched)
    found = box.argmax(SCORES.expand(2, 2, 3), of=context)
    assert torch.equal(found, (SCORES > 0).float().expand(2, 2, 3))
    assert torch.equal(context, before)
    whole = torch.cat(seen) if batched else torch.stack(seen)
    assert torch.equal(whole, torch.cat([before, before]))
    assert whole.dtype == context.dtype


def test_numpy_gets_floats_for_half_precision():
    box = BlackBox(lambda s, limit: s > limit[:, None], 3, backend="numpy")
    limit = torch.tensor([0.0, 1.0], dtype=torch.bfloat16)
    assert box.argmax(SCORES, limit=limit).tolist() == [[1, 0, 1], [0, 1, 0]]
