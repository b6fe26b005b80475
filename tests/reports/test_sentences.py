"""Sentences as drawings: an arc for each word, none through another's label, words escaped."""

import xml.etree.ElementTree as ET

from nestruct.reports.sentences import _levels, draw_sentence

SVG = "{http://www.w3.org/2000/svg}"


def test_every_word_and_relation_is_there():
    drawn = draw_sentence(["<a>", "b & c"], [2, 0], ["det", "root"])
    root = ET.fromstring(drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["det", "root", "root", "<a>", "b & c"]
    assert len(list(root.iter(f"{SVG}g"))) == 2


def test_arcs_above_the_same_gap_have_heights_of_their_own():
    heads = [2, 4, 2, 0, 4, 7, 5]
    arcs = [(head, word) for word, head in enumerate(heads, 1)]
    levels = _levels(arcs)
    for gap in range(len(heads)):
        above = [
            level for arc, level in zip(arcs, levels, strict=True) if min(arc) <= gap < max(arc)
        ]
        assert len(set(above)) == len(above)
    assert levels[0] == 0
