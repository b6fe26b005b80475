"""What to vary, as a sweep and a plan say it."""

import pytest

import nestruct
from nestruct.training.recipes.grid import grid


def test_values_may_hold_commas():
    choices, varied = grid(("optimizer.betas=[0.9,0.99],[0.8,0.9]", "seed=3"))
    assert [choice[0] for choice in choices] == [
        "optimizer.betas=[0.9,0.99]",
        "optimizer.betas=[0.8,0.9]",
    ]
    assert varied == ["optimizer.betas"]


@pytest.mark.parametrize("settings", [(), ("seed",), ("seed=",), ("seed=1,,2",)])
def test_what_says_nothing_to_vary_is_refused(settings):
    with pytest.raises(nestruct.InputError, match="Say what to vary"):
        grid(settings)
