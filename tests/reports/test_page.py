"""The page: what it says, that it is safe and whole, and that a browser really draws it."""

import base64
import importlib
import io
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
from torch import Tensor, nn

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


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two groups: three seeds and one unfinished run."""
    seeds = [
        write_run(tmp_path / f"a/seed{k}", seed=k, scene=SCENE, frames=FRAMES) for k in range(3)
    ]
    return [*seeds, write_run(tmp_path / "b", sigma=0.3, steps=20, tested=False)]


def test_a_page_says_what_came_out(runs, tmp_path):
    write_page(runs, tmp_path / "page.html")
    page = pages.parse(tmp_path / "page.html")
    assert page.one("h1").text == next(page.all("title")).text == "Small trees"
    assert [sentence.text for sentence in page.all("p", kind="sentence")] == [
        "sigma 0.1F1 of the most likely tree rose from 0.410 to 0.710 (chance 0.400, shortest tree "
        "0.700) in 1 min (of 1 min 20 s in all), 3 k forward evaluations, no gradient; mean of 3 "
        "seeds. "
        "On test data: 0.710.",
        "sigma 0.3F1 of the most likely structure rose from 0.400 to 0.600 in 40 s, 2 k forward "
        "evaluations, no gradient. Unfinished at step 20.",
    ]
    names = [
        summary.text.partition(":")[0] for summary in page.one(id="configuration").all("summary")
    ]
    assert names == ["seed0", "seed1", "seed2", "b"]
    figures = list(page.one(id="curves").all("figure"))
    assert [figure.attributes["data-chart"] for figure in figures] == [
        *("validation-f1_map", "validation-loss", "train-loss"),
        "train-grad_norm",  # what never changes (failed: 0) is left out
    ]
    assert len(list(page.one(id="curves-main").all("figure"))) == 3
    marks = [text.text for text in next(figures[0].all("svg")).all("text", kind="halo")]
    assert marks == ["shortest tree", "chance"]
    assert "± one standard deviation, as the run noted it (loss_std)" in figures[2].text


def test_results_are_means_and_standard_deviations_over_seeds(runs, tmp_path):
    write_page(runs, tmp_path / "page.html")
    row, other = pages.rows(pages.parse(tmp_path / "page.html"), "results")
    assert row["F1 of the most likely tree test"] == "0.710 ± 0.010"
    assert row["loss best step"] == "7.250"
    assert row["runs"] == "3 seeds"
    keys = ("wall-clock", "in the solver", "solver calls/step", "solver time/step")
    costs = [row[f"cost of one run {key}"] for key in keys]
    assert costs == ["1 min 20 s", "25 %", "80", "12 ms"]
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


def players(path: Path) -> list:
    return list(pages.parse(path).all("div", kind="player"))


def test_every_run_has_its_structures_over_time(runs, tmp_path):
    write_page(runs, tmp_path / "page.html")
    first, *others = players(tmp_path / "page.html")
    assert "hidden" not in first.attributes
    assert [("hidden" in player.attributes) for player in others] == [True, True]
    assert first.attributes["data-steps"] == "0 40"
    assert first.attributes["data-learned"] == "1"
    assert first.attributes["data-name"] == "sigma 0.1: seed 0"
    seen = [
        {g.attributes["data-part"]: g.attributes["data-seen"] for g in panel.all("g")}
        for panel in first.all("figure")
        if panel.attributes["data-panel"] == "learned"
    ]
    assert seen == [
        {"0": "11", "4": "01", "7": "01", "1": "10", "2": "10"},
        {"1": "11", "2": "11", "3": "10", "5": "01"},
    ]


def test_a_structure_that_cannot_be_drawn_is_named_with_its_file(tmp_path):
    subset = {"structure": "KSubset", "drawing": None}
    for k, (frames, scene) in enumerate(
        (
            ([{"step": 0, "map": [[[99]], [[1]]]}], SCENE),
            ([{"step": 0, "map": [["a"], [[1]]]}], SCENE),
            ([{"step": 0, "map": [[[1, 1]]]}], SCENE | {"options": {"shape": [3]}, **subset}),
        )
    ):
        folder = write_run(tmp_path / str(k), scene=scene | {"true": None}, frames=frames)
        with pytest.raises(InputError, match=rf"{k}/structures.jsonl cannot be drawn"):
            write_page([folder], tmp_path / "page.html")


def test_a_scene_as_large_as_it_likes_makes_a_small_page(tmp_path):
    scene = SCENE | {"structure": "BlackBox", "options": {"shape": [10**6, 10**6]}, "true": None}
    frames = [{"step": 0, "map": [[[3, 4]], [[999_999, 7]]]}]
    write_page([write_run(tmp_path / "run", scene=scene, frames=frames)], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 2_000_000


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
    (player,) = players(tmp_path / "page.html")
    steps = player.attributes["data-steps"].split()
    models = list(player.all("div", kind="model"))
    kept = [int(steps[int(model.attributes["data-frame"])]) for model in models]
    assert len(kept) == 12
    assert kept == sorted(kept)
    assert {0, 30, 40} <= set(kept)
    assert [int(steps[int(m.attributes["data-frame"])]) for m in models if not hidden(m)] == [30]
    for step, model in zip(kept, models, strict=True):
        sample = next(image for image in model.all("img") if "sample" in image.attributes["alt"])
        assert pixels(sample.attributes["src"]) == [[255 - 17 * (step % 16)] * 3] * 2
    write_page(folders, tmp_path / "page.html")
    for player in players(tmp_path / "page.html"):
        models = [model.attributes["data-frame"] for model in player.all("div", kind="model")]
        assert models == [player.attributes["data-learned"]]


def hidden(node: Any) -> bool:
    return "hidden" in node.attributes


def pixels(source: str) -> list[list[int]]:
    """A picture in a page, read by someone else's code."""
    data = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    image = matplotlib.image.imread(io.BytesIO(data), format="png")
    return [[round(255 * float(value)) for value in row] for row in image]


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
    (player,) = players(tmp_path / "page.html")
    names = [image.attributes["data-figure"] for image in player.all("img")]
    assert Counter(names) == {"image": 5, "prototype": 9, "sample": 30}
    models = [int(model.attributes["data-frame"]) for model in player.all("div", kind="model")]
    assert models == [0, 1, 2]


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


def test_a_configuration_of_any_types_makes_a_page(tmp_path):
    for k, more in enumerate(('[model]\nstructure = ["a"]', "model = 3", "[[data]]\ntarget = 1")):
        folder = write_run(tmp_path / str(k), scene=SCENE, frames=FRAMES)
        (folder / "config.toml").write_text(f"estimator = 7\n{more}\n")
    write_page([tmp_path / str(k) for k in range(3)], tmp_path / "page.html")
    assert len(players(tmp_path / "page.html")) == 3


def test_nothing_in_a_run_can_leave_its_place(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "config.toml").write_text(f'title = """{HOSTILE}"""\n')
    write_page([folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert pages.parse(tmp_path / "page.html").one("h1").text == HOSTILE
    assert page.count("</script>") == page.count("<script") == 1
    assert "<b>&" not in page


def test_a_page_needs_nothing_from_elsewhere(runs, tmp_path):
    write_page(runs, tmp_path / "page.html", title="Mine")
    page = (tmp_path / "page.html").read_text()
    assert not re.findall(r"https?://[^\s\"']*", page)
    assert "default-src 'none'" in page
    assert {text[0] for text in re.findall(r'\bhref="([^"]*)"', page)} == {"#"}
    assert not re.search(r"\bsrc=(?!\"data:)", page)
    assert "<h1>Mine</h1>" in page


def test_fifty_runs_stay_below_a_megabyte(tmp_path):
    folders = [
        write_run(tmp_path / f"{k:02}", seed=k, steps=1000, max_steps=1000) for k in range(50)
    ]
    write_page(folders, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 1_000_000
    (line,) = trained_lines(tmp_path / "page.html")
    assert len(line) <= 100


def trained_lines(path: Path) -> list[list[str]]:
    """The points of every line in the chart of the training loss that is shown."""
    figures = pages.parse(path).one(id="curves").all("figure")
    (figure,) = [one for one in figures if one.attributes["data-chart"] == "train-loss"]
    (drawing,) = [one for one in figure.all("svg") if not hidden(one)]
    return [line.attributes["d"].split("L") for line in drawing.all("path", kind="mean")]


def test_a_curve_keeps_its_ends(tmp_path):
    write_page([write_run(tmp_path / "run", steps=3000)], tmp_path / "page.html")
    (line,) = trained_lines(tmp_path / "page.html")
    assert len(line) == 100
    first, last = (float(point.strip("M").split()[0]) for point in (line[0], line[-1]))
    assert first == pytest.approx(58, abs=0.5)  # step 1 of 3,000, from one side to the other
    assert last == 520
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
    page = pages.parse(tmp_path / "page.html")
    assert not list(page.all(id="curves"))
    assert not list(page.all("div", kind="player"))


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
    shown = [p for p in re.split(r'(?=<div class="player")', dom)[1:] if " hidden" not in p[:400]]
    figures = re.findall(rf'<figure data-panel="{panel}".*?</figure>', shown[0], re.S)
    marks = re.findall(r'class="part (\w+)" data-part', " ".join(figures))
    return Counter(mark for mark in marks if mark != "absent")


def drawn(dom: str) -> dict[str, tuple[str, str, int]]:
    """Of every chart that is shown: the drawing that is, and how many lines it has."""
    found = {}
    for name, attributes, figure in re.findall(
        r'<figure class="chart" data-chart="([\w-]+)"([^>]*)>(.*?)</figure>', dom, re.S
    ):
        if " hidden" not in attributes:
            svgs = re.findall(r"<svg ([^>]*)>(.*?)</svg>", figure, re.S)
            ((shown, content),) = [svg for svg in svgs if " hidden" not in svg[0]]
            axes = re.findall(r'data-[xy]="(\w+)"', shown)
            lines = len(re.findall(r'<g data-group="\d+"><title>', content))
            found[name] = (axes[0], axes[1], lines)
    return found


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
    assert drawn(dom) == {
        "validation-f1_map": ("evaluations", "linear", 2),
        "validation-loss": ("evaluations", "linear", 2),
        "train-loss": ("evaluations", "linear", 2),
        "train-grad_norm": ("step", "log", 2),
    }
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
        all("#curves-groups input")[1].click();
        all("input[value=seconds]")[0].click();
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
    assert drawn(dom) == {
        "validation-f1_map": ("seconds", "linear", 1),  # a share has no logarithmic scale
        "validation-loss": ("seconds", "log", 1),
        "train-loss": ("seconds", "log", 1),
        "train-grad_norm": ("step", "log", 1),
    }
    first = re.search(r'id="results".*?<tbody>\s*<tr><td class="first">([^<]*)<', dom, re.S)
    assert first
    assert first[1] == "sigma 0.3"
    assert "NaN" not in dom


@in_browser
def test_structures_can_be_played(runs, tmp_path, monkeypatch):
    with_script(
        monkeypatch,
        """
        const buttons = [...document.querySelectorAll("button")];
        const button = buttons.find((found) => found.textContent === "Play");
        button.click();
        document.body.dataset.first = document.querySelector("output").textContent;
        document.body.dataset.button = button.textContent;
        """,
    )
    write_page(runs, tmp_path / "page.html")
    dom, complaints = opened(tmp_path / "page.html")
    assert complaints == []
    assert 'data-first="step 0: 4 of 6 right"' in dom
    assert 'data-button="Pause"' in dom
    assert "<output>step 40: 5 of 6 right</output>" in dom  # where it ended by itself
    assert edges(dom, "learned") == {"right": 5, "wrong": 1, "missed": 1}


def test_a_chart_with_nothing_to_draw_is_hidden(runs, tmp_path):
    """A run that was only evaluated, over another structure: no place on a logarithmic axis."""
    only = write_run(tmp_path / "only", sigma=0.5, steps=0, tested=False)
    for folder, structure in ((runs[-1], "spanning-tree"), (only, "k-subset")):
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(f'{config}[model]\nstructure = "{structure}"\n')
    write_page([runs[-1], only], tmp_path / "page.html")
    page = pages.parse(tmp_path / "page.html")
    figures = list(page.one(id="curves-main").all("figure"))
    shown = [figure.one("h3").text for figure in figures if not hidden(figure)]
    assert len(shown) == 3
    assert all(label.endswith(", spanning tree") for label in shown)


@in_browser
@pytest.mark.parametrize(("button", "lines"), [("all", 8), ("none", 0)])
def test_all_groups_and_none_can_be_chosen_at_once(runs, tmp_path, monkeypatch, button, lines):
    click = f"""
        const buttons = [...document.querySelectorAll("#curves-groups button")];
        document.querySelector("#curves-groups input").click();
        buttons.find((found) => found.textContent === "{button}").click();
        const boxes = [...document.querySelectorAll("#curves-groups input")];
        document.body.dataset.chosen = boxes.filter((box) => box.checked).length;
        const lines = "#curves figure:not([hidden]) > svg:not([hidden]) > g:not([hidden]) .mean";
        document.body.dataset.lines = document.querySelectorAll(lines).length;
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
        const source = (kind, k) => document.querySelectorAll(
          `.model:not([hidden]) [data-figure=${kind}]`)[k].src;
        const images = [...document.querySelectorAll("img")];
        document.body.dataset.loaded = images.every((image) => image.naturalWidth === 3);
        document.body.dataset.image = document.querySelector("[data-figure=image]").src;
        document.body.dataset.prototype = source("prototype", 1);
        document.body.dataset.before = source("prototype", 2);
        document.body.dataset.said = document.querySelector(".model:not([hidden])").textContent;
        const slider = document.querySelector("input[type=range]");
        slider.value = 5;
        slider.dispatchEvent(new Event("input"));
        document.body.dataset.after = source("prototype", 2);
        """,
    )
    write_page([pictures(tmp_path / "run")], tmp_path / "page.html")
    dom, complaints = opened(tmp_path / "page.html")
    assert complaints == []
    noted = dict(re.findall(r'data-(loaded|image|prototype|before|after)="([^"]*)"', dom))
    assert noted.pop("loaded") == "true"
    found = {name: pixels(source) for name, source in noted.items()}
    assert found["image"] == [[0, 255, 0], [255, 0, 255]]
    assert found["prototype"] == [[255, 119, 0], [0, 119, 255]]
    assert found["before"] == [[255 - 17 * (30 % 16)] * 3] * 2
    said = re.search(r'data-said="([^"]*)"', dom)
    assert said
    assert "at step 30, and how many of the 2 examples" in said[1]
    assert "category 0" + "1 example" + "category 1" + "no example" in said[1]
    # At step 5 the categories are those found there; the model is of the last step that was kept.
    assert found["after"] == [[255 - 17 * 4] * 3] * 2
    assert "at step 4, and how many" in dom
    assert re.findall(r"<b>(untrained|step 5)</b><br><span>([^<]*)<", dom) == [
        ("untrained", "category 0"),
        ("step 5", "category 2"),
        ("untrained", "category 2"),
        ("step 5", "category 2"),
    ]
    assert "right class" not in dom


OTHERS: dict[str, tuple[dict[str, Any], list[Any] | None, list[Any], str]] = {
    "ProjectiveTree": ({}, [[[0, 2], [2, 1]]], [[[0, 2], [0, 1]]], "1 of 2 arcs"),
    "KSubset": ({"num_items": 6, "k": 2}, [[[0], [5]]], [[[0], [5]]], "2 of 2 items"),
    "Categorical": ({"num_classes": 4}, [[[1]]], [[[2]]], "0 of 1 class<"),
    "Permutation": ({"size": 2}, [[[0, 1], [1, 0]]], [[[0, 1], [1, 0]]], "2 of 2 places"),
    "MonotonePath": ({"shape": [1, 2]}, [[[0, 0], [0, 1]]], [[[0, 0], [0, 1]]], "2 of 2 cells"),
    "SpanningTree": ({"num_nodes": 3}, None, [[[0], [2]]], 'class="part plain" data-part="2"'),
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_structure_has_a_drawing(tmp_path, name):
    options, true, chosen, drawing = OTHERS[name]
    scene = {"format": 1, "structure": name, "options": options, "true": true, "drawing": None}
    folder = write_run(tmp_path / name, scene=scene, frames=[{"step": 0, "map": chosen}])
    write_page([folder], tmp_path / "page.html")
    assert drawing in (tmp_path / "page.html").read_text()


class Decoder(nn.Module):
    def forward(self, z: Tensor, batch: Tensor) -> Tensor:
        return 4 * z.flatten(-2)[..., :5]


def one_of_each_row(scores: Tensor) -> Tensor:
    return nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores)


def test_the_shape_of_a_black_box_reaches_the_page(tmp_path):
    """A grid of 3 x 7 cells, of which the first examples need not use the last column."""
    encoder = nn.Sequential(nn.Linear(5, 21), nn.Unflatten(-1, (3, 7)))
    box = nestruct.BlackBox(one_of_each_row, shape=(3, 7))
    model = nestruct.StructuredVAE(encoder, Decoder(), box, divergence="none")
    nestruct.fit(
        model,
        nestruct.StructureNES(),
        torch.optim.Adam(model.parameters()),
        torch.rand(12, 5).round(),
        validation=torch.rand(4, 5).round(),
        run=tmp_path / "run",
        max_steps=2,
        eval_interval=1,
        batch_size=4,
        progress=False,
    )
    write_page([tmp_path / "run"], tmp_path / "page.html")
    (player,) = players(tmp_path / "page.html")
    panel = next(player.all("figure"))
    assert len(list(panel.all("rect", kind="cell"))) == 21
    assert len({cell.attributes["y"] for cell in panel.all("rect", kind="cell")}) == 3
    assert len(list(panel.all("g", kind="plain"))) == 3


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
