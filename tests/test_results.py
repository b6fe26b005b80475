"""The published numbers: run files, the JSON made of them, and the docs agree to the digit."""

import hashlib
import json
import re
import sys
from argparse import Namespace
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

import nestruct
from nestruct.models import SubsetVAE, mlp
from nestruct.reports import read_run, write_page

ROOT = Path(__file__).parents[1]
RESULTS, BENCHMARKS, DOCS = ROOT / "results", ROOT / "benchmarks", ROOT / "docs"
FIXTURES = ROOT / "tests" / "fixtures" / "runs"
COLLECTED: tuple[str, ...] = ("table1", "table2", "table3", "table3-revival", "appendix", "demo")
COLLECTED += ("subset-dvae", "listops", "terrain", "scoreboard", "learned-covariance")
pytestmark = pytest.mark.skipif(
    not (RESULTS.is_dir() and BENCHMARKS.is_dir()),
    reason="a source distribution has no results",
)


@pytest.fixture(scope="module")
def tables() -> Any:
    """``benchmarks/tables.py``, which imports the scripts beside it."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield import_module("tables")
    finally:
        sys.path.remove(str(BENCHMARKS))


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def test_the_folder_is_small():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(files) <= 80
    assert max(path.stat().st_size for path in files) < 1e6
    assert sum(path.stat().st_size for path in files if path.suffix == ".xz") < 3e6


def test_the_pages_are_what_the_script_writes(tables):
    assert tables.docs(check=True) == []
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))
    places = re.findall(r"<!-- table: ([\w-]+) -->\n\n\|.*?\n\n<!-- end -->\n", pages, re.DOTALL)
    assert sorted(places) == sorted(tables.TABLES)


def test_a_number_that_was_edited_in_a_page_is_noticed(tables):
    page = (DOCS / "graph-layout.md").read_text(encoding="utf-8")
    edited = page.replace("| 97.3 ± 0.1 (5) |", "| 97.4 ± 0.1 (5) |", 1)
    assert edited != page
    assert tables.written(edited) == page


def test_the_figures_are_drawn_from_the_json(tables, tmp_path):
    pytest.importorskip("matplotlib")
    import_module("table_figures").draw(tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert len(drawn) == 16 + bool(read("scoreboard")["archives"])
    for name in drawn:
        assert (tmp_path / name).read_bytes().startswith((b"\x89PNG", b"<svg"))
        assert (DOCS / "figures" / name).is_file()


@pytest.mark.parametrize("name", COLLECTED)
def test_the_numbers_are_those_of_the_run_files(tables, name):
    """All of them: a JSON file that was edited by hand differs from what its archives give."""
    assert tuple(tables.COLLECTED) == COLLECTED
    text = (RESULTS / f"{name}.json").read_text(encoding="utf-8")
    assert tables.to_text(tables.COLLECTED[name]()) == text


@pytest.mark.parametrize("name", COLLECTED)
def test_every_number_names_its_seeds_its_commit_and_its_cost(name):
    data = read(name)
    assert data["protocol"]
    if not data["archives"]:
        assert not any(row["runs"] for row in data["rows"])
        pytest.skip("nothing of it was run yet, and its page says so")
    assert all((RESULTS / archive).is_file() for archive in data["archives"])
    runs, filled = data["runs"], [row for row in data["rows"] if row["runs"]]
    assert filled
    for row in filled:
        members = [runs[run] for run in row["runs"]]
        assert row["seeds"] == [run["seed"] for run in members]
        assert len(set(row["seeds"])) == len(members)
        assert row["commits"] == sorted({run["commit"] for run in members})
        assert row["seconds"] > 0
    for run in runs.values():
        assert re.fullmatch(r"[0-9a-f]{7}(-dirty)?|unknown", run["commit"])
        assert isinstance(run["seed"], int)
        assert run["seconds"] > 0
        assert run["device"]
        assert run["evaluations"] is not None or run["steps"] == 0
        assert run["configuration"] in data["configurations"]


@pytest.mark.parametrize("name", COLLECTED)
def test_a_configuration_is_named_by_its_options(name):
    data = read(name)
    for name, rest in data["configurations"].items():
        text = json.dumps(data["options"] | rest, sort_keys=True)
        assert hashlib.sha256(text.encode()).hexdigest()[:12] == name


def test_open_loop_evaluations_get_a_column_once_there_are_any(tables):
    table1, data = import_module("table1"), read("table1")
    head = table1.main_table(data).splitlines()[0]
    assert head.count("open loop") == 1  # no run with any n - 1 edges has been evaluated so
    assert "open loop" not in head[head.index("n-1 edges") :]
    for run in data["runs"].values():
        run["test"].pop(table1.OPEN_LOOP, None)
    assert "open loop" not in table1.main_table(data).splitlines()[0]
    for seed in (0, 1):  # as if two of the five had been evaluated so
        data["runs"][f"structure-nes-s{seed}"]["test"][table1.OPEN_LOOP] = 600.0 + 20 * seed
    data["runs"]["k-sst-s0"]["test"][table1.OPEN_LOOP] = 700.0
    after = table1.main_table(data).splitlines()
    assert after[0].count("open loop") == 2
    (row,) = (line for line in after if line.startswith("| StructureNES | | -422"))
    assert row.startswith("| StructureNES | | -422 ± 4 (5) | -610 ± 14 (2) | |")
    assert {line.count("|") for line in after[:-1] if line.startswith("|")} == {12}


def test_what_the_subset_vaes_page_says_of_seeds():
    runs = read("subset-dvae")["runs"]
    page = " ".join((DOCS / "subset-dvae.md").read_text(encoding="utf-8").split())

    def seeds(stem: str) -> list[dict[str, Any]]:
        return [runs[f"long/{stem}-s{seed}"] for seed in range(3)]

    rows = [seeds("straight-through"), seeds("exact-marginals")]
    first, exact = ([run["test"]["loss"] for run in row] for row in rows)
    assert max(first) < min(exact)
    welch = import_module("scipy.stats").ttest_ind(first, exact, equal_var=False)
    low, high = welch.confidence_interval(0.95)
    gap = fmean(first) - fmean(exact)
    assert f"is {gap:.1f} nats, with a 95% interval from {low:.1f} to {high:.1f}" in page
    ends = [fmean(run["curve"]["loss"][-1] for run in row) for row in rows]
    assert f"ends at {ends[0]:.1f} and exact marginals at {ends[1]:.1f}" in page
    curve = runs["long/reinforce-s0"]["curve"]
    early = curve["loss"][curve["decoded"].index(5_000_000)]
    assert f"REINFORCE is at {early:.1f} on validation data" in page


def test_what_table_1_says_of_starts_without_the_pull():
    data = read("table1")
    own = [r for r in data["rows"] if r["group"] == "no prior knowledge" and r["runs"]]
    (row,) = (r for r in own if r["row"] == "StructureNES")
    assert row["seeds"] == [0, 1, 2, 3, 4]
    assert row["commits"] == ["ddcd692"]
    assert row["decoded"] == (4 * 1_000 + 20_000) * 16 * 128  # all starts are counted
    rivals = [r for r in own if r["row"] == "SST"]
    assert [r["seeds"] for r in rivals] == [[0, 1, 2], [0, 1]]
    assert {r["decoded"] for r in rivals} == {(4 * 1_000 + 20_000) * 128}
    starts = data["single starts"]
    assert (starts["good"], starts["of"]) == (19, 24)
    # The objective on validation data, which needs no label, tells the two kinds apart.
    assert starts["loss_published"]["good"][1] < starts["loss_published"]["bad"][0]
    assert starts["f1_sample"]["bad"][1] < 0.4 < 0.86 < starts["f1_sample"]["good"][0]


def test_the_grid_paths_are_those_of_the_lines(tables):
    grid_path, data = import_module("grid_path"), read("grid-path")
    text = (RESULTS / "grid-path.json").read_text(encoding="utf-8")
    assert tables.to_text(grid_path.collect()) == text
    assert all(re.fullmatch("[0-9a-f]{7}", commit) for commit in data["commits"])
    assert {len(row["test"]) for row in data["rows"]} == {data["seeds"]} == {10}
    assert len(grid_path.settings(data)) == 16
    page = (DOCS / "grid-path.md").read_text(encoding="utf-8")
    told = grid_path.summary(data)
    assert told["ahead"] + told["equal"] <= told["settings"]
    assert f"ahead in {told['ahead']} of 16" in page


@pytest.mark.parametrize("name", ["scaling-cpu", "scaling-cuda"])
def test_figure_2_names_its_commits_and_its_cost(name):
    data = read(name)
    assert data["protocol"]
    for session in data["sessions"]:
        assert session["commit"]
        assert session["seconds"] > 0


def test_runs_of_earlier_versions_can_be_shown(tmp_path):
    folders = sorted(FIXTURES.iterdir())
    assert 3 <= len(folders) <= 6
    for folder in folders:
        run = read_run(folder)
        assert run.validation
        assert "test" in run.records
    write_page(folders, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(folder.name in page for folder in folders)


@pytest.fixture(scope="module")
def gradients(tables) -> Any:
    """``benchmarks/scoreboard_gradients.py``."""
    return import_module("scoreboard_gradients")


@pytest.mark.parametrize("structure", ["trees", "subsets"])
def test_gradients_averaged_over_noise_are_those_of_exact_chances(gradients, structure):
    """The truth for paths, where it is known to every digit too, by other code."""
    torch.manual_seed(0)
    batch = torch.randn(4, 3).sign().clamp(min=0)
    model: Any = SubsetVAE(3, num_subsets=2, num_items=4, k=2, hidden_sizes=(8,))
    if structure == "trees":
        model = nestruct.StructuredVAE(mlp(3, 6), mlp(6, 3), nestruct.SpanningTree(4))
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.mul_(3)  # at equal scores the laws are alike
    scores = model.encode(batch)
    every, _ = gradients.members(model, scores)
    losses = gradients.all_losses(model, batch, scores, every)
    flat = scores.flatten(1)
    halves = []
    for slope in gradients.conditional(flat.detach(), every.flatten(1), losses, "Gumbel", 4000, 0):
        loss = (slope * flat).sum(1).mean() + model.divergence(scores, batch).mean()
        pieces = torch.autograd.grad(loss, list(model.encoder.parameters()), retain_graph=True)
        halves.append(torch.cat([piece.flatten() for piece in pieces]).double())
    found, error = (halves[0] + halves[1]) / 2, (halves[0] - halves[1]).norm() / 2
    assert error < 0.05 * found.norm()
    exact, own_error, _ = gradients.truth(model, batch, "Gumbel", 0, 0)
    assert own_error == 0
    assert (found - exact).norm() < 3 * error
    other, *_ = gradients.truth(model, batch, "Gibbs", 0, 0)
    assert (found - other).norm() > 6 * error
    if structure == "trees":
        nestruct.Enumeration(law="perturb_and_map").backward(model, batch, seed=0)
        pieces = [p.grad.flatten() for p in model.encoder.parameters()]
        assert torch.allclose(torch.cat(pieces).double(), exact, atol=1e-6)


def test_gradients_are_measured_at_equal_decodings(gradients):
    task, options = gradients.TASKS["Paths"], Namespace(budget=4, trials=3, draws=100)
    methods = list(gradients.recipes(task, 0))
    rows = list(islice(gradients.measure(task, 0, options), len(methods)))
    assert [row["method"] for row in rows] == methods
    assert {row["stage"] for row in rows} == {"untrained"}
    for row in rows:
        assert row["decoded"] == (1 if row["law"] in ("argmax", "labels") else 4)
    (exact,) = (row for row in rows if row["method"] == "exact marginals")
    assert exact["cosine"] > 0.9999  # a regret is linear in the path: no bias and no noise
    assert exact["to_gumbel"] < 0.999


def test_gradients_name_their_seeds_their_commit_and_their_cost(gradients):
    data = read("scoreboard-gradients")
    assert data["protocol"]
    assert re.fullmatch("[0-9a-f]{7}", data["environment"]["commit"])
    assert data["environment"]["seconds"] > 0
    for name, task in gradients.TASKS.items():
        found = [(r["stage"], r["method"]) for r in data["rows"] if r["task"] == name]
        assert found == list(product(gradients.TRAINED, gradients.recipes(task, 0)))
    groups: dict[Any, list[Any]] = {}
    for run in data["runs"]:
        assert run["seconds"] >= 0
        assert run["halves"] > 0.998
        groups.setdefault((run["task"], run["stage"], run["method"]), []).append(run)
    assert [gradients.pooled(runs) for runs in groups.values()] == data["rows"]
    assert all(row["seeds"] == [0, 1, 2] for row in data["rows"])
