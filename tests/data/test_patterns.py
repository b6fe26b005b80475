"""Generated images."""

import pytest
import torch

import nestruct
from nestruct.data import Patterns


def test_examples_are_noisy_copies_of_a_few_patterns():
    splits = Patterns(num_patterns=3, num_train=300, flip=0.0).splits()
    assert len(splits["train"].unique(dim=0)) == 3
    noisy = Patterns(num_patterns=3, num_train=300, flip=0.1).splits()["train"]
    distance = torch.cdist(noisy, splits["train"].unique(dim=0), p=1).amin(1)
    assert 10 < distance.mean() < 30
    assert set(noisy.unique().tolist()) == {0.0, 1.0}


def test_seeds_and_sizes():
    one, two, other = (Patterns(seed=s).splits() for s in (0, 0, 1))
    assert torch.equal(one["test"], two["test"])
    assert not torch.equal(one["test"], other["test"])
    assert [len(one[name]) for name in ("train", "validation", "test")] == [2000, 500, 500]
    assert Patterns(side=3).num_inputs == 9


def test_a_drawing_is_rows_of_digits():
    data = Patterns(side=4, num_train=2)
    [first, _] = data.drawing(data.splits()["train"])["images"]
    assert [len(row) for row in first] == [4] * 4


@pytest.mark.parametrize("options", [{"side": 0}, {"flip": 0.6}, {"num_test": -1}])
def test_bad_options(options):
    with pytest.raises(nestruct.InputError, match=next(iter(options))):
        Patterns(**options)
