"""The page: what it says, that it is safe and whole, and that a browser really draws it."""

import importlib
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import nestruct
from nestruct import InputError
from nestruct.data import Patterns
from nestruct.models import CategoricalVAE
from nestruct.reports import read_groups, write_page
from nestruct.reports.curves import thin
from nestruct.reports.tables import NOTHING
from nestruct.wording import count, duration, number

# The helpers that write run folders and read pages; mypy knows those files by other names.
write_run = importlib.import_module("reports.test_runs").write_run
pages = importlib.import_module("reports.pages")

TRUE = [[[0], [4], [7]], [[1], [2], [3]]]
FIRST = [[[0], [1], [2]], [[1], [2], [3]]]
LAST = [[[0], [4], [7]], [[1], [2], [5]]]
PATHS = [[[[node, 0.0], [node + 0.5, node % 2]] for node in range(5)]] * 2
SCENE = {
    "format": 1,
    "structure": "SpanningTree",
    "options": {"num_nodes": 5},
    "true": TRUE,
    "drawing": {"paths": PATHS},
    "references": {"chance": {"f1": 0.4}, "shortest tree": {"f1": 0.7}},
}
FRAMES = [{"step": 0, "map": FIRST}, {"step": 40, "map": LAST}]
HOSTILE = "</script><script>document.title = 'owned'</script><b>& {{data}}"


made = pages.payload  # the data inside a page


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two groups: three seeds and one unfinished run."""
    seeds = [
        write_run(tmp_path / f"a/seed{k}", seed=k, scene=SCENE, frames=FRAMES) for k in range(3)
    ]
    return [*seeds, write_run(tmp_path / "b", sigma=0.3, steps=20, tested=False)]


def test_a_page_says_what_came_out(runs, tmp_path):
    write_page(runs, tmp_path / "page.html")
    page, data = pages.parse(tmp_path / "page.html"), made(tmp_path / "page.html")
    assert page.one("h1").text == page.one("title").text == "Small trees"
    assert [sentence.text for sentence in page.all("p", kind="sentence")] == [
        "sigma 0.1F1 of the most likely tree rose from 0.410 to 0.710 (chance 0.400, shortest tree "
        "0.700) in 1 min (of 1 min 20 s in all), 3 k forward evaluations, no gradient; mean of 3 "
        "seeds. "
        "On test data: 0.710.",
        "sigma 0.3F1 of the most likely structure rose from 0.400 to 0.600 in 40 s, 2 k forward "
        "evaluations, no gradient. Unfinished at step 20.",
    ]
    assert [run["name"] for run in data["runs"]] == ["seed0", "seed1", "seed2", "b"]
    charts = [(chart["split"], chart["metric"], chart["main"]) for chart in data["charts"]]
    assert charts == [
        ("validation", "loss", True),
        ("validation", "f1_map", True),
        ("train", "loss", True),
        ("train", "grad_norm", False),  # what never changes (failed: 0) is left out
    ]
    assert data["charts"][1]["references"] == [{"chance": 0.4, "shortest tree": 0.7}, {}]
    assert data["charts"][2]["spread"] == "loss_std"


def test_results_are_means_and_standard_deviations_over_seeds(runs, tmp_path):
    write_page(runs, tmp_path / "page.html")
    row, other = pages.rows(pages.parse(tmp_path / "page.html"), "results")
    assert row["F1 of the most likely tree test"] == "0.710 ± 0.010"
    assert row["loss best step"] == "7.250"
    assert row["runs"] == "3 seeds"
    costs = [row[f"cost of one run {key}"] for key in ("wall-clock", "in the solver")]
    assert costs == ["1 min 20 s", "25 %"]
    assert other["loss test"] == NOTHING


def test_methods_are_called_by_their_names(tmp_path):
    folders = []
    for name in ("NES", "SST"):
        folder = write_run(tmp_path / name, title=f"A long title that ends with {name}")
        config = (folder / "config.toml").read_text().replace('name = "NES"', f'name = "{name}"')
        (folder / "config.toml").write_text(config)
        folders.append(folder)
    assert {group.label for group in read_groups(folders)} == {"NES", "SST"}
    other = write_run(tmp_path / "other", title="Other trees")
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(f"{config}\n[data]\nnum_nodes = 7\n")
    labels = {group.label for group in read_groups([*folders, other])}
    assert labels == {"NES", "SST", "NES, num_nodes 7"}
    assert {group.label for group in read_groups([folders[0], other])} == {
        "A long title that ends with NES",
        "Other trees",
    }


def test_a_title_that_is_not_true_names_nothing(tmp_path):
    """REINFORCE in the place of the recipe's own estimator."""
    told = "Unstructured VAE, exact gradient by enumeration"
    for recipe, title, heading in (
        ("unstructured-unbiased", told, "Reinforce"),
        ("unstructured-unbiased", f"{told}: set data.dataset", "Reinforce"),  # as it once was
        ("unstructured-unbiased", "Without a baseline", "Without a baseline"),
        ("my-own", told, told),
    ):
        folder = write_run(tmp_path / f"{recipe} {title}", title=title)
        config = (folder / "config.toml").read_text().replace('"NES"', '"Reinforce"')
        (folder / "config.toml").write_text(config.replace('"tiny"', f'"{recipe}"'))
        write_page([folder], tmp_path / "page.html")
        assert pages.parse(tmp_path / "page.html").one("h1").text == heading


def test_what_differs_between_groups_is_marked(runs, tmp_path):
    write_page(runs, tmp_path / "page.html")
    page = pages.parse(tmp_path / "page.html")
    rows = {row["key"]: row for row in pages.rows(page, "configuration")}
    assert rows["≠ estimator.sigma"] == {
        "key": "≠ estimator.sigma",
        "sigma 0.1": "0.1",
        "sigma 0.3": "0.3",
    }
    assert rows["≠ seed"]["sigma 0.1"] == "0, 1, 2"
    assert rows["training.maximize"]["sigma 0.3"] == "false"
    marked = page.one(id="configuration").all("tr", kind="differs")
    assert [row.children[0].text for row in marked] == ["≠ seed", "≠ estimator.sigma"]
    assert (
        "4 runs: 4 min 40 s of wall-clock in all, 14 k forward" in page.one(id="environment").text
    )


def test_runs_of_the_same_data_share_one_scene(runs, tmp_path):
    write_page(runs, tmp_path / "page.html")
    data = made(tmp_path / "page.html")
    assert len(data["scenes"]) == 1
    assert data["scenes"][0]["true"] == TRUE
    found = [run["structures"] for run in data["runs"]]
    expected = {"scene": 0, "steps": [0, 40], "maps": [FIRST, LAST], "learned": 1}
    assert found[0] == expected | {"illustrations": [], "start": "untrained"}
    assert found[3] is None


# Two examples of 2 x 3 pixels in one of three categories; best is step 30.
PICTURES = {
    "format": 1,
    "structure": "Categorical",
    "options": {"num_classes": 3},
    "true": None,
    "drawing": {"images": [["101", "010"], ["000", "111"]]},
}


def pictures(folder: Path, num_frames: int = 41, seed: int = 0) -> Path:
    """A run that shows its model at every step: what its categories decode to gets darker."""
    frames = []
    for step in range(num_frames):
        darker = [f"{step % 16:x}" * 3] * 2
        model = {"prototypes": [["000", "fff"], ["08f", "f80"], darker], "samples": [darker] * 4}
        frames.append({"step": step, "map": [[[step % 3]], [[2]]], "model": model})
    return write_run(folder, seed=seed, scene=PICTURES, frames=frames)


def test_a_page_keeps_the_model_at_a_few_evaluations(tmp_path):
    folders = [pictures(tmp_path / f"{k:02}", seed=k) for k in range(20)]
    write_page(folders[:1], tmp_path / "page.html")
    found = made(tmp_path / "page.html")["runs"][0]["structures"]
    kept = [found["steps"][shown["frame"]] for shown in found["illustrations"]]
    assert len(kept) == 12
    assert kept == sorted(kept)
    assert {0, 30, 40} <= set(kept)
    assert [shown["samples"][0][0] for shown in found["illustrations"]] == [
        f"{step % 16:x}" * 3 for step in kept
    ]
    write_page(folders, tmp_path / "page.html")
    for run in made(tmp_path / "page.html")["runs"]:
        found = run["structures"]
        assert [shown["frame"] for shown in found["illustrations"]] == [found["learned"]]


def test_a_model_that_shows_itself_is_in_its_run_folder(tmp_path):
    data = Patterns(num_patterns=3, side=4, num_train=20, num_validation=5)
    splits = data.splits()
    vae = CategoricalVAE(data.num_inputs, hidden_size=4, num_classes=3)
    nestruct.fit(
        vae,
        nestruct.Enumeration(),
        torch.optim.Adam(vae.parameters()),
        splits["train"],
        validation=splits["validation"],
        run=tmp_path / "run",
        describe=data.drawing,
        max_steps=4,
        eval_interval=2,
        progress=False,
    )
    text = (tmp_path / "run/structures.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()][1:]
    assert [line["step"] for line in lines] == [0, 2, 4]
    for line in lines:
        sizes = {name: [len(rows) for rows in images] for name, images in line["model"].items()}
        assert sizes == {"prototypes": [4] * 3, "samples": [4] * 10}
    write_page([tmp_path / "run"], tmp_path / "page.html")
    page = made(tmp_path / "page.html")
    assert len(page["scenes"][0]["drawing"]["images"]) == 5
    shown = page["runs"][0]["structures"]["illustrations"]
    assert shown == [{"frame": k} | line["model"] for k, line in enumerate(lines)]


def test_a_model_that_is_no_object_is_named_with_its_line(tmp_path):
    frames = [{"step": 0, "map": [[[1]]], "model": "x"}]
    folder = write_run(tmp_path / "run", scene=PICTURES, frames=frames)
    with pytest.raises(InputError, match="line 2: 'model' must be an object"):
        write_page([folder], tmp_path / "page.html")


@pytest.mark.parametrize("name", ["NES", "SNES", "REBAR"])
def test_only_searches_are_said_to_need_no_gradient(tmp_path, name):
    folder = write_run(tmp_path / "run")
    config = (folder / "config.toml").read_text().replace('"NES"', f'"{name}"')
    (folder / "config.toml").write_text(config)
    write_page([folder], tmp_path / "page.html")
    said = pages.parse(tmp_path / "page.html").one("p", kind="sentence").text
    assert ("no gradient" in said) == (name != "REBAR")


def test_nothing_in_a_run_can_leave_its_place(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "config.toml").write_text(f'title = """{HOSTILE}"""\n')
    write_page([folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert pages.parse(tmp_path / "page.html").one("h1").text == HOSTILE
    assert page.count("</script>") == page.count("<script") == 2
    assert "<b>&" not in page


def test_a_page_needs_nothing_from_elsewhere(runs, tmp_path):
    write_page(runs, tmp_path / "page.html", title="Mine")
    page = (tmp_path / "page.html").read_text()
    assert set(re.findall(r"https?://[^\s\"']*", page)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page
    assert not re.search(r"\b(src|href)=", page)
    assert "<h1>Mine</h1>" in page


def test_fifty_runs_stay_below_a_megabyte(tmp_path):
    folders = [
        write_run(tmp_path / f"{k:02}", seed=k, steps=1000, max_steps=1000) for k in range(50)
    ]
    write_page(folders, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 1_000_000
    curves = [run["curves"]["train"]["x"]["step"] for run in made(tmp_path / "page.html")["runs"]]
    assert all(len(x) <= 400 and (x[0], x[-1]) == (1, 1000) for x in curves)


def test_a_curve_keeps_its_ends(tmp_path):
    write_page([write_run(tmp_path / "run", steps=3000)], tmp_path / "page.html")
    steps = made(tmp_path / "page.html")["runs"][0]["curves"]["train"]["x"]["step"]
    assert (len(steps), steps[0], steps[-1]) == (400, 1, 3000)
    for length in (1, 2, 399, 400, 401, 5000):
        kept = thin(length, 400, keep=length // 3)
        assert len(kept) <= 400
        assert kept == sorted(set(kept))
        assert {0, length // 3, length - 1} <= set(kept)


def test_how_a_run_was_started_is_told_with_the_run(tmp_path):
    for k in range(2):
        folder = write_run(tmp_path / f"{k}", seed=k)
        text = json.dumps({"python": "3.11", "command": f"nestruct train --seed {k}"})
        (folder / "environment.json").write_text(text)
    write_page([tmp_path / "0", tmp_path / "1"], tmp_path / "page.html")
    page = pages.parse(tmp_path / "page.html")
    environment = list(page.one(id="environment").all("table"))[1]
    assert [cell.text for cell in environment.all("td")] == ["python", "3.11"]
    written = [pre.text for pre in page.all("pre")]
    assert written[1].startswith("# command: nestruct train --seed 1\nrecipe")


def test_a_run_that_has_just_begun_makes_a_page(tmp_path):
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "split": "validation", "loss": null}\n')
    write_page([tmp_path, tmp_path], tmp_path / "page.html")
    said = pages.parse(tmp_path / "page.html").one("p", kind="sentence").text
    assert said == "No validation results yet. Unfinished at step 0."
    data = made(tmp_path / "page.html")
    assert len(data["runs"]) == 1
    assert data["charts"] == []


def test_numbers_are_said_as_one_says_them():
    values = (0.8734, 12.3449, 123.45, 1204.2, 0, -0.5, 0.0001234)
    assert [number(v) for v in values] == [
        "0.873",
        "12.34",
        "123.5",
        "1,204",
        "0",
        "-0.500",
        "0.00012",
    ]
    assert number(0.0004, like=0.87) == "0.000"
    assert [count(v) for v in (950, 4000, 12_345, 1_240_000, 3e9)] == [
        "950",
        "4 k",
        "12 k",
        "1.2 M",
        "3 G",
    ]
    times = (0.0123, 3.21, 42, 59.7, 140, 3900)
    said = ["0.012 s", "3.2 s", "42 s", "1 min", "2 min 20 s", "1 h 05 min"]
    assert [duration(t) for t in times] == said


def test_mistakes_leave_nothing_behind(runs, tmp_path, monkeypatch):
    target = tmp_path / "out"
    target.mkdir()
    for folders, path, message in [
        ([], target / "page.html", "No run folder"),
        ([tmp_path / "nowhere"], target / "page.html", "not a folder"),
        (runs, target, "is a folder: name a file in it"),
        (runs, target / "deeper/page.html", "there is no folder .*deeper"),
    ]:
        with pytest.raises(InputError, match=message):
            write_page(folders, path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (target / "page.html").write_text("the old page")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_page(runs, target / "page.html")
    assert [file.name for file in target.iterdir()] == ["page.html"]
    assert (target / "page.html").read_text() == "the old page"


# ------------------------------------------------------------------ in a browser

in_browser, opened, with_script = pages.in_browser, pages.opened, pages.with_script


def edges(dom: str, panel: str) -> Counter[str]:
    """How many edges of each mark are drawn in the panels of one kind."""
    figures = re.findall(rf'<figure data-panel="{panel}">(.*?)</figure>', dom, re.S)
    return Counter(re.findall(r'class="edge (\w+)"[^>]*data-part', " ".join(figures)))


@in_browser
def test_a_browser_draws_the_figures_without_complaint(runs, tmp_path):
    write_page(runs, tmp_path / "page.html")
    dom, complaints = opened(tmp_path / "page.html")
    assert complaints == []
    assert edges(dom, "true") == {"true": 6}
    assert edges(dom, "untrained") == {"right": 4, "wrong": 2, "missed": 2}
    assert edges(dom, "learned") == {"right": 5, "wrong": 1, "missed": 1}
    assert "3 of 3 edges" in dom
    assert "step 40: 5 of 6 right" in dom
    assert re.findall(r'data-chart="([\w-]+)"', dom) == [
        "validation-loss",
        "validation-f1_map",
        "train-loss",
        "train-grad_norm",
    ]
    assert dom.count('class="mean"') == 8
    assert dom.count('class="reference"') == 2
    assert "NaN" not in dom


@in_browser
def test_a_loss_that_fell_by_thirty_decades_has_few_marks(tmp_path):
    folder = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in lines:
        if record["split"] == "train":
            record["loss"] = 10.0 ** (30 - 0.75 * record["step"])
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    write_page([folder], tmp_path / "page.html")
    for dom in (opened(tmp_path / "page.html")[0], (tmp_path / "page.html").read_text()):
        chart = next(
            svg for svg in re.findall(r"<svg.*?</svg>", dom, re.S) if "loss (train)" in svg.lower()
        )
        marks = re.findall(r'<text class="axis"[^>]*text-anchor="end"[^>]*>([^<]*)<', chart)
        assert "1e25" in marks
        assert 4 <= len(marks) <= 8


@in_browser
def test_every_control_can_be_used(runs, tmp_path, monkeypatch):
    with_script(
        monkeypatch,
        """
        const all = (selector) => [...document.querySelectorAll(selector)];
        all("input[type=radio]").forEach((input) => input.click());
        all("input[type=checkbox]").forEach((input) => { input.click(); input.click(); });
        all("#curves-controls input[type=checkbox]")[1].click();
        all("#curves-groups input")[1].click();
        all("[data-figure=curve]").forEach((drawing) => {
          drawing.dispatchEvent(new PointerEvent("pointermove", { clientX: 200 }));
          drawing.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
        });
        const widths = all(".readout .swatch").map((line) => line.getBoundingClientRect().width);
        document.body.dataset.widths = widths.join(" ");
        all("th button").forEach((button) => button.click());
        all("#results th button")[0].click();
        all("#results th button")[0].click();
        const set = (selector, value, event) => all(selector).forEach((control) => {
          control.value = value;
          control.dispatchEvent(new Event(event));
        });
        set("select", 2, "change");
        set("input[type=range]", 0, "input");
        """,
    )
    write_page(runs, tmp_path / "page.html")
    dom, complaints = opened(tmp_path / "page.html")
    assert complaints == []
    assert edges(dom, "learned") == {"right": 4, "wrong": 2, "missed": 2}
    assert dom.count('class="mean"') == 4
    assert dom.count('class="single"') == 12
    assert "seconds (log)" in dom
    assert len(re.findall(r'<div class="readout" style="[^"]*"><b>seconds', dom)) == 4
    assert 'data-widths="30 30 30' in dom  # the read-out's swatches keep their size inside a chart
    first = re.search(r'id="results".*?<tbody>\s*<tr><td class="first">([^<]*)<', dom, re.S)
    assert first
    assert first[1] == "sigma 0.3"
    assert "NaN" not in dom


def test_a_chart_with_nothing_to_draw_is_hidden(runs, tmp_path):
    """A run that was only evaluated, over another structure: no place on a logarithmic axis."""
    only = write_run(tmp_path / "only", sigma=0.5, steps=0, tested=False)
    for folder, structure in ((runs[-1], "spanning-tree"), (only, "k-subset")):
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(f'{config}[model]\nstructure = "{structure}"\n')
    write_page([runs[-1], only], tmp_path / "page.html")
    page = pages.parse(tmp_path / "page.html")
    figures = list(page.one(id="curves-main").all("figure"))
    shown = [f.one("h3").text for f in figures if "hidden" not in f.attributes]
    assert len(shown) == 3
    assert all(label.endswith(", spanning tree") for label in shown)
    assert [f.text for f in figures if "hidden" in f.attributes] == [""] * 3


@in_browser
@pytest.mark.parametrize(("button", "lines"), [("all", 8), ("none", 0)])
def test_all_groups_and_none_can_be_chosen_at_once(runs, tmp_path, monkeypatch, button, lines):
    click = f"""
        const buttons = [...document.querySelectorAll("#curves-groups button")];
        document.querySelector("#curves-groups input").click();
        buttons.find((found) => found.textContent === "{button}").click();
        const boxes = [...document.querySelectorAll("#curves-groups input")];
        document.body.dataset.chosen = boxes.filter((box) => box.checked).length;
        const lines = [...document.querySelectorAll("figure:not([hidden]) .mean")];
        document.body.dataset.lines = lines.length;
        document.body.dataset.none = !document.getElementById("curves-none").hidden;
        """
    with_script(monkeypatch, click)
    write_page(runs, tmp_path / "page.html")
    dom, complaints = opened(tmp_path / "page.html")
    assert complaints == []
    assert f'data-lines="{lines}"' in dom
    assert f'data-chosen="{2 if lines else 0}"' in dom
    assert f'data-none="{"false" if lines else "true"}"' in dom


@in_browser
def test_images_are_drawn_beside_what_the_model_decodes(tmp_path, monkeypatch):
    with_script(
        monkeypatch,
        """
        const first = (kind) => document.querySelectorAll(`[data-figure=${kind}]`);
        const alphas = (canvas) => [...canvas.getContext("2d").getImageData(0, 0, 3, 2).data]
          .filter((_, k) => k % 4 === 3).join(" ");
        document.body.dataset.image = alphas(first("image")[0]);
        document.body.dataset.prototype = alphas(first("prototype")[1]);
        document.body.dataset.before = alphas(first("prototype")[2]);
        document.body.dataset.said = document.querySelector(".model").textContent;
        const slider = document.querySelector("input[type=range]");
        slider.value = 5;
        slider.dispatchEvent(new Event("input"));
        document.body.dataset.after = alphas(first("prototype")[2]);
        """,
    )
    write_page([pictures(tmp_path / "run")], tmp_path / "page.html")
    dom, complaints = opened(tmp_path / "page.html")
    assert complaints == []
    figures = Counter(re.findall(r'data-figure="(image|prototype|sample)"', dom))
    assert figures == {"image": 2, "prototype": 3, "sample": 4}
    assert 'data-image="255 0 255 0 255 0"' in dom
    assert 'data-prototype="0 136 255 255 136 0"' in dom
    before = 255 * (30 % 16) // 15
    assert f'data-before="{" ".join([str(before)] * 6)}"' in dom
    said = re.search(r'data-said="([^"]*)"', dom)
    assert said
    assert "at step 30, and how many of the 2 examples" in said[1]
    assert "category 0" + "1 example" + "category 1" + "no example" in said[1]
    # At step 5 the categories are those found there; the model is of the last step that was kept.
    after = 255 * 4 // 15
    assert f'data-after="{" ".join([str(after)] * 6)}"' in dom
    assert "at step 4, and how many" in dom
    assert re.findall(r"<b>(untrained|step 5)</b><br>([^<]*)<", dom) == [
        ("untrained", "category 0"),
        ("step 5", "category 2"),
        ("untrained", "category 2"),
        ("step 5", "category 2"),
    ]
    assert "right class" not in dom.partition('<script type="application/json"')[0]


OTHERS: dict[str, tuple[dict[str, Any], list[Any] | None, list[Any], str]] = {
    "ProjectiveTree": ({}, [[[0, 2], [2, 1]]], [[[0, 2], [0, 1]]], "1 of 2 arcs"),
    "KSubset": ({"num_items": 6, "k": 2}, [[[0], [5]]], [[[0], [5]]], "2 of 2 items"),
    "Categorical": ({"num_classes": 4}, [[[1]]], [[[2]]], "0 of 1 class<"),
    "Permutation": ({"size": 2}, [[[0, 1], [1, 0]]], [[[0, 1], [1, 0]]], "2 of 2 places"),
    "BlackBox": ({"shape": [2, 2, 3]}, None, [[[1, 0, 2]]], 'data-part="1,0,2"'),
    "SpanningTree": ({"num_nodes": 3}, None, [[[0], [2]]], 'class="edge plain"'),
}


@in_browser
def test_every_structure_has_a_drawing(tmp_path, monkeypatch):
    folders = []
    for name, (options, true, chosen, _) in OTHERS.items():
        scene = {"format": 1, "structure": name, "options": options, "true": true, "drawing": None}
        frames = [{"step": 0, "map": chosen}]
        folders.append(write_run(tmp_path / name, title=name, scene=scene, frames=frames))
    with_script(
        monkeypatch,
        """
        const cards = document.getElementById("structures-cards"), seen = [];
        const select = document.querySelector("select");
        for (const option of select.options) {
          select.value = option.value;
          select.dispatchEvent(new Event("change"));
          seen.push(cards.cloneNode(true));
        }
        document.body.append(...seen);
        """,
    )
    write_page(folders, tmp_path / "page.html")
    dom, complaints = opened(tmp_path / "page.html")
    assert complaints == []
    assert [name for name, case in OTHERS.items() if case[3] not in dom] == []


@in_browser
def test_a_hostile_title_stays_text(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "config.toml").write_text(f'title = """{HOSTILE}"""\n')
    write_page([folder], tmp_path / "page.html")
    dom, complaints = opened(tmp_path / "page.html")
    assert complaints == []
    assert "<title>owned" not in dom


@in_browser
@pytest.mark.parametrize(
    "mistake", ["undefinedFunction();", "const = 1;", "fetch('https://a.example');"]
)
def test_the_checker_sees_a_page_whose_script_is_broken(runs, tmp_path, monkeypatch, mistake):
    with_script(monkeypatch, mistake)
    write_page(runs[:1], tmp_path / "page.html")
    _, complaints = opened(tmp_path / "page.html")
    assert complaints
