"""How many words of each test sentence a parser attaches rightly: ``attachment.json``.

Counts only, no words: what a paired comparison of two parsers needs, and attachment by sentence
length and by arc length. A run notes them of the parameters that were best on validation data and
of the last ones; by the latter nothing is chosen, they tell what selection did.
"""

import json
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from nestruct.data import Sentences, slices, to_device
from nestruct.files import write_whole
from nestruct.models import ParserVAE
from nestruct.training.evaluate import as_in_use

FILE = "attachment.json"
_FORMAT = 1


def can_count(model: nn.Module, data: Any) -> TypeGuard[ParserVAE]:
    """Whether there are words to attach."""
    return isinstance(model, ParserVAE) and isinstance(data, Sentences)


def note_attachment(
    run: Path, name: str, step: int, model: ParserVAE, data: Sentences, *, batch_size: int = 1000
) -> None:
    """Counts, and puts the counts into a run's file, beside those of its other parameters.

    Args:
        run: The run folder.
        name: Whose they are: ``best`` or ``last``.
        step: Of those parameters.
        model: The parser.
        data: The test sentences, with their trees.
        batch_size: Sentences at once.
    """
    test, found = count_attached(model, data, batch_size=batch_size)
    file = run / FILE
    models = _models(file, test) | {name: {"step": step, **found}}
    content = {"format": _FORMAT, "split": "test", **test, "models": models}
    write_whole(file, (json.dumps(content, separators=(",", ":")) + "\n").encode())


def count_attached(
    model: ParserVAE, data: Sentences, *, batch_size: int = 1000
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """What there is to attach, and what is attached rightly.

    Returns:
        Of the sentences: ``words``, and ``scored``, words without punctuation; of the true arcs,
        punctuation's left out: ``arcs``, how many have each length, 0 being those from the root.
        Then, of the same, how many the model attaches rightly.
    """
    device = model.vectors.device
    longest = int(data.words.shape[1])
    right = {name: torch.zeros(len(data), dtype=torch.long) for name in ("words", "scored")}
    arcs, hits = torch.zeros(2, longest, dtype=torch.long)
    with as_in_use(model):
        for rows, batch in slices(to_device(data, device), batch_size):
            attached = (model.parse(batch)[0] == batch.heads) & batch.is_word
            counted = attached & batch.scored
            right["words"][rows.cpu()] = attached.sum(1).cpu()
            right["scored"][rows.cpu()] = counted.sum(1).cpu()
            place = torch.arange(batch.heads.shape[1], device=device)
            length = torch.where(batch.heads > 0, (batch.heads - place).abs(), 0)
            for total, those in ((arcs, batch.scored), (hits, counted)):
                total += length[those].cpu().bincount(minlength=longest)
    used = int(arcs.nonzero().max()) + 1 if arcs.any() else 0
    test = {
        "words": data.lengths.tolist(),
        "scored": data.scored.sum(1).tolist(),
        "arcs": arcs[:used].tolist(),
    }
    found = {f"{name}_right": counts.tolist() for name, counts in right.items()}
    return test, found | {"arcs_right": hits[:used].tolist()}


def _models(file: Path, test: dict[str, list[int]]) -> dict[str, Any]:
    """What the file has of other parameters, where it is about the same sentences."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        same = all(known[key] == value for key, value in test.items())
        return dict(known["models"]) if same and known["format"] == _FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
