"""Training and the command line know no particular model or data set."""

import re
from pathlib import Path

import pytest

import nestruct
from nestruct.data.registry import DATASETS
from nestruct.models.registry import MODELS

ROOT = Path(nestruct.__file__).parent
OWN = {"parse.py"}  # the verb of one model
FILES = [*ROOT.glob("training/**/*.py"), *(f for f in ROOT.glob("cli/*.py") if f.name not in OWN)]
NAMES = [model.make.__name__ for model in MODELS.values()] + [d.__name__ for d in DATASETS.values()]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_generic_names(name):
    assert len(FILES) > 30
    found = [f.name for f in FILES if re.search(rf"\b{name}\b", f.read_text(encoding="utf-8"))]
    assert found == []
