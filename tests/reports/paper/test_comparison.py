"""Table 1 from real runs: the paper's numbers beside ours, and which run is in which cell."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import layouts
import pytest

from nestruct.reports import find_runs, read_groups, read_run, report_tables
from nestruct.reports.names import method_name, structure_name
from nestruct.reports.paper.comparison import chosen
from nestruct.reports.paper.published import published_number, published_tables
from nestruct.reports.scoreboard import scoreboard
from nestruct.reports.tables import Cell, Table


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four methods, one with two seeds and both latent spaces."""
    return layouts.small_runs(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def of_table_1(trained: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with the same runs, as if they had had all of the paper's data."""
    return layouts.with_published_sizes(trained, tmp_path / "table1")


def lines(folder: Path, split: str) -> list[dict[str, Any]]:
    """The records of a run file, read without any of our code."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["split"] == split]


def as_dicts(table: Table) -> list[dict[str, Cell]]:
    names = [": ".join(filter(None, pair)) for pair in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def test_table_1_has_the_papers_numbers_beside_ours_and_says_what_was_not_run(of_table_1):
    numbers, costs, methods, *_ = report_tables(read_groups(find_runs([of_table_1])[0]))
    assert numbers.title.startswith("Table 1")
    rows = {row["method"].text: row for row in as_dicts(numbers)}
    tree, subset = "spanning tree: ", "any n−1 edges: "  # noqa: RUF001
    assert rows["SST"][f"{tree}ELBO, paper"].text == "-1,080 ± 110"
    assert rows["NES"][f"{tree}F1 (%), paper"].text == "92 ± 0.2"
    for metric, digits in (("ELBO", 0), ("F1 (%)", 1)):
        paper, our, less = (
            rows["SST"][f"{tree}{metric}, {which}"] for which in ("paper", "ours", "difference")
        )
        assert less.value == pytest.approx(our.value - paper.value)
        assert less.text == f"{less.value:+,.{digits}f}"
    assert rows["StructureNES"][f"{tree}ELBO, difference"] == Cell()  # the paper has none
    assert rows["no learning: untrained model"][f"{tree}F1 (%), difference"] == Cell()
    tests = [lines(of_table_1 / f"structure-{k}", "test")[-1] for k in range(2)]
    ours = rows["StructureNES"][f"{tree}F1 (%), ours"]
    assert ours.value == pytest.approx(100 * mean(test["f1_sample"] for test in tests))
    assert ours.text.endswith(" (2)")
    assert rows["StructureNES"][f"{tree}ELBO, paper"].text == ""
    for method, column in [
        ("SST", subset),
        ("NES", tree),
        ("REINFORCE (batch)", tree),
        ("REINFORCE (multi-sample)", subset),
    ]:
        assert rows[method][f"{column}ELBO, ours"].text == "not run"
    assert rows["NES, a minibatch per pair"][f"{tree}ELBO, ours"].text.endswith(" (1)")
    nearest = rows["no learning: nearest pairs"]
    assert nearest[f"{tree}F1 (%), ours"].text == ""  # no tree
    assert nearest[f"{subset}F1 (%), ours"].value > 0
    assert rows["no learning: untrained model"][f"{tree}F1 (%), ours"].text.endswith(" (2)")
    cost = {row["method"].text: row for row in as_dicts(costs)}
    assert cost["StructureNES"][f"{tree}seeds"].value == 2
    assert cost["StructureNES"][f"{subset}decoder evaluations"].value == 256
    assert cost["SST"][f"{subset}seeds"].text == "not run"
    beside = {row["method"].text: row for row in as_dicts(methods)}
    sst = next(row for name, row in beside.items() if "SST" in name)
    assert (sst["paper: ELBO"].value, sst["paper: F1"].value) == (-1080, 0.91)


def test_of_several_configurations_validation_data_choose(of_table_1):
    for k, loss in enumerate((2.0, 1.0, 3.0)):
        other = of_table_1 / f"sst-{k}"
        other.mkdir()
        config = (of_table_1 / "sst/config.toml").read_text()
        config = config.replace("temperature = 0.5", f"temperature = {k + 1}.5")
        (other / "config.toml").write_text(config)
        records = [
            {"step": 4, "split": "validation", "loss_published": loss, "f1_sample": 0.1},
            {"step": 4, "split": "test", "best_step": 4, "loss_published": 5 - loss},
        ]
        text = "".join(json.dumps(record) + "\n" for record in records)
        (other / "metrics.jsonl").write_text(text)
    groups = read_groups(find_runs([of_table_1])[0])
    table = published_tables()[0]
    row = next(row for row in table.rows if row.method == "SST")
    best = chosen(table, groups, row, "spanning-tree")
    assert best is not None
    assert best.runs[0].path.name == "sst-1"  # not sst-2, which is best on test data
    assert any("Where a method ran in several" in note for note in report_tables(groups)[0].notes)
    assert chosen(table, groups, row, "k-subset") is None
    two = [group for group in groups if len(group.runs) == 2]
    assert [method_name(group.runs[0]) for group in two] == ["StructureNES"]


def test_only_runs_of_the_papers_task_get_its_numbers(trained, of_table_1):
    assert published_number(read_run(trained["sst"]), "elbo") is None
    run = read_run(of_table_1 / "sst")
    assert published_number(run, "elbo") == (-1080, 110)
    assert method_name(run) == method_name(read_run(trained["sst"])) == "SST"
    assert structure_name(run) == "spanning tree"
    run.config["model"]["variance"] = 1e-3
    assert published_number(run, "elbo") is None


def test_every_number_is_as_printed():
    table = published_tables()[0]
    printed = {row.method: row.numbers for row in table.rows if row.numbers}
    assert {method: [tuple(n[m]) for n in numbers.values() for m in ("elbo", "f1")]
            for method, numbers in printed.items()} == {
        "REINFORCE (batch)": [(-2260, 0), (41, 1), (-2180, 0), (39, 1)],
        "REINFORCE (EMA)": [(-2250, 20), (40, 7), (-2170, 10), (42, 1)],
        "REINFORCE (multi-sample)": [(-2230, 20), (42, 1), (-2150, 10), (40, 0)],
        "NVIL": [(-1570, 300), (83, 20), (-2110, 10), (42, 2)],
        "SST": [(-1080, 110), (91, 3), (-2100, 20), (41, 1)],
        "NES": [(-1117, 45), (92, 0.2), (-2150, 10), (44, 0.6)],
    }  # fmt: skip


def test_the_elbo_is_only_named_with_the_published_variance(trained, tmp_path):
    run = read_run(trained["sst"])
    assert run.validation[0]["elbo"] == -run.validation[0]["loss_published"]
    for file in ("config.toml", "metrics.jsonl"):
        text = (trained["sst"] / file).read_text()
        (tmp_path / file).write_text(text.replace("variance = 5e-05", "variance = 0.001"))
    assert "elbo" not in read_run(tmp_path).validation[0]


def test_targets_of_the_elbo_are_those_of_table_1(trained, of_table_1):
    for run, has in ((trained["sst"], False), (of_table_1 / "sst", True)):
        assert any("elbo" in record for record in read_run(run).validation)
        (row,) = as_dicts(scoreboard(read_groups([run]))[0])
        assert any("ELBO" in name for name in row) == has
