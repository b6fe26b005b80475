"""Configurations of many groups: what differs is told apart, and nothing is lost."""

import importlib

from nestruct.reports import write_page
from nestruct.reports.configuration import FILES

write_run = importlib.import_module("reports.test_runs").write_run
pages = importlib.import_module("reports.pages")


def test_of_many_groups_what_differs_is_a_row_for_each(tmp_path):
    folders = [write_run(tmp_path / str(k), sigma=0.1 + k, seed=k) for k in range(12)]
    write_page(folders, tmp_path / "page.html")
    part = pages.parse(tmp_path / "page.html").one(id="configuration")
    differing, same = part.all("table")
    heads = [head.text for head in list(differing.one("thead").all("tr"))[-1].all("th")]
    assert heads == ["group", "seed", "sigma"]
    rows = [[cell.text for cell in row.all("td")] for row in differing.one("tbody").all("tr")]
    assert [row[1:] for row in rows] == [[str(k), f"{0.1 + k}"] for k in range(12)]
    told = {row.one("td", kind="first").text for row in same.all("tr") if list(row.all("td"))}
    assert {"recipe", "estimator.name", "training.max_steps"} <= told
    assert not {"seed", "estimator.sigma"} & told


def test_the_files_of_very_many_runs_are_left_in_their_folders(tmp_path):
    folders = [write_run(tmp_path / str(k), seed=k, steps=10) for k in range(FILES + 1)]
    for shown in (FILES, FILES + 1):
        write_page(folders[:shown], tmp_path / "page.html")
        part = pages.parse(tmp_path / "page.html").one(id="configuration")
        assert len(list(part.all("pre"))) == (FILES if shown == FILES else 0)
        assert ("config.toml in its folder" in part.text) == (shown > FILES)
