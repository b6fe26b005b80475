"""``nestruct reproduce``: plans, costs, a stop and a continuation, the table at the end."""

import dataclasses
import sys

import pytest
from toys import run_command

from nestruct.training import Recipe, read_recipe
from nestruct.training.plan import estimate, plan_names, read_plan


@pytest.mark.parametrize("name", plan_names())
@pytest.mark.parametrize("tiny", [False, True])
def test_every_run_of_every_plan_can_be_trained(name, tiny):
    plan = read_plan(name)
    before: set[str] = set()
    for entry in plan.entries:
        Recipe.from_tables(read_recipe(entry.recipe, plan.overrides(entry, tiny=tiny)))
        assert entry.name not in before
        assert entry.after is None or entry.after in before
        assert entry.seconds > 0
        before.add(entry.name)


def test_first_seeds_come_first_and_costs_add_up():
    plan = read_plan("table3")
    runs = list(plan.runs())
    assert [seed for _, seed in runs] == sorted(seed for _, seed in runs)
    assert len(runs) == sum(entry.seeds for entry in plan.entries)
    assert len(list(plan.runs(2))) == 2 * len(plan.entries)
    assert estimate(runs, 1) == sum(entry.seconds for entry, _ in runs)
    assert estimate(runs[:1], 12) == runs[0][0].seconds


def test_the_plan_alone_says_what_it_costs(tmp_path, capsys):
    assert run_command("reproduce", "table3", "--plan", "--run", tmp_path, "--device", "cpu") == 0
    out = capsys.readouterr().out
    assert "24 runs" in out
    assert "0 of them done" in out
    assert "on one H200" in out
    assert not list(tmp_path.iterdir())


def test_a_stop_a_continuation_and_the_table(tmp_path, capfd, monkeypatch):
    plan = read_plan("figure-bound")
    short = dataclasses.replace(plan, entries=plan.entries[:2])
    module = sys.modules["nestruct.cli.reproduce"]  # the package has the verb by that name
    monkeypatch.setattr(module, "read_plan", lambda name: short)
    words = ["reproduce", "figure-bound", "--tiny", "--run", tmp_path, "--device", "cpu"]
    assert run_command(*words, "--budget", 0.001) == 0
    assert "all is saved; the same command continues" in capfd.readouterr().out
    assert run_command(*words) == 0
    out = capfd.readouterr().out
    assert "**Methods**" in out
    assert "not comparable" in out
    assert (tmp_path / "figure-bound-tiny" / "page.html").exists()
    assert run_command(*words) == 0
    assert capfd.readouterr().out.count("already done") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1"], "there are: figure-bound"),
        (["table3", "--budget", "0"], "--budget must be positive"),
        (["table3", "--seeds", "0"], "--seeds must be positive"),
    ],
)
def test_mistakes_get_one_sentence(words, message, capsys):
    assert run_command("reproduce", *words) == 1
    assert message in capsys.readouterr().err
