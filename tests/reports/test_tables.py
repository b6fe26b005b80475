"""A table in its three forms."""

import csv
import math

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
     [Cell("c"), Cell("not reached", math.inf), Cell("not run")]],
    ["A note & more."],
)  # fmt: skip


def test_a_table_as_markdown():
    assert to_markdown(TABLE).splitlines() == [
        "**Small | table**",
        "",
        "| method | over: value | over: words |",
        "| --- | ---: | --- |",
        f"| a\\|b <i> | 1.0 ± 0.1 | {NOTHING} |",
        "| c | not reached | not run |",
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
    assert '<p class="note">A note &amp; more.</p>' in text
