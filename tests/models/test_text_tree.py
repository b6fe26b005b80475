"""Trees as text: every arc can be read off the drawing again."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import nestruct
from nestruct.models.parser.text_tree import draw_tree

UP, DOWN, LEFT, RIGHT = (set(part) for part in ("╵│╯┤╰├┴┼", "╷│╮┤╭├┬┼", "╴╯╮┤─┴┬┼", "╶╰╭├─┴┬┼"))


def read_heads(drawing: str) -> list[int]:
    """The heads of a drawing, by walking from each word along its lines."""
    rows = drawing.splitlines()

    def at(row: int, column: int) -> str:
        return rows[row][column] if 0 <= row < len(rows) and column < len(rows[row]) else " "

    # A head's word ends its own line: a corner or tee that opens to the left only.
    own = {}
    for row, text in enumerate(rows):
        for column, character in enumerate(text.split("w")[0]):
            if character in "╯╮┤":
                own[column, row] = row + 1
    heads = []
    for row, text in enumerate(rows):
        ends = [column for column, there in own if there == row]
        column = ends[0] - 1 if ends else len(text.split("w")[0].rstrip()) - 1
        while at(row, column) in "─┼":
            column -= 1
        if column < 0:
            heads.append(0)
            continue
        found = None
        for step, there in ((-1, UP), (1, DOWN)):
            place = row
            while at(place, column) in there and found is None:
                place += step
                found = own.get((column, place))
        assert found is not None, drawing
        heads.append(found)
    return heads


def draw(heads: list[int]) -> str:
    return draw_tree([f"w{k}" for k in range(len(heads))], heads, ["dep"] * len(heads))


@given(st.integers(1, 12), st.integers(0, 10_000), st.booleans(), st.booleans())
def test_heads_can_be_read_off_the_drawing(length, seed, projective, single_root):
    kind = nestruct.ProjectiveTree if projective else nestruct.NonProjectiveTree
    scores = torch.randn(length + 1, length + 1, generator=torch.Generator().manual_seed(seed))
    heads = kind(single_root).argmax(scores).argmax(0)[1:].tolist()
    assert read_heads(draw(heads)) == heads


def test_words_are_printable_and_labels_stand_below_each_other():
    lines = draw_tree(["a\x1b", "你好", "cc"], [2, 0, 2], ["x", "y", "z"]).splitlines()
    assert lines[0] == "  ╭─ a\\x1b  x"
    assert lines[1] == "──┤ 你好    y"  # which take two places each
    assert lines[2] == "  ╰─ cc     z"
    assert draw_tree([], [], []) == ""
