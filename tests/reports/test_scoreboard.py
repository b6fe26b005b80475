"""What it costs to reach a target: medians of first passages."""

import importlib
import json
import math
from pathlib import Path
from statistics import median

from nestruct.reports import METRICS, Metric, read_groups, read_run, report_tables
from nestruct.reports.scoreboard import first_reached, reaches_targets, scoreboard
from nestruct.reports.tables import Cell, Table

# The helper that writes run folders; mypy knows that file by another name.
write_run = importlib.import_module("reports.test_runs").write_run


def as_dicts(table: Table) -> list[dict[str, Cell]]:
    names = [": ".join(filter(None, pair)) for pair in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def climbing(folder: Path, seed: int, values: list[float], size: int = 10) -> Path:
    """A run whose F1 takes these values, one evaluation after the other."""
    write_run(folder, seed=seed)
    config = (folder / "config.toml").read_text()
    config = config.replace("[training]", f"[training]\nbatch_size = {size}")
    (folder / "config.toml").write_text(config)
    records = [
        {"step": k, "split": "validation", "f1_sample": value, "evaluations": 100 * k}
        | {"timing": {"seconds": 3.0 * k}}
        for k, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def test_cost_to_target_is_the_median_of_first_passages(tmp_path):
    seeds = ([0.1, 0.85, 0.7, 0.96], [0.1, 0.2, 0.81, 0.91], [0.1, 0.2, 0.3, 0.82])
    folders = [climbing(tmp_path / str(k), k, values) for k, values in enumerate(seeds)]
    evaluations, seconds = scoreboard(read_groups(folders))
    (row,), (time,) = as_dicts(evaluations), as_dicts(seconds)
    assert row["F1 at least: 0.8"] == Cell("2 k", median([1000, 2000, 3000]))
    assert time["F1 at least: 0.8"] == Cell("6 s", 6.0)
    assert row["F1 at least: 0.9"] == Cell("3 k (2 of 3)", 3000)
    assert row["F1 at least: 0.95"] == Cell("not reached (1 of 3)", math.inf)
    assert not any("ELBO" in name for name in row)
    record = first_reached(read_run(folders[0]), "f1_sample", 0.9)
    assert record is not None
    assert record["step"] == 3


def test_a_target_never_reached_says_so(tmp_path):
    groups = read_groups([climbing(tmp_path / "a", 0, [0.1, 0.2])])
    (row,) = as_dicts(scoreboard(groups)[0])
    assert {cell.text for name, cell in row.items() if "least" in name} == {"not reached"}
    # Where no run reaches any, there is nothing to report.
    assert [table.title for table in report_tables(groups)] == ["Methods (none was tested yet)"]
    groups = read_groups([climbing(tmp_path / "b", 0, [0.1, 0.85])])
    assert [table.title for table in report_tables(groups)][1:] == [
        "Cost to target: decoder evaluations",
        "Cost to target: time on the device",
    ]


def test_a_target_of_a_loss_is_reached_from_above(tmp_path, monkeypatch):
    monkeypatch.setitem(METRICS, "loss", Metric(label="loss", targets=(8.0,)))
    run = write_run(tmp_path / "a", tested=False)  # its loss is 11 less an eighth of the step
    (row,) = as_dicts(scoreboard(read_groups([run]))[1])
    assert row["loss at most: 8"].text == "1 min"
    record = first_reached(read_run(run), "loss", 8.0)
    assert record is not None
    assert record["step"] == 30


def test_runs_without_such_metrics_have_no_scoreboard(tmp_path):
    groups = read_groups([write_run(tmp_path / "a")])
    assert not reaches_targets(groups)
    assert [table.title for table in report_tables(groups)] == ["Methods"]
