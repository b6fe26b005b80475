"""Scores as drawings: a dot for each number, and names that can be read."""

import re

from nestruct.reports.scores import draw_scores


def boxes(svg: str, texts: list[str]) -> list[tuple[float, float, float]]:
    """Where names stand: left, right and height, by the width that letters have."""
    found = []
    for x, y, anchor, text in re.findall(
        r'<text class="axis" x="([\d.]+)" y="([\d.]+)" style="text-anchor:(\w+)">([^<]+)<', svg
    ):
        if text in texts:
            left = float(x) - (6 * len(text) if anchor == "end" else 0)
            found.append((left, left + 6 * len(text), float(y)))
    return found


def test_names_of_near_marks_do_not_overlap():
    marks = {"shortest tree": 0.81, "nearest pairs": 0.80, "chance": 0.79, "far": 0.1}
    for stacked in (False, True):
        svg = draw_scores({"NES": [0.5, 0.9]}, "F1", marks, stacked=stacked)
        placed = boxes(svg, list(marks))
        assert len(placed) == 4
        for k, (left, right, height) in enumerate(placed):
            for other in placed[:k]:
                assert height != other[2] or right <= other[0] or other[1] <= left


def test_a_long_name_is_cut_and_kept_as_a_title():
    name = "NES, " + ", ".join(f"option_{k} {k}" for k in range(9))
    svg = draw_scores({name: [1.0], "SST": [2.0]}, "loss", {})
    assert f"<title>{name}</title>" in svg
    assert svg.count("…") == 1
    assert svg.count("<circle") == 2


def test_rows_have_their_own_colours_where_they_are_given():
    svg = draw_scores({"a": [1.0], "b": [2.0]}, "x", {}, colours=[4, 9])
    assert re.findall(r'<circle[^>]*fill="var\(--(c\d)\)"', svg) == ["c4", "c2"]
