"""The table of smoothing gaps, from runs that measured them."""

import json

from nestruct.reports import paper_tables, read_groups
from nestruct.training import Recipe, read_recipe, train


def test_each_sigma_has_its_gap_at_three_moments(tmp_path):
    for sigma in (0.3, 0.1):
        overrides = [f"estimator.sigma={sigma}", "training.smoothing_gap=20"]
        overrides += ["training.max_steps=4", "training.eval_interval=2", "device=cpu"]
        recipe = Recipe.from_tables(read_recipe("categorical-tiny", overrides))
        train(recipe, tmp_path / str(sigma), progress=False)
    (table,) = paper_tables(read_groups([tmp_path / "0.3", tmp_path / "0.1"]))
    assert [row[0].text for row in table.rows] == ["sigma 0.1", "sigma 0.3"]
    for row, sigma in zip(table.rows, ("0.1", "0.3"), strict=True):
        lines = (tmp_path / sigma / "metrics.jsonl").read_text().splitlines()
        gaps = [json.loads(line).get("smoothing_gap") for line in lines]
        gaps = [gap for gap in gaps if gap is not None]
        assert [row[2].value, row[4].value] == [gaps[0], gaps[-1]]
        assert row[3].value in gaps
    assert table.rows[0][2].value < table.rows[1][2].value


def test_runs_without_gaps_have_no_such_table(tmp_path):
    recipe = Recipe.from_tables(
        read_recipe("categorical-tiny", ["training.max_steps=1", "device=cpu"])
    )
    train(recipe, tmp_path / "a", progress=False)
    assert paper_tables(read_groups([tmp_path / "a"])) == []
