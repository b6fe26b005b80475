"""What a report draws: the structures that a model infers for a few examples, as it learns.

``structures.jsonl`` starts with a line that says what is drawn (the structure, the truth where it
is known, where to put nodes), and gets one line per evaluation.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nestruct.data import batch_size, device_of, select_rows
from nestruct.errors import InputError
from nestruct.models import StructuredModel
from nestruct.models.hooks import HasIllustrate
from nestruct.models.structured import f1, true_structures
from nestruct.noise import Noise
from nestruct.structures import BlackBox, GridPath, Structure
from nestruct.training.evaluate import as_in_use

MAX_EXAMPLES = 12


class Drawings:
    """Draws the first few examples of a validation set.

    Args:
        model: What infers.
        data: The validation set.
        describe: Gives what the examples look like, as plain numbers and strings: ``paths``
            (where nodes go over time), ``words``.
        baselines: Gives structures found without learning, by name.
    """

    def __init__(
        self,
        model: StructuredModel,
        data: Any,
        describe: Callable[[Any], dict[str, Any]] | None = None,
        baselines: Callable[[Any], dict[str, Tensor]] | None = None,
    ) -> None:
        self.model, self.data = model, data
        self.describe, self.baselines = describe, baselines
        rows = torch.arange(min(MAX_EXAMPLES, batch_size(data)), device=device_of(data))
        self.batch = select_rows(data, rows)

    def header(self) -> dict[str, Any]:
        """The first line."""
        with as_in_use(self.model):
            z = self.model.infer(self.batch)
        truth = true_structures(self.model, self.batch, z)
        scene = described(self.model.structure)
        if z.dim() - 1 > self.model.structure.part_axes:
            scene["options"] |= {"several": True, "shape": list(z.shape[1:])}
        header = {
            "format": 1,
            **scene,
            "true": None if truth is None else parts_of(truth),
            "drawing": None if self.describe is None else self.describe(self.batch),
            "references": self._references(z),
        }
        try:
            json.dumps(header)
        except TypeError as error:
            raise InputError(f"describe must give plain numbers and strings: {error}.") from None
        return header

    def line(self, step: int) -> dict[str, Any]:
        """One line per evaluation: the most likely structures, and what the model illustrates."""
        with as_in_use(self.model):
            line = {"step": step, "map": parts_of(self.model.infer(self.batch))}
            if isinstance(self.model, HasIllustrate):
                line["model"] = self.model.illustrate()
            return line

    def _references(self, z: Tensor) -> dict[str, dict[str, float]]:
        """The F1 of what needs no learning, over all examples: of noise alone, and of baselines."""
        truth = true_structures(self.model, self.data, z)
        if truth is None:
            return {}
        noise, context = Noise(seed=0).gumbel(truth), self.model.context(self.data)
        found = {"chance": self.model.structure.argmax(noise, **context)}
        if self.baselines is not None:
            found |= self.baselines(self.data)
        return {name: {"f1": float(f1(z, truth).mean())} for name, z in found.items()}


def described(structure: Structure) -> dict[str, Any]:
    """What a drawing needs to know of a structure: its name, its sizes."""
    said = {k: v for k, v in vars(structure).items() if not k.startswith("_")}
    options: dict[str, Any] = {k: v for k, v in said.items() if isinstance(v, int)}
    if isinstance(structure, BlackBox | GridPath):
        options["shape"] = list(structure.part_shape)
    return {"structure": type(structure).__name__, "options": options}


def parts_of(z: Tensor) -> list[list[list[int]]]:
    """For each example, the indices of its parts."""
    return [example.nan_to_num(0).nonzero().tolist() for example in z]
