"""Which examples a step sees."""

import pytest
import torch

import nestruct
from nestruct.data import Minibatches


def test_an_epoch_has_every_example_once_and_epochs_differ():
    minibatches = Minibatches(torch.arange(12), size=4, seed=0)
    assert minibatches.steps_per_epoch == 3
    epochs = [[minibatches(3 * e + s) for s in range(3)] for e in range(2)]
    for epoch in epochs:
        assert sorted(torch.cat(epoch).tolist()) == list(range(12))
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))


def test_a_step_sees_the_same_whatever_came_before():
    one, two = (Minibatches(torch.arange(50), size=7, seed=3) for _ in range(2))
    seen = [one(step) for step in range(20)]
    for step in (13, 2, 19):
        assert torch.equal(two(step), seen[step])
    assert not torch.equal(Minibatches(torch.arange(50), size=7, seed=4)(0), seen[0])


def test_what_is_left_over_is_dropped():
    minibatches = Minibatches({"x": torch.arange(10)}, size=4)
    assert [len(minibatches(step)["x"]) for step in range(5)] == [4] * 5


@pytest.mark.parametrize("size", [None, 10, 99])
def test_all_at_once_in_their_own_order(size):
    assert torch.equal(Minibatches(torch.arange(10), size=size)(5), torch.arange(10))


def test_no_examples():
    with pytest.raises(nestruct.InputError, match="nothing to train on"):
        Minibatches(torch.zeros(0, 3))
