"""State as JSON and tensors, and back."""

import json
import math
from collections import Counter

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import nestruct
from nestruct.training.run.packing import pack, unpack

keys = st.one_of(st.text(max_size=5), st.integers(-5, 5), st.just("$tensor"))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.builds(lambda n: torch.arange(float(n)), st.integers(0, 3)),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=10,
)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(trees)
def test_round_trip_through_json(tree):
    packed, tensors = pack(tree, "test")
    assert same(unpack(json.loads(json.dumps(packed)), tensors), tree)


def test_counters_and_numbers_that_are_not_finite():
    state = {"milestones": Counter([3, 3, 5]), "best": math.inf, "worst": -math.inf}
    packed, tensors = pack(state, "the scheduler")
    back = unpack(json.loads(json.dumps(packed, allow_nan=False)), tensors)
    assert back == state
    assert isinstance(back["milestones"], Counter)


def test_names_that_meet_keep_both_tensors():
    state = {"a": {"b": torch.zeros(1)}, "a.b": torch.ones(1)}
    back = unpack(*pack(state, "test"))
    assert back["a"]["b"] == 0
    assert back["a.b"] == 1


def test_what_is_not_data_is_refused_by_name():
    with pytest.raises(nestruct.InputError, match=r"the estimator holds a function at 'inner\.f'"):
        pack({"inner": {"f": same}}, "the estimator")
