"""What each example of a test set came to, ``details.json``: see `HasDetails`.

A run notes details of the parameters that were best on validation data and of the last ones; by the
latter nothing is chosen, they tell what selection did.
"""

import json
from pathlib import Path
from typing import Any

from torch import nn

from nestruct.errors import InputError
from nestruct.files import write_whole
from nestruct.models.hooks import HasDetails
from nestruct.training.evaluate import as_in_use
from nestruct.training.run.reach import check_reach
from nestruct.untrusted import parse_json, read_file

FILE = "details.json"
_FORMAT = 1


def note_details(run: Path, name: str, step: int, model: nn.Module, data: Any) -> None:
    """Puts a model's details into a run's file, beside those of the run's other parameters.

    Args:
        run: The run folder.
        name: Whose they are: ``best`` or ``last``.
        step: Of those parameters.
        model: Where it has no details, nothing is written.
        data: The test set.
    """
    if not isinstance(model, HasDetails):
        return
    with as_in_use(model):
        own = dict(model.details(data))
    examples = own.pop("examples", {})
    check_reach(run)
    file = run / FILE
    models = _known_models(file, examples) | {name: {"step": step, **own}}
    content = {"format": _FORMAT, "split": "test", **examples, "models": models}
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        kind = type(model).__name__
        raise InputError(f"{kind}.details must give plain, finite JSON: {error}.") from None
    write_whole(file, (text + "\n").encode())


def _known_models(file: Path, examples: dict[str, Any]) -> dict[str, Any]:
    """What the file has of other parameters, where it is about the same examples."""
    try:
        known = parse_json(read_file(file))
        same = all(known[key] == value for key, value in examples.items())
        return dict(known["models"]) if same and known["format"] == _FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
