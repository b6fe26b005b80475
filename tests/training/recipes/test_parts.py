"""What a recipe can name, and the options that each takes."""

import pytest

from nestruct import InputError
from nestruct.training.recipes.parts import PARTS


@pytest.mark.parametrize("name", ["NES", "SNES"])
def test_an_option_by_its_old_name_is_refused_with_the_new_one(name):
    options = {"sigma": 0.1, "population_size": 4, "parameters": "encoder"}
    with pytest.raises(InputError, match="estimator: the option parameters is called perturb now"):
        PARTS["estimator"][name].options("estimator", options)
