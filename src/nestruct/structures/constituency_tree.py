"""Binary trees over words: constituents, brackets."""

import functools

import numpy as np

from nestruct.checks import check_count
from nestruct.structures.dynamic_programme import DynamicProgramme
from nestruct.structures.recurrence import Recurrence


class ConstituencyTree(DynamicProgramme):
    """A binary tree over n words; ``scores [..., n, n]`` are spans (first word, last word).

    Both ends are inclusive, and a tree has 2n - 1 spans: its words are among them. Spans that end
    before they begin never count, whatever they hold. The context ``lengths`` counts words, one or
    more.

    Args:
        num_labels: With labels every span has one, and scores are ``[..., n, n, num_labels]``.

    Example:
        >>> import torch, nestruct
        >>> scores = torch.zeros(3, 3)
        >>> scores[1, 2] = 1.0
        >>> nestruct.ConstituencyTree().argmax(scores)
        tensor([[1., 0., 1.],
                [0., 1., 1.],
                [0., 0., 1.]])
    """

    length_axes = (("lengths", 0, 0), ("lengths", 1, 0))

    def __init__(self, num_labels: int | None = None) -> None:
        if num_labels is not None:
            check_count("ConstituencyTree", "num_labels", num_labels, 1)
        self.num_labels = num_labels
        labels = "" if num_labels is None else f", {num_labels}"
        self.shape_in_words = f"[n, n{labels}] for n words"

    def __repr__(self) -> str:
        return f"ConstituencyTree({'' if self.num_labels is None else self.num_labels})"

    def shape(self, *sizes: int) -> tuple[int, ...]:
        """``(n, n)`` for n words, or ``(n, n, num_labels)``."""
        n = sizes[0]
        return (n, n) if self.num_labels is None else (n, n, self.num_labels)

    def recurrence(self, *sizes: int) -> Recurrence:
        """That of Cocke, Kasami and Younger: a span is two shorter ones side by side."""
        return _recurrence(self.num_labels, *sizes)


@functools.lru_cache(maxsize=32)
def _recurrence(num_labels: int | None, words: int) -> Recurrence:
    labelled = int(num_labels is not None)
    shape = (words, words, 3) if labelled else (words, words)
    node = np.arange(np.prod(shape)).reshape(words, words, -1)
    span, inner, label = (node[..., i * labelled] for i in (0, 1, 2))
    part = np.arange(words * words * (num_labels or 1)).reshape(words, words, -1)
    levels: list[tuple] = []
    if labelled:  # the labels of each span, then spans of their two halves and a label
        i, j = np.triu_indices(words)
        levels.append((label[i, j], node.size, -1, part[i, j]))
    i = np.arange(words)
    begin = label[i, i] if labelled else np.full(words, node.size)
    levels.append((span[i, i], begin[:, None], -1, -1 if labelled else part[i, i]))
    for width in range(1, words):
        i = np.arange(words - width)[:, None]
        split, j = i + np.arange(width), i + width
        own = -1 if labelled else part[i, j, 0]
        levels.append((inner[i, j], span[i, split], span[split + 1, j], own))
        if labelled:
            levels.append((span[i, j], inner[i, j], label[i, j], -1))
    return Recurrence(shape, part.size, levels, [-1, *span[0]])
