"""Sections: anyone's own has its place in tables and page, where it applies."""

import importlib

from nestruct.reports import SECTIONS, ReportSection, read_groups, report_tables, write_page
from nestruct.reports.sections import METHODS, Content
from nestruct.reports.tables import Cell, Table

write_run = importlib.import_module("reports.test_runs").write_run
pages = importlib.import_module("reports.pages")

MINE = Table("My <table>", [("", "seed")], [[Cell("7", 7)]])


def mine(drawings=""):
    return ReportSection(
        "Mine",
        lambda groups: any(run.seed == 7 for group in groups for run in group.runs),
        lambda groups: Content([MINE], drawings),
    )


def test_a_section_is_shown_where_it_applies(tmp_path):
    one, other = (write_run(tmp_path / str(seed), seed=seed) for seed in (7, 8))
    sections = [mine(), METHODS]
    assert [t.title for t in report_tables(read_groups([one]), sections)] == [MINE.title, "Methods"]
    assert [t.title for t in report_tables(read_groups([other]), sections)] == ["Methods"]
    write_page([one], tmp_path / "page.html", sections=sections)
    page = pages.parse(tmp_path / "page.html")
    assert pages.rows(page, "my-table") == [{"seed": "7"}]
    assert "My <table>" in [link.text for link in page.one("nav").all("a")]


def test_below_drawings_tables_fold_away(tmp_path):
    folder = write_run(tmp_path / "run", seed=7)
    write_page([folder], tmp_path / "page.html", sections=[mine("<p>drawn</p>")])
    section = pages.parse(tmp_path / "page.html").one(id="mine")
    assert section.one("p").text == "drawn"
    assert section.one("details").one("summary").text == "My <table>: the numbers"


def test_runs_of_no_paper_have_the_core_only(tmp_path):
    groups = read_groups([write_run(tmp_path / "run")])
    assert [section.title for section in SECTIONS if section.applies(groups)] == ["Methods"]
