"""Methods at equal budgets, from curves by hand."""

import importlib
import json
import math
from pathlib import Path

import pytest

from nestruct.reports import read_groups, report_tables
from nestruct.reports.budgets import Curve, least_spent, middle, quality_table, target_table

write_run = importlib.import_module("reports.test_runs").write_run


def curve(values: list[float], decoded: int, solved: int, seconds: float, **more) -> Curve:
    """Evaluations at equal distances, each of which costs as much as the others."""
    each = {"decoded": decoded, "solved": solved, "seconds": seconds}
    spent = {kind: [cost * k for k in range(len(values))] for kind, cost in each.items()}
    return Curve(values, spent, **more)


FAST = [curve([9, 7, 6, 6.5], 10, 0, 10, test=6.1), curve([9, 6, 5], 10, 0, 12, test=5.1)]
SLOW = [curve([9, 4, 3], 40, 80, 14, test=3.5)]
POOR = [curve([9, 8.5, 8], 20, 20, 15, test=8.2)]
TASK = {"Fast": FAST, "Slow": SLOW, "Poor": POOR}


def cells(table) -> dict[str, dict[str, str]]:
    names = [": ".join(filter(None, pair)) for pair in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    return {
        row["method"].text: {
            n: f"*{c.text}" if c.best else c.text for n, c in row.items() if n != "method"
        }
        for row in rows
    }


def test_a_budget_is_the_least_that_a_run_spent():
    assert least_spent(TASK, "decoded") == 20
    assert least_spent(TASK, "solved") == 40  # a method that never calls does not count
    assert least_spent(TASK, "seconds") == 24
    found = cells(quality_table({"Toy": TASK}))
    assert found == {
        # Two seeds: 6 and 5 after 20 decodings, 6 and 5 after 24 seconds.
        "Fast": {
            "Toy: at 20 decodings": "*5.500 ± 0.707",
            "Toy: at 40 solver calls": "none needed",
            "Toy: at 24 s": "5.500 ± 0.707",
        },
        "Slow": {  # its first evaluation costs 40 decodings and 80 calls
            "Toy: at 20 decodings": "9.000",
            "Toy: at 40 solver calls": "9.000",
            "Toy: at 24 s": "*4.000",
        },
        "Poor": {
            "Toy: at 20 decodings": "8.500",
            "Toy: at 40 solver calls": "*8.000",
            "Toy: at 24 s": "8.500",
        },
    }


def test_the_target_is_where_the_middle_method_ends():
    assert middle(TASK) == 5.5
    found = cells(target_table({"Toy": TASK}))
    assert found["Fast"] == {
        "Toy: test": "5.600 ± 0.707",
        "Toy: to 5.500: decodings": "not reached (1 of 2)",  # the median of two is between them
        "Toy: to 5.500: seconds": "not reached (1 of 2)",
    }
    assert found["Slow"] == {
        "Toy: test": "*3.500",
        "Toy: to 5.500: decodings": "*40",
        "Toy: to 5.500: seconds": "*14 s",
    }
    assert found["Poor"]["Toy: to 5.500: seconds"] == "not reached"


def test_larger_may_be_better():
    task = {
        name: [Curve([-v for v in one.values], one.spent, maximize=True) for one in curves]
        for name, curves in TASK.items()
    }
    found = cells(quality_table({"Toy": task}))
    assert found["Slow"]["Toy: at 24 s"] == "*-4.000"
    assert middle(task) == -5.5
    assert SLOW[0].to_reach(5.5, "seconds") == 14
    assert task["Slow"][0].to_reach(-5.5, "seconds") == 14


def test_methods_of_one_task_only_and_costs_that_are_not_known():
    other = {"Own": [Curve([3.0], {"decoded": [None], "solved": [None], "seconds": [5.0]})]}
    found = cells(quality_table({"Toy": TASK, "Other": other}))
    assert found["Own"] == {
        **dict.fromkeys((n for n in found["Fast"] if n.startswith("Toy")), ""),
        "Other: at 5 s": "*3.000",
    }
    assert found["Slow"]["Other: at 5 s"] == ""
    target = cells(target_table({"Other": other}))
    assert target["Own"] == {
        "Other: test": "",
        "Other: to 3.000: decodings": "",
        "Other: to 3.000: seconds": "*5 s",
    }
    assert Curve([], {"decoded": [], "solved": [], "seconds": []}).end() is None
    assert SLOW[0].to_reach(1.0, "seconds") == math.inf


def titled(
    folder: Path, title: str, values: list[float], limit: str = "max_seconds = 60.0"
) -> Path:
    write_run(folder, tested=False)
    config = (folder / "config.toml").read_text()
    lines = [line for line in config.splitlines() if not line.startswith("title")]
    text = "\n".join(lines).replace("[training]", f"[training]\n{limit}")
    (folder / "config.toml").write_text(f'title = "{title}"\n{text}\n')
    records = [
        {"step": k, "split": "validation", "loss": value, "decoded": 100 * k, "solved": 0}
        | {"timing": {"seconds": 3.0 * k}}
        for k, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def test_runs_that_end_by_the_clock_are_compared_by_their_titles(tmp_path):
    runs = [titled(tmp_path / name, f"Toy, {name}", values) for name, values in
            {"A": [5.0, 4.0], "B": [5.0, 3.0, 2.0]}.items()]  # fmt: skip
    quality, target, *_ = report_tables(read_groups(runs))
    assert cells(quality) == {
        "A": {"Toy: at 100 decodings": "4.000", "Toy: at 3 s": "4.000"},
        "B": {"Toy: at 100 decodings": "*3.000", "Toy: at 3 s": "*3.000"},
    }
    assert target.title == "Cost to target, and test data"


@pytest.mark.parametrize(
    ("title", "limit"), [("No method", "max_seconds = 60.0"), ("Toy, B", 'max_seconds = "none"')]
)
def test_other_runs_are_not(tmp_path, title, limit):
    runs = [
        titled(tmp_path / "a", "Toy, A", [5.0, 4.0]),
        titled(tmp_path / "b", title, [5.0], limit),
    ]
    assert report_tables(read_groups(runs))[0].title.startswith("Methods")
