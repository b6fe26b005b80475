"""Table 3 from the archives in ``results``: ours beside the paper's, by hand and by the report."""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

from nestruct.reports import Table, find_runs, paper_tables, read_groups, read_run, report_tables
from nestruct.reports.archives import unpack_runs
from nestruct.reports.paper.published import published_number, published_tables
from nestruct.reports.tables import Cell

ROOT = next(path for path in Path(__file__).parents if (path / "pyproject.toml").is_file())
SIZES = {16: "25K", 32: "50K", 64: "100K", 128: "200K", 256: "400K", 512: "800K"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with the runs of Table 3 and of the appendix."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("table3", "appendix"):
        archive = ROOT / "results" / f"{name}-runs.tar.xz"
        if not archive.is_file():
            pytest.skip("a source distribution has no results")
        unpack_runs(archive, folder)
    return folder


@pytest.fixture(scope="module")
def tables(runs) -> dict[str, Table]:
    return {t.title: t for t in report_tables(read_groups(find_runs([runs])[0]))}


def as_dicts(table: Table) -> list[dict[str, Cell]]:
    names = [": ".join(filter(None, pair)) for pair in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def on_test(run: Path, metric: str) -> float:
    """A number of a run file, read without any of our code."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return next(record for record in records if record["split"] == "test")[metric]


def test_every_number_is_as_printed():
    table = published_tables()[2]
    printed = {row.method: [n["elbo"][0] for n in row.numbers.values()] for row in table.rows}
    assert printed == {
        "SST": [-240.48, -239.49, -233.13, -233.92, -239.02, -241.03],
        "NES": [-239.40, -231.02, -232.40, -233.99, -234.29, -234.86],
    }
    sizes = [options["population_size"] for options in table.rows[1].options.values()]
    assert sizes == [60, 60, 90, 100, 100, 100]
    assert list(table.columns.values()) == list(SIZES.values())


def test_table_3_has_ours_the_papers_and_the_difference(runs, tables):
    table = tables["Table 3: models of six sizes, FashionMNIST"]
    rows = {row["parameters"].text: row for row in as_dicts(table)}
    assert list(rows) == list(SIZES.values())
    for hidden, size in SIZES.items():
        seeds = [f"table3-nes-{hidden}{end}" for end in ("", "-seed1", "-seed2")]
        values = [-on_test(runs / name, "loss_mode") for name in seeds]
        row = rows[size]
        assert row["NES: ours"].value == pytest.approx(mean(values))
        assert row["NES: ours"].spread == pytest.approx(stdev(values))
        assert row["NES: ours"].text.endswith(" (3)")
        assert row["NES: true ELBO"].value == pytest.approx(
            -mean(on_test(runs / n, "loss") for n in seeds)
        )
        # Not the better seed with early stopping, nor another learning rate.
        sst = -on_test(runs / f"table3-sst-{hidden}", "loss_mode")
        assert row["SST: ours"].value == pytest.approx(sst)
    assert rows["25K"]["NES: difference"].text == "+1.6"
    assert rows["25K"]["NES: paper"].value == -239.40
    assert rows["800K"]["SST: difference"].value == pytest.approx(
        rows["800K"]["SST: ours"].value + 241.03
    )
    assert [rows[size]["NES: N"].value for size in SIZES.values()] == [60, 60, 90, 100, 100, 100]


def test_cost_and_seeds_stand_below(tables):
    rows = {r["parameters"].text: r for r in as_dicts(tables["Table 3: what each cell cost"])}
    assert (rows["100K"]["NES: seeds"].value, rows["100K"]["SST: seeds"].value) == (3, 1)
    assert rows["100K"]["NES: decoder evaluations"].value == 117_000 * 90 * 128
    assert rows["100K"]["SST: wall-clock"].value == pytest.approx(306, abs=1)


def test_runs_with_other_settings_are_beside_the_table(runs, tables):
    rows = as_dicts(tables["Table 3: other settings"])
    found = {(r["parameters"].text, r["method"].text, r["setting"].text): r for r in rows}
    large = found["400K", "NES", "population_size 180"]
    assert large["ELBO"].value == pytest.approx(-on_test(runs / "table3-nes-256-n180", "loss_mode"))
    assert large["difference to the cell"].text == "+12.6"
    assert ("100K", "SST", "lr 0.003, patience 12") in found
    assert ("100K", "SST", "patience 12") in found
    assert len(found) == len(rows)


def test_only_runs_with_the_papers_settings_get_its_numbers(runs):
    assert published_number(read_run(runs / "table3-nes-16"), "elbo") == (-239.40, None)
    for other in ("table3-nes-16-n20", "table3-sst-16-lr3e-3", "snes-64-tensor", "fashion-nes"):
        assert published_number(read_run(runs / other), "elbo") is None, other


def test_a_size_that_was_not_run_says_so(runs):
    groups = read_groups([runs / "table3-nes-16", runs / "table3-nes-32-n20"])
    numbers, costs, others = paper_tables(groups)
    rows = {row["parameters"].text: row for row in as_dicts(numbers)}
    assert rows["25K"]["NES: ours"].text == "-242.4 (1)"
    assert rows["25K"]["SST: ours"].text == rows["50K"]["NES: ours"].text == "not run"
    assert rows["25K"]["SST: difference"].text == ""
    cost = {row["parameters"].text: row for row in as_dicts(costs)}
    assert cost["50K"]["NES: seeds"].text == "not run"
    (beside,) = as_dicts(others)
    assert beside["difference to the cell"].text == ""


def test_the_appendix_has_no_table_of_its_own(runs):
    assert paper_tables(read_groups([runs / "fashion-nes", runs / "kmnist-gsm"])) == []


def test_other_images_are_not_in_it(runs, tmp_path):
    (tmp_path / "run").mkdir()
    for file in ("config.toml", "metrics.jsonl"):
        text = (runs / "table3-nes-16" / file).read_text()
        (tmp_path / "run" / file).write_text(text.replace("fashion-mnist", "kmnist"))
    groups = read_groups([tmp_path / "run"])
    assert paper_tables(groups) == []
    numbers, *_ = paper_tables(groups, tiny="table3")
    assert numbers.title.startswith("Tiny Table 3 (not comparable)")
    assert not any("difference" in name for _, name in numbers.columns)


def test_a_tiny_table_claims_neither_the_papers_sizes_nor_its_data(runs):
    numbers, costs = paper_tables(read_groups([runs / "table3-nes-16"]), tiny="table3")
    assert numbers.title == "Tiny Table 3 (not comparable): models of six sizes"
    assert costs.title == "Tiny Table 3 (not comparable): what each cell cost"
    for table in (numbers, costs):
        assert table.columns[0] == ("", "model")
        assert [row[0].text for row in table.rows] == [f"hidden size {size}" for size in SIZES]
    first = published_tables()[0].tiny()
    assert first.title == "Tiny Table 1 (not comparable): graph layout"
    assert list(first.columns.values()) == list(published_tables()[0].columns.values())
