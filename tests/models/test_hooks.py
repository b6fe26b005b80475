"""Which models define which hooks: a method that is renamed on one side alone is seen here."""

import pytest
import torch
from toys import Formula

from nestruct.data import Grammar
from nestruct.models import CategoricalVAE, ParserVAE, PathCosts, RelationalVAE, hooks

ALL = {name for name, value in vars(hooks).items() if getattr(value, "_is_protocol", False)}
ALL -= {"Protocol"}
OF_ALL = {"HasLoss", "HasMetrics", "HasAtStep", "HasCapturable"}
KNOWN = {
    "parser": OF_ALL
    | {"HasPopulationLosses", "HasMemberBytes", "HasTouched", "HasGivenBy"}
    | {"HasDetails", "HasNeedsStart", "HasReadFile"},
    "relational": OF_ALL,
    "categorical": OF_ALL | {"HasIllustrate", "HasBegin", "HasAfterStep"},
    "path-costs": OF_ALL | {"HasTrueScores"},
    "formula": {"HasLoss"},
}


def model_of(name):
    if name == "parser":
        data = Grammar(num_train=5)
        return ParserVAE(data.vocabulary, data.vectors, lstm_size=4)
    if name == "relational":
        return RelationalVAE(4, 11)
    if name == "path-costs":
        return PathCosts(num_features=2, height=2, width=2)
    return CategoricalVAE(4) if name == "categorical" else Formula(torch.sum)


@pytest.mark.parametrize("name", KNOWN)
def test_a_model_has_the_hooks_that_it_is_known_for(name):
    model = model_of(name)
    assert {hook for hook in ALL if isinstance(model, getattr(hooks, hook))} == KNOWN[name]


def test_every_hook_is_defined_by_a_model_of_ours():
    assert set.union(*KNOWN.values()) == ALL
