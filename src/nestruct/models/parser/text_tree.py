"""A dependency tree as text: a word a line, indented by its depth, with lines to its head.

A head's line runs down its own column, from its first dependent to its last. Columns are handed out
from the root on, so lines cross only where the tree is not projective.
"""

from collections.abc import Sequence

from rich.cells import cell_len

from nestruct.wording import printable

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = " ╵╷│╴╯╮┤╶╰╭├─┴┬┼"  # by which of up, down, left and right they go to


def draw_tree(words: Sequence[str], heads: Sequence[int], labels: Sequence[str]) -> str:
    """The tree of a sentence.

    Args:
        words: Its words.
        heads: Of each word, from 1 on; 0 for the root.
        labels: Of each word.

    Example:
        >>> print(draw_tree(["The", "dog", "barks"], [2, 3, 0], ["det", "nsubj", "root"]))
            ╭─ The  det
          ╭─╯ dog   nsubj
        ──╯ barks   root
    """
    columns, spans = _columns(heads)
    rows = [_row(k, head, columns, spans) for k, head in enumerate(heads, 1)]
    texts = [f"{row} {printable(word)}" for row, word in zip(rows, words, strict=True)]
    width = max(map(cell_len, texts), default=0) + 2
    return "\n".join(
        text + " " * (width - cell_len(text)) + printable(label)
        for text, label in zip(texts, labels, strict=True)
    )


def _columns(heads: Sequence[int]) -> tuple[dict[int, int], list[list[tuple[int, int, int]]]]:
    """The column of each head, and for each column the (first, last, head) of its lines."""
    dependents: dict[int, list[int]] = {}
    for word, head in enumerate(heads, 1):
        dependents.setdefault(head, []).append(word)
    columns: dict[int, int] = {0: 0}
    spans: list[list[tuple[int, int, int]]] = [[]]
    waiting = list(dependents.get(0, ()))
    for head in waiting:  # which grows: the root's dependents, then theirs
        below = dependents.get(head)
        if below is None:
            continue
        waiting += below
        first, last = min(head, below[0]), max(head, below[-1])
        column = columns[heads[head - 1]] + 1
        while column < len(spans) and any(a <= last and first <= b for a, b, _ in spans[column]):
            column += 1
        spans += [[] for _ in range(column + 1 - len(spans))]
        spans[column].append((first, last, head))
        columns[head] = column
    return columns, spans


def _row(
    word: int, head: int, columns: dict[int, int], spans: list[list[tuple[int, int, int]]]
) -> str:
    """The lines to the left of a word."""
    lines = [0] * len(spans)
    for column, there in enumerate(spans):
        for first, last, _ in there:
            if first <= word <= last:
                lines[column] |= (_UP * (word > first)) | (_DOWN * (word < last))
    last = max((c for c, bits in enumerate(lines) if bits), default=0)
    start, end = columns[head], columns.get(word, last + 1)
    lines[start] |= _RIGHT
    if word in columns:
        lines[end] |= _LEFT
    if head == 0:
        lines[start] |= _LEFT
    for column in range(start + 1, min(end, len(lines))):
        lines[column] |= _LEFT | _RIGHT
    text = ""
    for column in range(last + 1):
        goes_on = start <= column < end
        text += _LINES[lines[column]] + ("─" if goes_on else " ")
    return text.rstrip(" ")
