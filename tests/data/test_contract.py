"""What every data set of the registry keeps to. A new one is covered by its line there."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import registered
import torch
from torch import Tensor

from nestruct import select_rows
from nestruct.data import batch_size
from nestruct.data.hooks import DataSet, HasBaselines, HasDrawing, HasHidden, HasSlices
from nestruct.data.minibatches import make_minibatches
from nestruct.data.registry import DATASETS
from nestruct.models.registry import MODELS

NAMES = [
    pytest.param(name, marks=[pytest.mark.data] if name in registered.FROM_FILES else [])
    for name in DATASETS
]


def tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if dataclasses.is_dataclass(batch):
        batch = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    values: Iterator[Any] = iter(batch.values() if isinstance(batch, dict) else batch)
    return [value for value in values if isinstance(value, Tensor)]


def same(one: Any, two: Any) -> bool:
    return all(map(torch.equal, tensors(one), tensors(two)))


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


def test_splits_are_tensors_that_share_their_examples(name):
    data = registered.data_set(name)
    assert isinstance(data, DataSet)
    splits = data.splits()
    assert list(splits) == ["train", "validation", "test"]
    for split, batch in splits.items():
        parts = tensors(batch)
        assert parts, split
        assert {len(part) for part in parts} == {batch_size(batch)}, split
        assert batch_size(batch) > 0
        assert all(part.isfinite().all() for part in parts if part.is_floating_point())
        rows = torch.tensor([batch_size(batch) - 1, 0])
        assert batch_size(select_rows(batch, rows)) == 2


def test_splits_do_not_start_with_the_same_examples(name):
    """Each has its own draws: not one seed for all, nor the same file twice."""
    splits = list(registered.data_set(name).splits().values())
    for one, two in ((0, 1), (0, 2), (1, 2)):
        first, second = tensors(splits[one])[0], tensors(splits[two])[0]
        if first.shape[1:] == second.shape[1:]:
            count = min(len(first), len(second))
            assert not torch.equal(first[:count], second[:count])


def test_the_same_options_give_the_same_bits(name):
    one, two = (registered.data_set(name) for _ in range(2))
    torch.manual_seed(5)  # nothing comes from torch's generator
    assert one == two
    for split, batch in one.splits().items():
        assert same(batch, two.splits()[split])


def test_a_step_sees_the_same_examples_whatever_came_before(name):
    train = registered.data_set(name).splits()["train"]
    one, two = (make_minibatches(train, 3, seed=4) for _ in range(2))
    seen = [one(step) for step in range(9)]
    for step in (7, 1, 8):
        assert same(two(step), seen[step])
    assert all(0 < batch_size(batch) <= 3 for batch in seen)
    other = make_minibatches(train, 3, seed=5)
    assert not all(same(other(step), seen[step]) for step in range(9))


def test_a_model_is_given_what_it_needs(name):
    data = registered.data_set(name)
    fits = [m for m, entry in MODELS.items() if all(hasattr(data, g) for g in entry.given)]
    assert fits


def test_hooks_speak_of_every_example(name):
    data = registered.data_set(name)
    batch = data.splits()["validation"]
    if isinstance(data, HasDrawing):
        assert all(len(v) == batch_size(batch) for v in data.drawing(batch).values())
    if isinstance(data, HasBaselines):
        assert all(len(z) == batch_size(batch) for z in data.baselines(batch).values())
    if isinstance(data, HasHidden):
        assert set(data.hidden) <= set(data.splits())
    if isinstance(batch, HasSlices):
        rows = torch.cat([rows for rows, _ in batch.slices(4)])
        assert sorted(rows.tolist()) == list(range(batch_size(batch)))
