"""Which configuration stands for a method: never the one that test data like best."""

import importlib

from nestruct.reports import read_groups
from nestruct.reports.tasks import best_of, compare_methods

write_run = importlib.import_module("reports.test_runs").write_run


def test_most_tested_seeds_come_first_then_the_best_on_validation_data(tmp_path):
    two = [write_run(tmp_path / f"two{k}", sigma=0.2, seed=k) for k in range(2)]
    one = write_run(tmp_path / "one", sigma=0.1, seed=9)
    best = best_of(read_groups([one, *two]), "f1_map")
    assert best is not None
    assert len(best.runs) == 2
    worse = write_run(tmp_path / "worse", sigma=0.3)
    best = best_of(read_groups([worse, one]), "f1_map")
    assert best is not None
    assert best.runs[0].seed == 9


def test_configurations_of_one_method_are_compared_with_one_another(tmp_path):
    folders = [write_run(tmp_path / str(k), sigma=0.1 + k, seed=k) for k in range(3)]
    found = compare_methods(read_groups(folders))
    assert found is not None
    assert [entry.mean for entry in found.tasks[0].entries] == [0.72, 0.71, 0.70]
    assert found.num_configurations == 3


def test_nothing_is_compared_where_there_is_no_number(tmp_path):
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "metrics.jsonl").write_text("")
    assert compare_methods(read_groups([tmp_path])) is None
