"""Tables of methods from real runs: means, published numbers beside them, cost to target."""

import csv
import importlib
import json
import math
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import layouts
import pytest

from nestruct import InputError
from nestruct.cli import main
from nestruct.reports import find_runs, read_groups, read_run, report_tables
from nestruct.reports.comparison import chosen
from nestruct.reports.published import (
    method_name,
    published_number,
    published_tables,
    structure_name,
)
from nestruct.reports.scoreboard import TARGETS, first_reached, scoreboard
from nestruct.reports.tables import NOTHING, Cell, Table, spread, to_csv, to_html, to_markdown

# The helper that writes run folders; mypy knows that file by another name.
write_run = importlib.import_module("reports.test_runs").write_run


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


def test_rows_are_means_over_seeds(trained):
    table = report_tables(read_groups(trained.values()))[0]
    assert table.title == "Methods"
    row = next(row for row in as_dicts(table) if row["runs"].text == "2 seeds")
    folders = [trained["structure-0"], trained["structure-1"]]
    tests = [lines(folder, "test")[-1] for folder in folders]
    for name, metric, sign in [
        ("F1, sampled", "f1_sample", 1),
        ("F1, MAP", "f1_map", 1),
        ("ELBO", "loss_published", -1),
    ]:
        values = [sign * test[metric] for test in tests]
        cell = row[f"test data: {name}"]
        assert cell.value == pytest.approx(mean(values))
        assert cell.spread == pytest.approx(stdev(values))
    assert row["kind"].text == "black-box solver"
    assert row["one run: steps"].value == 4
    assert row["one run: decoder evaluations"].value == 4 * 8 * 8  # steps, samples, examples
    last = [max(r["timing"]["seconds"] for r in lines(f, "test")) for f in folders]
    assert row["one run: wall-clock"].value == pytest.approx(mean(last))
    assert not any(name.startswith("paper") for name in row)  # its data are smaller


def test_examples_are_counted_not_minibatches(trained):
    counts = {name: read_run(folder) for name, folder in trained.items()}
    decoded = {name: run.decoded(run.validation[-1]) for name, run in counts.items()}
    assert decoded["sst"] == decoded["ema"] == 4 * 8
    assert decoded["nes"] == 4 * 4 * 2  # steps, members, examples of a pair
    assert read_run(trained["nes"]).decoded(read_run(trained["nes"]).validation[0]) == 0


def test_without_learning_are_the_baselines_and_the_untrained_model(trained):
    rows = as_dicts(report_tables(read_groups(trained.values()))[0])
    plain = {(r["method"].text, r["latent space"].text): r for r in rows}
    plain = {key: r for key, r in plain.items() if r["kind"].text == "no learning"}
    assert set(plain) == {
        ("chance", "spanning tree"),
        ("chance", "any n−1 edges"),  # noqa: RUF001
        ("shortest tree without learning", ""),
        ("nearest pairs without learning", ""),
        ("untrained model", "spanning tree"),
        ("untrained model", "any n−1 edges"),  # noqa: RUF001
    }
    scene = json.loads((trained["sst"] / "structures.jsonl").read_text().splitlines()[0])
    shortest = scene["references"]["shortest tree without learning"]["f1"]
    row = plain["shortest tree without learning", ""]
    assert row["test data: F1, sampled"].value == pytest.approx(shortest)
    # Seeds 0 and 1 once each, though four runs have seed 0.
    firsts = [lines(trained[name], "validation")[0] for name in ("structure-0", "structure-1")]
    elbo = plain["untrained model", "spanning tree"]["test data: ELBO"]
    assert elbo.value == pytest.approx(-mean(first["loss_published"] for first in firsts))
    assert all(r["one run: steps"] == Cell() for r in plain.values())


def test_the_untrained_model_is_one_of_the_same_data_or_says_which(tmp_path):
    folders = [write_run(tmp_path / str(k), seed=k) for k in range(3)]
    config = (folders[0] / "config.toml").read_text()
    for k, (dataset, size) in enumerate((("a", 7), ("a", 9), ("b", 7))):
        data, model = f'[data]\ndataset = "{dataset}"\n', f"[model]\nhidden_size = {size}\n"
        (folders[k] / "config.toml").write_text(config + data + model)
    for chosen_ones, names in (
        (folders[:1], ["untrained model"]),
        (folders[:2], ["untrained model, hidden_size 7"]),
        (folders, []),
    ):
        rows = as_dicts(report_tables(read_groups(chosen_ones))[0])
        found = [r["method"].text for r in rows if r["method"].text.startswith("untrained")]
        assert found == names


def test_baselines_of_several_data_sets_are_told_apart(tmp_path):
    folders = []
    sets = (("particles", 20, 0.3), ("particles", 30, 0.4), ("words", 20, 0.1))
    for k, (name, size, chance) in enumerate(sets):
        references = {"chance": {"f1": chance}}
        scene = {"format": 1, "structure": "KSubset", "options": {}, "references": references}
        folder = write_run(tmp_path / str(k), scene=scene | {"true": None})
        data = f'[data]\nname = "{name}"\nnum_nodes = 5\nnum_times = 10\nnum_train = {size}\n'
        if name == "words":
            data = f'[data]\nname = "{name}"\nseed = 0\n'
        (folder / "config.toml").write_text((folder / "config.toml").read_text() + data)
        folders.append(folder)
    rows = as_dicts(report_tables(read_groups(folders))[0])
    assert [r["method"].text for r in rows if r["method"].text.startswith("chance")] == [
        "chance, particles, num_train 20",
        "chance, particles, num_train 30",
        "chance, words",
    ]


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
    assert list(TARGETS["elbo"]) == [-1500, -1080, -500]
    record = first_reached(read_run(folders[0]), "f1_sample", 0.9)
    assert record is not None
    assert record["step"] == 3


def test_a_target_never_reached_says_so(tmp_path):
    (row,) = as_dicts(scoreboard(read_groups([climbing(tmp_path / "a", 0, [0.1, 0.2])]))[0])
    assert {cell.text for name, cell in row.items() if "least" in name} == {"not reached"}


def test_targets_of_the_elbo_are_those_of_table_1(trained):
    published = Path(__file__).parents[1] / "fixtures/runs/table1-sst"
    for run, has in ((trained["sst"], False), (published, True)):
        assert any("elbo" in record for record in read_run(run).validation)
        (row,) = as_dicts(scoreboard(read_groups([run]))[0])
        assert any("ELBO" in name for name in row) == has


def test_runs_without_such_metrics_have_no_scoreboard(tmp_path):
    groups = read_groups([write_run(tmp_path / "a")])
    assert scoreboard(groups) == []
    assert [table.title for table in report_tables(groups)] == ["Methods"]


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
        "**Cost to target: decoder evaluations**",
        "**Cost to target: time on the device**",
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


def test_the_command_says_what_is_missing(trained, capsys, tmp_path):
    status, _, errors = said(capsys, "report", trained["sst"])
    assert status == 1
    assert "-o PAGE.html, --markdown or --csv" in errors
    status, _, errors = said(capsys, "report", tmp_path, "--markdown")
    assert status == 1
    assert "No run folder was given" in errors
    with pytest.raises(InputError, match="not a folder"):
        find_runs([tmp_path / "nowhere"])
