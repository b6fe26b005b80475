"""Parsers: what they note of test sentences, Table 2, and where they are right, from real runs."""

import csv
import importlib.util
import io
import json
import shutil
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from parser_runs import as_table_2, small_recipe, small_runs
from toys import run_command as run

from nestruct import InputError
from nestruct.reports import (
    find_runs,
    paper_tables,
    read_groups,
    read_run,
    report_tables,
    write_page,
)
from nestruct.reports.paper.attachment import ARCS, SENTENCES, by_test_set, compare, labels
from nestruct.reports.paper.published import published_tables
from nestruct.reports.tables import Cell, Table, to_csv
from nestruct.training import evaluate_run
from nestruct.training.details import FILE
from nestruct.training.recipes.build import build
from nestruct.training.run import fill_model, find_checkpoint

pages = importlib.import_module("reports.pages")
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    """Three phases on a generated treebank, and rows of Table 2."""
    return small_runs(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def of_table_2(trained, tmp_path_factory) -> Path:
    """The same runs, as if they had had two of the paper's treebanks."""
    folder = tmp_path_factory.mktemp("table2") / "gl_treegal-gl_ctg"
    return as_table_2(trained, folder, "gl_treegal", "gl_ctg")


def tables_of(*folders: Path) -> dict[str, Table]:
    return {t.title: t for t in report_tables(read_groups(find_runs(folders)[0]))}


def as_dicts(table: Table) -> list[dict[str, Cell]]:
    names = [": ".join(filter(None, pair)) for pair in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def noted(folder: Path) -> dict[str, Any]:
    return json.loads((folder / FILE).read_text())


def on_test(folder: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in lines if line["split"] == "test")


# ------------------------------------------------------------------ recipes


RECIPES = ("dpp", "sparsemap", "nes", "nes-non-projective", "structure-nes", "score-nes")


SETTINGS = ("freeze_decoder=true", "freeze_decoder=false", "divergence=gibbs", "public_code=true")


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_method_trains_with_a_frozen_decoder_and_with_its_own(trained, name, setting):
    experiment = build(small_recipe(f"table2-{name}", f"model.{setting}"))
    start = trained["decoder"]
    fill_model(experiment.model, find_checkpoint(start, "best")[1].model, start)
    before = {key: value.clone() for key, value in experiment.model.named_parameters()}
    batch = experiment.data.splits()["train"].minibatches(8, 0)(0)
    report = experiment.estimator.backward(experiment.model, batch, seed=0, step=0)
    experiment.optimizer.step()
    assert torch.isfinite(report.loss)
    assert report.num_failed == 0
    moved = {
        key.partition(".")[0]
        for key, value in experiment.model.named_parameters()
        if not value.equal(before[key])
    }
    assert moved == ({"parser", "decoder"} if setting == SETTINGS[1] else {"parser"})


# ------------------------------------------------------------------ attachment.json


def test_counts_add_up_to_the_metrics(trained):
    for name, folder in trained.items():
        found, test = noted(folder), on_test(folder)
        best = found["models"]["best"]
        assert best["step"] == test["best_step"], name
        assert sum(best["scored_right"]) / sum(found["scored"]) == pytest.approx(test["uas"])
        assert sum(best["words_right"]) / sum(found["words"]) == pytest.approx(test["uas_all"])
        assert sum(found["arcs"]) == sum(found["scored"])
        assert sum(best["arcs_right"]) == sum(best["scored_right"])
        assert found["arcs"][0] == len(found["words"])  # one root each
        assert found["models"]["last"]["step"] == test["step"]


def test_no_words_are_kept(trained):
    text = (trained["nes-lr1e-2"] / FILE).read_text()
    strings = set(text.split('"')[1::2])
    counts = {"words", "scored", "arcs"}
    names = {"format", "split", "test", "models", "best", "last", "step", *counts}
    assert strings == names | {f"{key}_right" for key in counts}


def test_the_last_parameters_are_told_from_the_best(trained):
    folder = trained["dpp-lr1e-2"]
    models = noted(folder)["models"]
    assert models["best"]["step"] == 0  # a rate so large is of no use
    assert models["best"] != models["last"]
    _, values = evaluate_run(folder, checkpoint="last")
    right = sum(models["last"]["scored_right"]) / sum(noted(folder)["scored"])
    assert right == pytest.approx(values["uas"])


def test_evaluate_makes_what_an_older_run_lacks(trained, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(trained["nes-lr1e-2"], copy)
    expected = noted(copy)
    (copy / FILE).unlink()
    assert run("evaluate", copy, "--split", "validation") == 0
    assert not (copy / FILE).exists()
    assert run("evaluate", copy) == 0
    assert set(noted(copy)["models"]) == {"best"}
    assert run("evaluate", copy, "--checkpoint", "last") == 0
    assert noted(copy) == expected
    (copy / FILE).write_text("{}")  # of something else: made anew
    assert run("evaluate", copy) == 0
    assert noted(copy)["words"] == expected["words"]


def test_a_damaged_file_is_refused_in_one_sentence(trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained["parser"], copy)
    broken = noted(copy)
    broken["models"]["best"]["scored_right"].pop()
    (copy / FILE).write_text(json.dumps(broken))
    with pytest.raises(InputError, match="nestruct evaluate"):
        report_tables(read_groups([copy]))


# ------------------------------------------------------------------ Table 2


def test_every_number_is_as_printed():
    table = published_tables()[1]
    printed = {
        (row.method, row.model["structure"]): [n["uas"][0] for n in row.numbers.values()]
        for row in table.rows
        if row.numbers
    }
    assert list(table.columns.values()) == [
        *("GL_CTG", "GL_TREEGAL", "ID_CSUI", "ID_GSD", "RU_GSD", "RU_TAIGA")
    ]
    assert printed == {
        ("DPP", "projective"): [68.72, 71.39, 68.23, 71.71, 71.46, 69.94],
        ("NES", "projective"): [68.92, 71.64, 68.28, 71.41, 71.82, 70.52],
        ("SparseMAP", "non-projective"): [68.57, 70.61, 68.23, 70.56, 70.99, 69.96],
        ("NES", "non-projective"): [68.67, 70.98, 68.28, 70.47, 71.01, 69.96],
    }


def test_table_2_has_the_papers_numbers_beside_ours_and_says_what_was_not_run(of_table_2):
    numbers = next(iter(tables_of(of_table_2).values()))
    assert numbers.title.startswith("Table 2")
    rows = {(row["method"].text, row["trees"].text): row for row in as_dicts(numbers)}
    nes = rows["NES", "projective"]
    seeds = [on_test(of_table_2 / name)["uas"] for name in ("nes-lr1e-2", "nes-lr1e-2-s1")]
    assert nes["GL_CTG: ours"].value == pytest.approx(100 * mean(seeds))
    assert nes["GL_CTG: ours"].text.endswith(" (2)")
    assert (nes["GL_CTG: paper"].text, nes["RU_TAIGA: paper"].text) == ("68.92", "70.52")
    assert nes["GL_CTG: difference"].value == pytest.approx(100 * mean(seeds) - 68.92)
    assert (
        nes["RU_TAIGA: difference"].text
        == rows["source only", "projective"]["GL_CTG: difference"].text
        == ""
    )
    assert nes["GL_TREEGAL: ours"].text == "not run"
    assert rows["NES", "non-projective"]["GL_CTG: ours"].text == "not run"
    for trees, name in (("projective", "parser"), ("non-projective", "parser-non-projective")):
        row = rows["source only", trees]
        assert row["GL_CTG: ours"].value == pytest.approx(100 * on_test(of_table_2 / name)["uas"])
        assert row["GL_CTG: paper"].text == ""


def test_dev_sentences_choose_the_learning_rate(of_table_2):
    runs = [read_run(of_table_2 / f"dpp-lr{rate}") for rate in ("5e-3", "1e-2")]
    best = max(runs, key=lambda r: (r.value("best", "uas") or 0, -r.option("optimizer.lr")))
    costs = as_dicts(tables_of(of_table_2)["Table 2: what each cell cost"])
    dpp = next(row for row in costs if row["method"].text == "DPP")
    assert f"rate {best.option('optimizer.lr'):g}" in dpp["GL_CTG"].text
    assert "epoch" in dpp["GL_CTG"].text


def test_differences_are_paired_over_sentences(of_table_2):
    tables = tables_of(of_table_2)
    rows = {
        (row["method"].text, row["trees"].text, row["against"].text): row
        for row in as_dicts(tables["Table 2: differences"])
    }
    assert set(rows) == {
        ("DPP", "projective", "source only"),
        ("NES", "projective", "source only"),
        ("NES", "projective", "DPP"),
        ("StructureNES", "projective", "source only"),
        ("StructureNES", "projective", "DPP"),
        ("SparseMAP", "non-projective", "source only"),
    }
    cell = rows["NES", "projective", "source only"]["GL_CTG"]
    source = on_test(of_table_2 / "parser")["uas"]
    seeds = [on_test(of_table_2 / name)["uas"] for name in ("nes-lr1e-2", "nes-lr1e-2-s1")]
    assert cell.value == pytest.approx(100 * (mean(seeds) - source))
    assert cell.extra["from"] <= cell.value <= cell.extra["to"]
    last = as_dicts(tables["Table 2: after the last epoch, against source only"])
    dpp = next(row for row in last if row["method"].text == "DPP")
    assert dpp["GL_CTG"].extra["to"] < 0  # so large a rate does harm, which selection hides


def test_other_settings_stand_beside_the_table(of_table_2):
    (row,) = as_dicts(tables_of(of_table_2)["Table 2: other settings"])
    assert (row["method"].text, row["setting"].text) == ("DPP", "decoder trained too")
    assert row["treebanks"].text == "GL_TREEGAL to GL_CTG"
    assert row["difference to: the cell"].value is not None


def test_runs_without_counts_say_so(of_table_2, tmp_path):
    for name in ("parser", "nes-lr1e-2"):
        shutil.copytree(of_table_2 / name, tmp_path / name)
    (tmp_path / "nes-lr1e-2" / FILE).unlink()
    rows = as_dicts(tables_of(tmp_path)["Table 2: differences"])
    assert {row["GL_CTG"].text for row in rows} == {"not counted"}


def test_tiny_runs_are_in_the_tables_rows_and_marked(trained):
    groups = read_groups(trained.values())
    assert not paper_tables(groups)
    assert not paper_tables(groups, tiny="table3")
    numbers, differences, *_ = paper_tables(groups, tiny="table2")
    assert numbers.title.startswith("Tiny Table 2 (not comparable): a parser")
    assert differences.title == "Tiny Table 2 (not comparable): differences"
    assert "nothing here can be compared" in numbers.notes[0]
    rows = {(row["method"].text, row["trees"].text): row for row in as_dicts(numbers)}
    source = rows["source only", "projective"]["generated, for GL_CTG: tiny"]
    assert source.value == pytest.approx(100 * on_test(trained["parser"])["uas"])
    assert rows["DPP", "projective"]["generated, for GL_CTG: paper"].text == "68.72"
    assert not any("difference" in name for name in rows["DPP", "projective"])


def test_only_the_papers_pairs_are_in_its_table(trained, tmp_path):
    folder = as_table_2({"parser": trained["parser"]}, tmp_path, "ru_gsd", "gl_ctg")
    assert not any(title.startswith("Table 2") for title in tables_of(folder))
    assert not any(title.startswith("Table 2") for title in tables_of(trained["parser"]))


# ------------------------------------------------------------------ by length


def test_buckets_hold_every_word_once(trained):
    tables = tables_of(trained["parser"])
    found = noted(trained["parser"])
    best = found["models"]["best"]
    sizes, shares = as_dicts(tables["Attachment by sentence length"])
    assert sizes["test"].text == "generated treebank"
    for low, high, name in zip(SENTENCES, (*SENTENCES[1:], 999), labels(SENTENCES), strict=True):
        inside = [k for k, n in enumerate(found["words"]) if low <= n < high]
        words = sum(found["scored"][k] for k in inside)
        assert sizes[f"UAS (%): {name}"].value == words
        if words:
            right = sum(best["scored_right"][k] for k in inside)
            assert shares[f"UAS (%): {name}"].value == pytest.approx(100 * right / words)
    sizes, shares = as_dicts(tables["Attachment by arc length"])
    columns = [f"UAS (%): {name}" for name in labels(ARCS)]
    assert sum(sizes[name].value or 0 for name in columns) == sum(found["scored"])
    assert shares["UAS (%): root"].value == pytest.approx(
        100 * best["arcs_right"][0] / len(found["words"])
    )


def test_parsers_of_a_test_set_are_compared(trained, of_table_2):
    (one,) = by_test_set(read_groups(find_runs([of_table_2])[0]))
    assert one.name == "GL_TREEGAL to GL_CTG"
    assert set(one.parsers) == {
        "source only, projective",
        "DPP, projective",
        "NES, projective",
        "StructureNES, projective",
        "source only, non-projective",
        "SparseMAP, non-projective",
    }
    groups = list(one.parsers.values())
    same = compare(groups[0], groups[0])
    assert same is not None
    assert same.value == 0
    (generated,) = by_test_set(read_groups(trained.values()))
    assert not any("phase 2" in name for name in generated.parsers)  # the same parser again


def test_the_page_draws_them(of_table_2, tmp_path):
    write_page(find_runs([of_table_2])[0], tmp_path / "page.html")
    page = pages.parse(tmp_path / "page.html")
    section = page.one(id="attachment-by-length")
    figures = list(section.all("figure", kind="chart"))
    # All six by length, then what the last epoch changed, of those that were adapted.
    counts = [len(list(figure.all("path", kind="mean"))) for figure in figures]
    assert counts == [6, 6, 4, 4]
    assert len(list(section.all("details"))) == 2
    charts = [
        figure.attributes["data-chart"] for figure in page.one(id="curves-main").all("figure")
    ]
    assert set(charts) == {"validation-uas", "validation-nll"}
    starts = {
        player.attributes["data-name"].partition(":")[0]: next(
            panel.one("b").text
            for panel in player.all("figure")
            if panel.attributes["data-panel"] == "untrained"
        )
        for player in page.all("div", kind="player")
    }
    assert {name for name, first in starts.items() if first == "untrained"} == {
        "source only, projective"
    }
    assert len(starts) > 5
    assert set(starts.values()) == {"untrained", "start"}
    words = [word.text for word in next(page.all("div", kind="player")).all("text", kind="word")]
    scene = json.loads((of_table_2 / "parser/structures.jsonl").read_text().splitlines()[0])
    first = scene["drawing"]["words"][0]
    assert words[: len(first) + 1] == ["root", *first]


@pages.in_browser
def test_a_browser_draws_arcs_without_complaint(of_table_2, tmp_path):
    write_page([of_table_2 / "nes-lr1e-2"], tmp_path / "page.html")
    dom, complaints = pages.opened(tmp_path / "page.html")
    assert complaints == []
    assert 'class="structure arc"' in dom
    assert "banoun" in dom or "noun" in dom


def test_csv_has_the_ends_of_intervals(of_table_2):
    table = tables_of(of_table_2)["Table 2: differences"]
    _, *rest = to_csv(table).splitlines()
    first, *_ = csv.DictReader(io.StringIO("\n".join(rest)))
    cell = as_dicts(table)[0]["GL_CTG"]
    for name in ("from", "to", "better in"):
        assert float(first[f"GL_CTG, {name}"]) == pytest.approx(cell.extra[name])


# ------------------------------------------------------------------ the scripts behind Table 2


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_kept_has_no_word_of_a_treebank(of_table_2, trained, tmp_path):
    keep = script("keep_runs").keep
    for name, source in (("real", of_table_2), ("generated", trained["parser"].parent)):
        assert keep(source / "nes-lr1e-2", tmp_path / name)
    text = "".join(file.read_text() for file in (tmp_path / "real").iterdir())
    words = json.loads((of_table_2 / "nes-lr1e-2/structures.jsonl").read_text().splitlines()[0])
    for sentence in words["drawing"]["words"]:
        assert not any(f'"{word}"' in text for word in sentence)
    run = read_run(tmp_path / "real")
    assert run.scene is not None
    assert set(run.scene["drawing"]) == {"labels"}
    assert run.frames[0]["step"] == 0
    assert run.details == read_run(of_table_2 / "nes-lr1e-2").details
    generated = read_run(tmp_path / "generated").scene
    assert generated is not None
    assert "words" in generated["drawing"]
    write_page([tmp_path / "real"], tmp_path / "page.html")
    player = next(pages.parse(tmp_path / "page.html").all("div", kind="player"))
    assert [word.text for word in player.all("text", kind="word")][:2] == ["root", "det"]
