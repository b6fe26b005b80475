"""What people hold becomes tensors, and what cannot is named."""

from collections import UserDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from nestruct import InputError
from nestruct.data import as_batch
from nestruct.data.convert import concatenate, describe

X, Y = np.arange(6.0).reshape(3, 2), np.arange(3)


class Pair(NamedTuple):
    x: object
    y: object


@dataclass(frozen=True)
class Words:
    words: object
    labels: object = None


def test_numpy_in_every_container():
    expected = torch.tensor(X)
    for value in (X, np.asfortranarray(X), X[:, ::-1][:, ::-1], torch.tensor(X)):
        assert torch.equal(as_batch(value), expected)
    nested = as_batch({"a": X, "b": [Y, None]})
    assert torch.equal(nested["b"][0], torch.tensor(Y))
    assert type(nested["b"]) is tuple
    assert nested["b"][1] is None
    pair = as_batch(Pair(X, Y))
    assert isinstance(pair, Pair)
    assert torch.equal(pair.x, expected)
    words = as_batch(Words(Y))
    assert isinstance(words, Words)
    assert words.labels is None
    assert type(as_batch(UserDict(x=X))) is dict  # as the transformers package's batches are


def test_an_array_that_must_not_be_written_is_copied():
    frozen = X.copy()
    frozen.flags.writeable = False
    tensor = as_batch(frozen)
    tensor.zero_()
    assert frozen.any()


def test_floats_of_numpy_take_the_type_that_is_asked_for_and_nothing_else_does():
    batch = as_batch((X, Y, torch.tensor(X)), dtype=torch.float32)
    assert [tensor.dtype for tensor in batch] == [torch.float32, torch.int64, torch.float64]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"text": ["a", "b"]}, r"^The batch\['text'\]\[0\] is a str, and a batch holds tensors"),
        ((X, 3), r"^The batch\[1\] is a int"),
        (Words(Y, "c"), r"^The batch\.labels is a str"),
        (np.array([[1], [2, 3]], dtype=object), "The batch is a numpy array of object, which"),
        ({"name": np.array(["a"])}, r"The batch\['name'\] is a numpy array of <U1"),
        ({"when": np.array(["2020-01-01"], dtype="datetime64[D]")}, "datetime64"),
    ],
)
def test_what_is_no_tensor_is_named(value, message):
    with pytest.raises(InputError, match=message):
        as_batch(value)


def test_structures_are_told_apart():
    plain = describe({"x": torch.ones(2, 3), "n": None})
    assert plain == "dict(['x'] float32 of 2 axes, ['n'] None)"
    assert describe({"x": torch.ones(5, 4), "n": None}) == plain
    others = [{"x": torch.ones(2), "n": None}, {"x": torch.ones(2, 3).double(), "n": None}]
    assert plain not in map(describe, [*others, {"y": torch.ones(2, 3), "n": None}, torch.ones(2)])


def test_batches_become_one_where_their_examples_have_one_shape():
    batches = [{"x": torch.full((n, 2), float(n)), "none": None} for n in (2, 1)]
    whole = concatenate(batches)
    assert whole["x"].tolist() == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]
    assert whole["none"] is None
    assert concatenate([torch.ones(2, 3), torch.ones(2, 4)]) is None
