"""Options of a training that are refused."""

import pytest
import torch
from fits import nes, train

import nestruct


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_step": 3}, "did you mean 'max_steps'"),
        ({"max_steps": -1}, r"training\.max_steps must not be negative"),
        ({"max_steps": 2.5}, r"training\.max_steps must be a whole number, got 2\.5"),
        ({"batch_size": 0}, r"training\.batch_size must be at least 1"),
        ({"matmul_precision": "low"}, r"training\.matmul_precision"),
        ({"metric": "los"}, r"training\.metric 'los' is not known; did you mean 'loss'"),
        ({"patience": 3, "validation": None}, "needs a validation set"),
        ({"validation": torch.zeros(0, 6)}, "nothing to evaluate on"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(nestruct.InputError, match=message):
        train(**options)


@pytest.mark.parametrize("option", ["smoothing_gap", "num_starts", "start_steps"])
def test_what_only_recipes_have_is_refused(option):
    with pytest.raises(nestruct.InputError, match=rf"training\.{option} is for recipes"):
        train(nes, **{option: 20})
