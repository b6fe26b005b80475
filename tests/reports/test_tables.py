"""A table in its three forms."""

import csv
import math
import re

import pytest

from nestruct.reports.tables import NOTHING, Cell, Table, spread, to_csv, to_html, to_markdown


def test_a_mean_says_of_how_many_where_some_are_missing():
    assert spread([1.0, None, 3.0]).text == "2.000 ± 1.414 (2 of 3)"
    assert spread([None, 3.0]).text == "3.000 (1 of 2)"
    assert spread([2.0, 2.0]) == Cell("2.000", 2.0, 0.0)
    assert spread([None]) == Cell()


TABLE = Table(
    "Small | table",
    [("", "method"), ("over", "value"), ("over", "words")],
    [[Cell("a|b <i>"), Cell("1.0 ± 0.1", 1.0, 0.123456), Cell()],
     [Cell("c"), Cell("not reached", math.inf), Cell("not run", best=True)]],
    ["A note & more."],
)  # fmt: skip


def test_a_table_as_markdown():
    assert to_markdown(TABLE).splitlines() == [
        "**Small | table**",
        "",
        "| method | over: value | over: words |",
        "| --- | ---: | --- |",
        f"| a\\|b &lt;i&gt; | 1.0 ± 0.1 | {NOTHING} |",
        "| c | not reached | **not run** |",
        "",
        "A note & more.",
    ]


def test_a_table_as_csv_has_full_numbers():
    title, *rest = to_csv(TABLE).splitlines()
    assert title == "# Small | table"
    assert list(csv.reader(rest)) == [
        ["method", "over: value", "over: value, deviation", "over: words"],
        ["a|b <i>", "1.0", "0.123456", ""],
        ["c", "not reached", "", "not run"],
    ]


def test_a_table_as_html_keeps_text_as_text():
    text = to_html(TABLE)
    assert "a|b &lt;i&gt;" in text
    assert '<th colspan="2" scope="colgroup">over</th>' in text
    assert 'data-value="Infinity"' in text
    assert ">not reached</td>" in text
    assert "><b>not run</b></td>" in text
    assert '<p class="note">A note &amp; more.</p>' in text


FORMULAS = [
    "=1+1",
    "=cmd|' /C calc'!A0",
    "+1+cmd|' /C calc'!A0",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    '=HYPERLINK("http://example.org/?"&A1,"click")',
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "  =1+1",
    "NES; =1+1",
    "NES;=1+1",
    "NES|=1+1",
    "\uff1d1+1",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_csv_is_computed(text):
    table = Table(text, [(text, "a"), ("", text)], [[Cell(text), Cell("b")]])
    title, heads, row = to_csv(table).splitlines()
    assert title.startswith("# ")
    for cell in [*next(csv.reader([heads])), *next(csv.reader([row]))]:
        for part in re.split("[;|\t]", cell):
            assert not part.strip().startswith(("=", "+", "-", "@", "\uff1d"))
        assert cell.replace("'", "")  # and the words are still there


@pytest.mark.parametrize("text", ["-1", "+2.5", "-1e-05", "1,000", "NES-3", "a = b"])
def test_numbers_and_plain_words_stay_as_they_are_in_csv(text):
    table = Table("t", [("", "a"), ("", "b")], [[Cell(text), Cell("-3 ± 1", -3.25, 1.0)]])
    rows = list(csv.reader(to_csv(table).splitlines()[1:]))
    assert rows == [["a", "b", "b, deviation"], [text, "-3.25", "1.0"]]


MARKUP = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<svg/onload=alert(1)>",
    "<!-- and the rest is gone",
    "<javascript:alert(1)>",
    "[click](javascript:alert(1))",
    "![](https://example.org/pixel.png)",
    "[click][1]",
    "a\\| b | c",
    "one\ntwo | <b>three</b>\n\n# four",
    "`code",
    "&lt;b&gt;",
    "\x1b[2J\x07",
]


@pytest.mark.parametrize("text", MARKUP)
def test_markdown_has_no_markup_but_its_own(text):
    table = Table(text, [("", text)], [[Cell(text)]], [text])
    shown = to_markdown(table)
    title, _, head, _, row, _, note = shown.splitlines()  # and no line more
    assert not re.search(r"[<>\x00-\x09\x0b-\x1f]|&(?!lt;|gt;|amp;)", shown)
    for line in (title, head, row, note):
        assert not re.search(r"(?<!\\)(\\\\)*[\[\]`]", line)
    for line in (head, row):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 2
