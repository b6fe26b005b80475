"""``nestruct report``: folders, folders of folders and archives, as text and as a page."""

from pathlib import Path
from typing import Any

import layouts
import pytest

from nestruct import InputError
from nestruct.cli import main
from nestruct.reports import (
    find_runs,
    pack_runs,
    read_groups,
    report_tables,
    to_csv,
    to_markdown,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return layouts.small_runs(tmp_path_factory.mktemp("trained"), ("structure-0", "sst"))


@pytest.fixture
def of_table_1(trained: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with the same runs, as if they had had all of the paper's data."""
    return layouts.with_published_sizes(trained, tmp_path / "table1")


def said(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main([str(word) for word in words])
    out = capsys.readouterr()
    return int(status.value.code or 0), out.out, out.err


def test_the_command_prints_the_tables_of_a_folder_of_runs(of_table_1, capsys, tmp_path):
    (of_table_1 / "notes.json").write_text("{}")
    status, markdown, _ = said(capsys, "report", of_table_1, "--markdown")
    tables = report_tables(read_groups(find_runs([of_table_1])[0]))
    assert (status, markdown) == (0, "\n".join(map(to_markdown, tables)))
    assert [line for line in markdown.splitlines() if line.startswith("**")] == [
        "**Table 1: graph layout, 10 nodes, T = 10**",
        "**Table 1: what each cell cost**",
        "**Methods**",
    ]
    # As a shell writes results/*: a file among the runs is left out, and said.
    status, again, errors = said(capsys, "report", *sorted(of_table_1.iterdir()), "--markdown")
    assert (status, again) == (0, markdown)
    assert "left out, no run is there" in errors
    assert "notes.json" in errors
    page = tmp_path / "page.html"
    status, out, errors = said(capsys, "report", of_table_1, "--csv", "-o", page)
    assert (status, out) == (0, "\n".join(map(to_csv, tables)))
    assert "Wrote" in errors
    assert page.is_file()


def test_folders_in_folders_and_archives_give_the_same_tables(of_table_1, capsys, tmp_path):
    deep = tmp_path / "all" / "a" / "b"
    deep.mkdir(parents=True)
    of_table_1.rename(deep / "table1")
    for name in ("checkpoints", ".hidden", "1/2/3/4"):  # never looked into, or too deep
        (tmp_path / "all" / name / "run").mkdir(parents=True)
        (tmp_path / "all" / name / "run" / "config.toml").write_text("")
    status, markdown, errors = said(capsys, "report", tmp_path / "all", "--markdown")
    assert (status, errors) == (0, "")
    runs, _ = find_runs([tmp_path / "all"])
    assert [run.name for run in runs] == ["sst", "structure-0"]
    pack_runs(runs, tmp_path / "table1.tar.xz")
    archive = said(capsys, "report", tmp_path / "table1.tar.xz", "--markdown")
    assert archive == (0, markdown, "")
    page = tmp_path / "page.html"
    status, _, _ = said(capsys, "report", tmp_path / "table1.tar.xz", "-o", page)
    assert status == 0
    assert "<summary>sst: config.toml (finished)" in page.read_text()


def test_what_is_wrong_in_an_archive_is_said_of_the_archive(trained, capsys, tmp_path):
    (trained["sst"].parent / "broken").mkdir()
    (trained["sst"].parent / "broken" / "config.toml").write_text("seed = ")
    (trained["sst"].parent / "broken" / "metrics.jsonl").write_text("")
    pack_runs([trained["sst"].parent / "broken"], tmp_path / "runs.tar.xz")
    status, _, errors = said(capsys, "report", tmp_path / "runs.tar.xz", "--markdown")
    assert status == 1
    assert f"{tmp_path}/runs.tar.xz/broken/config.toml cannot be read" in " ".join(errors.split())
    (tmp_path / "cut.tar.xz").write_bytes((tmp_path / "runs.tar.xz").read_bytes()[:-20])
    status, _, errors = said(capsys, "report", tmp_path / "cut.tar.xz", "--markdown")
    assert status == 1
    assert "broken or no archive" in " ".join(errors.split())


def test_the_command_says_what_is_missing(trained, capsys, tmp_path):
    status, _, errors = said(capsys, "report", trained["sst"])
    assert status == 1
    assert "-o PAGE.html, --markdown or --csv" in errors
    status, _, errors = said(capsys, "report", tmp_path, "--markdown")
    assert status == 1
    assert "There is no run to report on" in errors
    with pytest.raises(InputError, match="not a folder"):
        find_runs([tmp_path / "nowhere"])
