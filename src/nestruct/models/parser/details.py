"""How many words of each sentence a parser attaches rightly: its ``details``.

Counts only, no words: what a paired comparison of two parsers needs, and attachment by sentence
length and by arc length.
"""

from typing import TYPE_CHECKING, Any

import torch

from nestruct.data import Sentences, slices

if TYPE_CHECKING:
    from nestruct.models.parser import ParserVAE

_AT_ONCE = 1000  # sentences


def count_attached(model: "ParserVAE", data: Sentences) -> dict[str, Any]:
    """What there is to attach, and what is attached rightly.

    Returns:
        ``examples``, what there is: ``words`` of each sentence, and ``scored``, words without
        punctuation; ``arcs``, how many true arcs have each length, 0 being those from the root,
        punctuation's left out. Then, of the same, how many the model attaches rightly:
        ``words_right``, ``scored_right``, ``arcs_right``.
    """
    device = model.vectors.device
    longest = int(data.words.shape[1])
    right = {name: torch.zeros(len(data), dtype=torch.long) for name in ("words", "scored")}
    arcs, hits = torch.zeros(2, longest, dtype=torch.long)
    for rows, batch in slices(data, _AT_ONCE):
        attached = (model.parse(batch)[0] == batch.heads) & batch.is_word
        counted = attached & batch.scored
        right["words"][rows.cpu()] = attached.sum(1).cpu()
        right["scored"][rows.cpu()] = counted.sum(1).cpu()
        place = torch.arange(batch.heads.shape[1], device=device)
        length = torch.where(batch.heads > 0, (batch.heads - place).abs(), 0)
        for total, those in ((arcs, batch.scored), (hits, counted)):
            total += length[those].cpu().bincount(minlength=longest)
    used = int(arcs.nonzero().max()) + 1 if arcs.any() else 0
    examples = {
        "words": data.lengths.tolist(),
        "scored": data.scored.sum(1).tolist(),
        "arcs": arcs[:used].tolist(),
    }
    found = {f"{name}_right": counts.tolist() for name, counts in right.items()}
    return {"examples": examples, **found, "arcs_right": hits[:used].tolist()}
