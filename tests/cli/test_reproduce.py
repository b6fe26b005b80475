"""``nestruct reproduce``: plans, costs, a stop and a continuation, the table at the end."""

import dataclasses
import json
import math
import sys

import pytest
from toys import run_command

from nestruct.cli.queue import Ended, Job, cores, run_jobs
from nestruct.errors import InputError
from nestruct.reports import read_run
from nestruct.reports.paper.published import published_tables
from nestruct.training import Recipe, read_recipe
from nestruct.training.recipes.plan import estimate, plan_names, read_plan
from nestruct.wording import duration


@pytest.mark.parametrize("name", plan_names())
@pytest.mark.parametrize("tiny", [False, True])
def test_every_run_of_every_plan_can_be_trained(name, tiny):
    plan = read_plan(name, tiny=tiny)
    before: set[str] = set()
    assert plan.title
    assert bool(plan.entries) != bool(plan.bench)
    for entry in plan.entries:
        Recipe.from_tables(read_recipe(entry.recipe, plan.overrides(entry, tiny=tiny)))
        assert entry.name not in before
        assert entry.after is None or entry.after in before
        assert entry.seconds > 0
        before.add(entry.name)
    for seeds in (None, 1, 4):
        earlier = set()
        for entry, seed in plan.runs(seeds):
            start = plan.start(entry, seed)
            assert start is None or start in earlier
            earlier.add((entry.name, seed))


def test_table_2_has_every_pair_whole_and_one_start_for_all_its_seeds():
    plan, (_, table, _) = read_plan("table2"), published_tables()
    runs = list(plan.runs())
    assert len(runs) == 6 * (3 + 8 * 3 * 3)
    firsts = [entry.name for entry, _ in runs[:21]]
    assert all(name.startswith("gl_treegal-gl_ctg-") for name in firsts)  # one pair, then others
    pairs = {}
    for entry, seed in runs:
        options = dict(option.split("=") for option in entry.options)
        source, target = options["data.source"], options["data.target"]
        assert entry.name.startswith(f"{source}-{target}-")
        pairs[target] = source
        if entry.recipe.startswith("table2"):
            assert plan.start(entry, seed) == (f"{source}-{target}-decoder", 0)
    assert pairs == table.sources
    assert len(list(plan.runs(5))) == 6 * (3 + 8 * 3 * 5)  # what all start from is run once
    first = plan.entries[: 3 + 8 * 3]
    recipes = [read_recipe(e.recipe, plan.overrides(e, tiny=False)) for e in first]
    cells = {(r["estimator"]["name"], r["model"].get("structure", "projective")) for r in recipes}
    rows = {(row.estimator["name"], row.model["structure"]) for row in table.rows}
    assert rows <= cells


def test_a_plan_may_vary_another():
    base, settings = read_plan("table2"), read_plan("table2-settings")
    once = [entry for entry in base.entries if entry.once]
    assert [entry for entry in settings.entries if entry.once] == once
    names = {e.name.removesuffix("-lr1e-4"): e for e in base.entries if e.name.endswith("-lr1e-4")}
    found = [entry for entry in settings.entries if not entry.once]
    assert len(found) == 2 * len(names)
    for entry in found:
        stem, _, setting = entry.name.rpartition("-")
        assert entry.recipe == names[stem].recipe
        assert entry.options[:-1] == names[stem].options[:-1]
        key = {"trained": "model.freeze_decoder=false", "gibbs": "model.divergence=gibbs"}
        assert entry.options[-1] == key[setting]
        assert entry.after == names[stem].after
    public = read_plan("table2-public")
    assert len(public.entries) == len(once) + len(names)
    assert all(e.options[-1] == "model.public_code=true" for e in public.entries)


def test_a_plan_may_have_seeds_of_what_is_run_once_elsewhere():
    plan = read_plan("table2-sources")
    assert {entry.seeds for entry in plan.entries} == {3}
    assert not any(entry.once for entry in plan.entries)
    for entry, seed in plan.runs():
        start = plan.start(entry, seed)
        assert start is None or start[1] == seed


def test_what_is_beside_the_paper_is_not_in_all(tmp_path, capsys):
    beside = [name for name in plan_names() if read_plan(name).beside]
    assert {"table1-beside", "subset-dvae"} < set(beside)
    assert plan_names()[:3] == ["table1", "table2", "table3"]
    words = ["--plan", "--tiny", "--run", tmp_path, "--device", "cpu"]
    assert run_command("reproduce", "all", *words) == 0
    out = capsys.readouterr().out
    assert not any(f"{name}-tiny" in out for name in beside)
    assert run_command("reproduce", "table1-beside", *words) == 0
    assert "Beside Table 1" in capsys.readouterr().out


def test_tiny_runs_on_one_data_set_are_run_once():
    assert len(read_plan("figure-unstructured").entries) == 15
    plan = read_plan("figure-unstructured", tiny=True)
    assert [entry.recipe for entry in plan.entries] == [
        *("unstructured-nes", "unstructured-unbiased"),
        *("unstructured-gsm", "unstructured-gsm", "unstructured-unbiased"),
    ]
    tiny = read_plan("table2", tiny=True)
    assert [e.name for e in tiny.entries[:2]] == ["parser", "decoder"]
    for entry in tiny.entries:
        data = read_recipe(entry.recipe, tiny.overrides(entry, tiny=True))["data"]
        assert data["name"] == "grammar"
        learns_from = "target" if entry.recipe.startswith("table2") else "source"
        assert data.get("train_on", "source") == learns_from


def test_first_seeds_come_first_and_costs_add_up():
    plan = read_plan("table3")
    runs = list(plan.runs())
    assert [seed for _, seed in runs] == sorted(seed for _, seed in runs)
    assert len(runs) == sum(entry.seeds for entry in plan.entries)
    assert len(list(plan.runs(2))) == 2 * len(plan.entries)
    assert estimate(runs, 1) == sum(entry.seconds for entry, _ in runs)
    assert estimate(runs[:1], 12) == runs[0][0].seconds


def test_with_the_pull_table_1_costs_what_was_measured():
    runs = list(read_plan("table1-pull").runs())
    last = next(number for number, (entry, _) in enumerate(runs) if entry.last)
    assert estimate(runs[:last], 3) == pytest.approx(16 * 60, rel=0.05)  # all but NES
    # One run of NES fills the GPU: side by side they take turns.
    nes = [(entry, seed) for entry, seed in runs if entry.name == "pull-nes-per-pair-long"]
    assert estimate(nes, 3) == pytest.approx(3 * 90_000 * 0.0148, rel=0.001)
    (paper,) = (run for run in read_plan("table1-published").runs() if run[0].fills)
    assert estimate([paper], 5) == 50_000 * 0.155


def test_every_row_of_table_1_has_the_same_protocol_and_both_columns():
    plan = read_plan("table1")
    steps = {}
    for entry in (entry for entry in plan.entries if entry.recipe != "table1-nes"):
        tables = read_recipe(entry.recipe, entry.options)
        training, model = tables["training"], tables["model"]
        steps[entry.name] = (
            *(training["max_steps"], training["num_starts"], training["start_steps"]),
            *(model["num_rollout_steps"], model["pull"], tables["optimizer"]["lr"]),
            training["batch_size"],
        )
        assert entry.seeds >= 3
    assert set(steps.values()) == {(20_000, 4, 1_000, 1, 0.0, 1e-3, 128)}
    names = {entry.name for entry in plan.entries}
    assert names == {name.removeprefix("k-") for name in names} | {
        f"k-{name}" for name in names if not name.startswith("k-")
    }


def test_a_search_comes_before_the_seeds_that_it_decides_about(monkeypatch):
    run = {"name": "a", "recipe": "table3-nes", "seconds": 9, "seeds": 2, "options": ["seed=3"]}
    run |= {"search": ["optimizer.lr=0.1,0.2", "estimator.sigma=1,2"], "tiny": ["model.k=2"]}
    tables = {"title": "Toy", "search_options": ["training.max_steps=1"], "search_seconds": 2}
    module = sys.modules["nestruct.training.recipes.plan"]
    monkeypatch.setattr(module, "_read", lambda name: tables | {"runs": [run]})
    plan = read_plan("toy")
    names = [f"search-a-{k}" for k in (1, 2, 3, 4)]
    assert [(e.name, e.seed(n)) for e, n in plan.runs()] == [
        *((name, 1000) for name in names), ("a", 0), ("a", 1)
    ]  # fmt: skip
    assert plan.overrides(plan.entries[2], tiny=False) == [
        *("seed=3", "training.max_steps=1", "optimizer.lr=0.2", "estimator.sigma=1")
    ]
    assert plan.entries[-1].best_of == tuple(names)
    assert [entry.seconds for entry in plan.entries] == [2, 2, 2, 2, 9]
    small = read_plan("toy", tiny=True)
    assert [entry.name for entry in small.entries] == [*names[:2], "a"]
    assert small.overrides(small.entries[1], tiny=True)[-2:] == [
        "optimizer.lr=0.1",
        "estimator.sigma=2",
    ]


def test_what_takes_hours_comes_last():
    runs = [(entry.name, seed) for entry, seed in read_plan("table1").runs()]
    assert runs.index(("structure-nes", 4)) < runs.index(("nes-per-pair", 0))
    assert {name for name, _ in runs[-6:]} == {"nes-per-pair", "k-nes-per-pair"}
    more = {(entry.name, seed) for entry, seed in read_plan("table1").runs(4)}
    assert ("nes-per-pair", 3) in more


def test_the_plan_alone_says_what_it_costs(tmp_path, capsys):
    assert run_command("reproduce", "table3", "--plan", "--run", tmp_path, "--device", "cpu") == 0
    out = capsys.readouterr().out
    assert "54 runs" in out
    assert "0 of them done" in out
    assert "on one H200" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["nes-16", "table3-nes", "3", "4", "min", "03", "s"] in lines
    assert not list(tmp_path.iterdir())


def test_the_plan_of_all_says_what_is_missing_and_ends_with_the_total(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path))
    assert run_command("reproduce", "all", "--plan", "--run", tmp_path, "--device", "cpu") == 0
    out = capsys.readouterr().out
    missing = [line.split()[1] for line in out.splitlines() if line.startswith("Missing: ")]
    assert {"gl_ctg;", "vectors-ru;", "fashion-mnist;", "kmnist;"} < set(missing)
    assert "About an hour on one core" in out  # Figure 2
    plans = [plan for name in plan_names() if not (plan := read_plan(name)).beside]
    total = duration(sum(estimate(list(plan.runs()), plan.jobs) for plan in plans))
    assert f"In all: the runs that are left take about {total} on one H200" in out.splitlines()[-1]


def test_what_comes_after_a_part_that_failed_is_done_all_the_same(tmp_path, capfd, monkeypatch):
    plan = read_plan("figure-bound", tiny=True)
    short = dataclasses.replace(plan, entries=plan.entries[:1])
    module = sys.modules["nestruct.cli.reproduce"]

    def fail(*_, **__):
        raise InputError("No clock.")

    plans = {"figure-bound": short, "figure2": read_plan("figure2", tiny=True)}
    monkeypatch.setattr(module, "plan_names", lambda: list(plans))
    monkeypatch.setattr(module, "read_plan", lambda name, *, tiny: plans[name])
    monkeypatch.setattr("nestruct.cli.parts.bench", fail)
    words = ["reproduce", "all", "--tiny", "--run", tmp_path, "--device", "cpu"]
    assert run_command(*words) == 1
    out, err = capfd.readouterr()
    assert err == "nestruct: figure2: No clock.\n"
    assert (tmp_path / "figure-bound-tiny" / "page.html").exists()
    assert out.endswith("Failed, in part or in whole: figure2.\n")


def test_a_stop_a_continuation_and_the_table(tmp_path, capfd, monkeypatch):
    plan = read_plan("figure-bound")
    short = dataclasses.replace(plan, entries=plan.entries[:2])
    module = sys.modules["nestruct.cli.reproduce"]  # the package has the verb by that name
    monkeypatch.setattr(module, "read_plan", lambda name, *, tiny: short)
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


def test_the_scoreboard_searches_then_compares_at_equal_budgets(tmp_path, capfd, monkeypatch):
    plan = read_plan("scoreboard", tiny=True)
    names = ["paths-spo-plus", "paths-identity"]
    own = {e.name: e for e in plan.entries if e.name in names}
    first = {e.name: e for e in plan.entries if e.name in own[names[0]].best_of}
    second = dataclasses.replace(own[names[1]], best_of=())
    short = dataclasses.replace(plan, entries=(*first.values(), own[names[0]], second))
    module = sys.modules["nestruct.cli.reproduce"]
    monkeypatch.setattr(module, "read_plan", lambda name, *, tiny: short)
    words = ["reproduce", "scoreboard", "--tiny", "--run", tmp_path, "--device", "cpu"]
    assert run_command(*words) == 0
    out = capfd.readouterr().out
    folder = tmp_path / "scoreboard-tiny"
    runs = {path.name: read_run(path) for path in folder.iterdir() if path.is_dir()}
    assert sorted(runs) == sorted(
        [*(f"{name}-s1000" for name in first), *(f"{n}-s0" for n in names)]
    )
    tried = {name: run.value("best", "regret") for name, run in runs.items() if "search" in name}
    best = runs[min(tried, key=lambda name: tried[name] or math.inf)]
    assert runs["paths-spo-plus-s0"].option("optimizer.lr") == best.option("optimizer.lr")
    assert len({run.option("optimizer.lr") for run in runs.values()}) > 1
    assert "**Quality at equal budgets**" in out
    quality, cost = out.split("**Methods")[0].split("**Cost to target, and test data**")
    for table, winners in ((quality, 3), (cost, 3)):
        rows = [
            line for line in table.splitlines() if line.startswith(("| SPO+ |", "| Identity |"))
        ]
        assert len(rows) == 2
        assert "".join(rows).count("**") == 2 * winners  # one of each column
    assert "Table 1" not in out
    page = (folder / "page.html").read_text()
    assert "Quality at equal budgets" in page
    assert "search-" not in page


SEARCH_SECONDS = {"Paths": 4, "Trees": 15, "Subsets": 10}


def test_every_method_of_the_scoreboard_has_the_same_search():
    plan = read_plan("scoreboard")
    rows = [entry for entry in plan.entries if not entry.setting]
    assert {len(entry.best_of) for entry in rows} == {6}
    methods: dict[str, set[str]] = {}
    for entry in rows:
        recipe = Recipe.from_tables(read_recipe(entry.recipe, plan.overrides(entry, tiny=False)))
        task, method = recipe.title.split(", ")
        methods.setdefault(task, set()).add(method)
        limit = recipe.training.max_seconds
        assert limit == entry.seconds <= 60
        assert entry.seeds == (10 if task == "Paths" else 3)
    assert all(len(found) >= 8 for found in methods.values())
    assert list(methods) == ["Paths", "Trees", "Subsets"]
    for entry in plan.entries:
        if entry.setting:
            tables = read_recipe(entry.recipe, plan.overrides(entry, tiny=False))
            task = tables["title"].partition(",")[0]
            assert tables["training"]["max_seconds"] == entry.seconds == SEARCH_SECONDS[task]
    parts = [read_plan(f"scoreboard-{task}").entries for task in ("paths", "trees", "subsets")]
    assert plan.entries == tuple(entry for part in parts for entry in part)


def test_a_budget_does_not_hide_what_failed(tmp_path, capfd, monkeypatch):
    plan = read_plan("figure-bound")
    short = dataclasses.replace(plan, entries=plan.entries[:2])
    module = sys.modules["nestruct.cli.reproduce"]
    monkeypatch.setattr(module, "read_plan", lambda name, *, tiny: short)
    monkeypatch.setattr("nestruct.cli.parts.run_jobs", lambda *_, **__: Ended(1, stopped=True))
    words = ["reproduce", "figure-bound", "--tiny", "--run", tmp_path, "--device", "cpu"]
    assert run_command(*words, "--budget", 1e-6) == 1
    assert capfd.readouterr().out.endswith("Failed, in part or in whole: figure-bound.\n")
    assert run_command(*words) == 130


def test_phases_one_after_the_other_and_the_papers_table(tmp_path, capfd, monkeypatch):
    plan = read_plan("table2", tiny=True)
    short = dataclasses.replace(plan, entries=plan.entries[:3])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    module = sys.modules["nestruct.cli.reproduce"]
    monkeypatch.setattr(module, "read_plan", lambda name, *, tiny: short)
    words = ["reproduce", "table2", "--tiny", "--run", tmp_path, "--device", "cpu"]
    assert run_command(*words, "--seeds", 2) == 0
    out = capfd.readouterr().out
    folder = tmp_path / "table2-tiny"
    runs = {file.parent.name: json.loads(file.read_text()) for file in folder.glob("*/env*.json")}
    starts = {name: run["command"].partition("--init-from ")[2] for name, run in runs.items()}
    assert starts == {
        "parser-s0": "",
        "decoder-s0": "parser-s0",
        "parser-non-projective-s0": "parser-s0",
    }
    assert {run["threads"] for run in runs.values()} == {1}  # one run for each core
    heads, _, *rows = [line.split(" | ") for line in out.splitlines() if line.startswith("|")]
    assert heads[2:] == ["generated, for GL_CTG: paper", "generated, for GL_CTG: tiny |"]
    rows = {(row[0][2:], row[1]): row[2:] for row in reversed(rows) if len(row) == 4}
    uas = [
        float(rows["source only", trees][1].split()[0])
        for trees in ("projective", "non-projective")
    ]
    assert uas[0] > uas[1] > 50  # it was trained with projective trees; all trees here are
    assert rows["DPP", "projective"] == ["68.72", "not run |"]
    assert "**Tiny Table 2 (not comparable): a parser adapted" in out
    assert "these numbers are not comparable" in out
    assert "**Methods**" not in out  # the page has the rest
    assert "Methods" in (folder / "page.html").read_text()


def test_a_run_that_is_stopped_while_it_loads_did_not_fail(tmp_path):
    said: list[str] = []
    job = Job(folder=tmp_path / "run", words=["graph-layout-tiny", "device=cpu"])
    ended = run_jobs([job], 1, tell=said.append, deadline=0.0)
    assert (ended.failed, ended.stopped) == (0, True)
    assert said == [f"{tmp_path / 'run'}: stopped before it began"]
    assert cores() >= 1


@pytest.mark.parametrize("what", ["table2", "table3", "all"])
def test_without_the_data_nothing_starts(what, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("NESTRUCT_DATA", raising=False)
    monkeypatch.setenv("NESTRUCT_CACHE", str(tmp_path / "cache"))
    module = sys.modules["nestruct.cli.reproduce"]
    wanted = ["table2", "table3"]  # of all: not the 70,000 examples of Table 1
    monkeypatch.setattr(module, "plan_names", lambda: wanted)
    folder = tmp_path / "runs"
    assert run_command("reproduce", what, "--run", folder, "--device", "cpu") == 1
    out = capsys.readouterr()
    assert "NESTRUCT_DATA is not set" in out.err
    assert out.err.count("\n") == 1
    assert out.out == "Reading the data.\n"
    assert not folder.exists()
    assert run_command("reproduce", what, "--plan", "--run", folder, "--device", "cpu") == 0
    assert "should take about" in capsys.readouterr().out or what == "table3"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table3", "--budget", "0"], "--budget must be positive"),
        (["table3", "--seeds", "0"], "--seeds must be positive"),
    ],
)
def test_mistakes_get_one_sentence(words, message, capsys):
    assert run_command("reproduce", *words) == 1
    assert message in capsys.readouterr().err
