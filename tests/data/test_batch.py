"""Batches of every kind give up their rows."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from nestruct import InputError, select_rows
from nestruct.data import batch_size


@dataclass(frozen=True)
class Sentences:
    words: torch.Tensor
    lengths: torch.Tensor
    labels: torch.Tensor | None = None


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Own:
    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def select_rows(self, index):
        return Own([self.values[i] for i in index.tolist()])


INDEX = torch.tensor([2, 0, 2])
X, Y = torch.arange(12).view(4, 3), torch.arange(4) * 10


def test_rows_of_every_kind_of_batch():
    assert torch.equal(select_rows(X, INDEX), X[INDEX])
    for container in (tuple, list):
        chosen = select_rows(container([X, Y]), INDEX)
        assert type(chosen) is container
        assert torch.equal(chosen[1], Y[INDEX])
    chosen = select_rows(Pair(X, Y), INDEX)
    assert isinstance(chosen, Pair)
    assert torch.equal(chosen.y, Y[INDEX])
    nested = select_rows({"a": X, "b": (Y, None)}, INDEX)
    assert torch.equal(nested["b"][0], Y[INDEX])
    assert nested["b"][1] is None
    sentences = select_rows(Sentences(X, Y), INDEX)
    assert torch.equal(sentences.lengths, Y[INDEX])
    assert sentences.labels is None
    assert select_rows(Own("abcd"), INDEX).values == ["c", "a", "c"]


def test_sizes_are_checked():
    for batch in (X, (X, Y), {"a": X}, Sentences(X, Y), Own("abcd")):
        assert batch_size(batch) == 4
    with pytest.raises(InputError, match="must share their first axis"):
        batch_size((X, Y[:2]))
    with pytest.raises(InputError, match="example axis first"):
        batch_size(torch.tensor(1.0))
    with pytest.raises(InputError, match="at least one tensor"):
        batch_size({})
    with pytest.raises(InputError, match="A batch is a tensor, or a tuple"):
        select_rows("abc", INDEX)
