"""Tables of methods from real runs: means over seeds, what they cost, what needs no learning."""

import importlib
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import layouts
import pytest

from nestruct.reports import read_groups, read_run, report_tables
from nestruct.reports.tables import Cell, Table

# The helper that writes run folders; mypy knows that file by another name.
write_run = importlib.import_module("reports.test_runs").write_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four methods, one with two seeds and both latent spaces."""
    return layouts.small_runs(tmp_path_factory.mktemp("trained"))


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


def test_what_a_run_says_it_decoded_counts(tmp_path):
    folder = write_run(tmp_path / "run")
    assert not read_run(folder).counts_decoded  # nothing says how large its minibatches are
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [record | {"decoded": 7 * record["step"], "solved": 0} for record in records]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in told))
    run = read_run(folder)
    assert run.counts_decoded
    assert run.decoded(run.validation[-1]) == 7 * 40
    (row,) = as_dicts(report_tables(read_groups([folder]))[0])[:1]
    assert row["one run: decoder evaluations"].value == 7 * 40
    assert not any("solved" in name for name in row)


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
