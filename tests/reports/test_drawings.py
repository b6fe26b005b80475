"""What a page draws without its script: trajectories with trees, and curves."""

import importlib
import json
import re
from pathlib import Path

import layouts
import pytest

from nestruct.reports import read_groups, read_run, write_page
from nestruct.reports.charts import scale, ticks
from nestruct.reports.curves import charts, combine, looks
from nestruct.reports.shapes import draw_arcs, edge_nodes, nodes_of
from nestruct.reports.trajectories import middle_run

# The helpers that write run folders and read pages; mypy knows those files by other names.
write_run = importlib.import_module("reports.test_runs").write_run
pages = importlib.import_module("reports.pages")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    names = ("structure-0", "structure-1", "structure-subset", "sst")
    return layouts.small_runs(tmp_path_factory.mktemp("trained"), names)


def test_trees_are_drawn_beside_the_truth_where_the_particles_end(trained, tmp_path):
    write_page(trained.values(), tmp_path / "page.html")
    page = pages.parse(tmp_path / "page.html")
    cards = list(page.one(id="trajectories").all("div", kind="card"))
    assert len(cards) == 4
    scene, *frames = map(json.loads, (trained["sst"] / "structures.jsonl").read_text().splitlines())
    best = json.loads((trained["sst"] / "metrics.jsonl").read_text().splitlines()[-1])["best_step"]
    found = next(frame["map"] for frame in frames if frame["step"] == best)
    for example, card in enumerate(cards):
        names = [caption.one("b").text for caption in card.all("figcaption")]
        assert names == [
            "true",
            "SST, spanning tree",
            "StructureNES, spanning tree",
            "StructureNES, any n−1 edges",  # noqa: RUF001
        ]
        truth, sst, *_ = card.all("figure")
        dots = [(dot.attributes["cx"], dot.attributes["cy"]) for dot in truth.all("circle")]
        assert len(set(dots)) == 10
        assert all(0 <= float(value) <= 150 for dot in dots for value in dot)

        def drawn(figure, *marks, dots=dots):
            return {
                tuple(
                    sorted(
                        dots.index((line.attributes[f"x{end}"], line.attributes[f"y{end}"]))
                        for end in (1, 2)
                    )
                )
                for mark in marks
                for part in figure.all("g", kind=mark)
                for line in part.all("line")
            }

        true = {edge_nodes(part[0], 10) for part in scene["true"][example]}
        chosen = {edge_nodes(part[0], 10) for part in found[example]}
        assert drawn(truth, "true") == true
        assert drawn(sst, "right", "wrong") == chosen
        assert drawn(sst, "right") == chosen & true
        assert drawn(sst, "missed") == true - chosen
        assert f"{len(chosen & true)} of 9 edges" in sst.one("figcaption").text
        trails = list(truth.all("path", kind="trail"))
        assert len(trails) == 9  # steps between ten records
        opacities = [float(trail.attributes["opacity"]) for trail in trails]
        assert opacities == sorted(opacities)


def test_the_root_has_its_word_where_there_is_one():
    marks = [([0, 1], "true"), ([0, 2], "true")]
    drawing = {"words": [["5", "]"], ["7", "]"]]}
    assert ">root</text>" in draw_arcs({"drawing": drawing}, 1, marks)
    named = draw_arcs({"drawing": drawing | {"roots": ["[MIN", "[<b>"]}}, 1, marks)
    assert ">[&lt;b&gt;</text>" in named
    assert "root" not in named


def test_subsets_of_pairs_are_edges_too(trained):
    for name in ("structure-subset", "sst"):
        scene = read_run(trained[name]).scene
        assert scene is not None
        assert nodes_of(scene) == 10


@pages.in_browser
def test_a_browser_compares_methods_without_complaint(trained, tmp_path, monkeypatch):
    pages.with_script(
        monkeypatch,
        """
        const click = (selector) => document.querySelectorAll(selector).forEach((e) => e.click());
        for (const axis of ["step", "seconds", "evaluations"]) click(`input[value=${axis}]`);
        const lines = () => document.querySelectorAll(
          "#curves-main figure:not([hidden]) > svg:not([hidden]) path.mean").length;
        const counts = ["linear", "log", "suits"].map((scale) => {
          click(`input[name=y][value=${scale}]`);
          return lines();
        });
        document.body.dataset.lines = counts.join(" ");
        const heads = document.querySelectorAll("#methods thead tr:last-child th");
        const first = () => document.querySelector("#methods tbody td").textContent;
        const index = [...heads].findIndex((head) => head.textContent === "ELBO");
        const value = (row) => row.cells[index].dataset.value;
        heads[index].querySelector("button").click();
        const rows = [...document.querySelector("#methods tbody").rows];
        document.body.dataset.order = rows.map((row) => value(row) || "none").join(" ");
        """,
    )
    write_page(trained.values(), tmp_path / "page.html")
    dom, complaints = pages.opened(tmp_path / "page.html")
    assert complaints == []
    assert 'data-lines="9 9 9"' in dom  # three groups in three charts, an ELBO's logarithm too
    found = re.search(r'data-order="([^"]*)"', dom)
    assert found
    values = found[1].split()
    numbers = [float(value) for value in values if value != "none"]
    assert numbers == sorted(numbers)
    assert values[: len(numbers)] == [value for value in values if value != "none"]
    assert len(numbers) == 5  # three groups and two untrained models
    assert "NaN" not in dom


@pages.in_browser
def test_a_page_of_one_method_shows_its_trees_once(trained, tmp_path):
    write_page([trained["sst"]], tmp_path / "page.html")
    dom, complaints = pages.opened(tmp_path / "page.html")
    assert complaints == []
    assert 'id="trajectories"' not in dom
    assert re.search(r'<section id="structures">', dom)


def test_of_several_seeds_the_middle_one_is_drawn(tmp_path):
    scene = {"format": 1, "structure": "SpanningTree", "options": {}, "true": [[[0]]]}
    frames = [{"step": 0, "map": [[[0]]]}]
    folders = [
        write_run(tmp_path / str(k), seed=k, scene=scene, frames=frames) for k in (2, 0, 4, 1)
    ]
    (group,) = read_groups(folders)
    middle = middle_run(group)
    assert middle is not None
    assert middle.seed == 1


def test_pages_without_particles_have_no_trajectories(tmp_path):
    write_page([write_run(tmp_path / "run")], tmp_path / "page.html")
    assert not list(pages.parse(tmp_path / "page.html").all(id="trajectories"))


def test_curves_of_every_method_are_drawn_without_a_script(trained, tmp_path):
    write_page(trained.values(), tmp_path / "page.html")
    page = pages.parse(tmp_path / "page.html")
    figures = {f.one("h3").text: f for f in page.one(id="curves-main").all("figure")}
    assert list(figures) == [
        f"{name} (validation), {space}"
        for name in ("F1 of a sampled structure", "F1 of the most likely structure", "ELBO")
        for space in ("spanning tree", "any n−1 edges")  # noqa: RUF001
    ]
    for figure in figures.values():  # what is shown at first, of all that can be chosen
        shown = [svg for svg in figure.all("svg") if "hidden" not in svg.attributes]
        assert len(shown) == 1
        figure.children = list(shown)
    tree = figures["ELBO (validation), spanning tree"]
    assert len(list(tree.all("path", kind="mean"))) == 2
    assert len(list(tree.all("path", kind="band"))) == 1  # of the two seeds
    assert "decoder evaluations (one example each) (log)" in tree.text
    subset = figures["F1 of a sampled structure (validation), any n−1 edges"]  # noqa: RUF001
    assert len(list(subset.all("path", kind="mean"))) == 1
    assert "nearest pairs without learning" in subset.text
    assert "NaN" not in page.text
    labels = [span.text for span in page.one(id="curves-legend").all("span")]
    assert [label.rpartition(" (")[2] for label in labels] == ["1 seed)", "2 seeds)", "1 seed)"]
    # All that is drawn lies inside its drawing.
    for path in tree.all("path"):
        numbers = [
            float(n) for n in re.findall(r"-?[\d.]+", path.attributes["d"].replace("h0", ""))
        ]
        assert all(0 <= x <= 540 for x in numbers[::2])
        assert all(0 <= y <= 300 for y in numbers[1::2])


def test_one_method_looks_the_same_in_both_latent_spaces(trained):
    groups = read_groups(trained.values())
    assert looks(groups) == [0, 1, 1]
    spaces = [chart.groups for chart in charts(groups) if chart.metric == "elbo"]
    assert spaces == [[0, 1], [2]]


def test_losses_of_different_models_carry_a_warning(trained):
    groups = read_groups(trained.values())
    notes = {chart.metric: chart.note for chart in charts(groups)}
    assert "compare shapes" in notes["loss"]
    assert notes["elbo"] == ""


def test_a_share_is_never_drawn_on_a_logarithmic_axis_at_first(tmp_path):
    """One run over trees failed (a wide loss, an F1 near 0); those over subsets did not."""
    for name, f1, loss in (("failed", 0.002, 1e4), ("trees", 0.97, 1.0), ("subsets", 0.9, 2.0)):
        folder = write_run(tmp_path / name, title=name)
        structure = "k-subset" if name == "subsets" else "spanning-tree"
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(f'{config}[model]\nstructure = "{structure}"\n')
        record = {"step": 1, "split": "validation", "evaluations": 1, "loss": loss, "f1_map": f1}
        (folder / "metrics.jsonl").write_text(json.dumps(record | {"uas_all": f1}) + "\n")
    groups = read_groups(sorted(tmp_path.iterdir()))
    logarithmic = {chart.label for chart in charts(groups) if chart.log}
    assert logarithmic == {"loss (validation), spanning tree"}


def test_a_mean_is_taken_at_the_steps_that_all_runs_have():
    fast, slow = [(0, 0.0, 5.0), (2, 1.0, 2.0), (4, 2.0, 4.0)], [(2, 7.0, 4.0), (4, 14.0, 8.0)]
    line = combine([fast, slow])
    assert line is not None
    assert line.xs == [4.0, 8.0]
    assert line.mean == [3.0, 6.0]
    assert (line.low, line.high) == ([2.0, 4.0], [4.0, 8.0])
    assert combine([[(0, 1.0, 1.0)], [(1, 1.0, 1.0)]]) is None
    assert combine([]) is None


def test_a_scale_of_negative_values_can_be_logarithmic():
    place = scale([-1000.0, -10.0], 100, 0, log=True, sign=-1, room=0.0)
    assert [place(v) for v in (-1000, -100, -10)] == [100, 50, 0]
    assert ticks(-1000, -10, log=True, sign=-1) == [-1000, -500, -200, -100, -50, -20, -10]
    assert ticks(0.41, 0.94) == [0.5, 0.6, 0.7, 0.8, 0.9]


@pytest.mark.parametrize("high", [1e3, 1e5, 1e9, 1e16, 1e27, 1e300])
def test_a_logarithmic_axis_has_few_marks_however_long(high):
    marks = ticks(1.0, high, log=True)
    assert 3 <= len(marks) <= 10
    assert all(mark == float(f"{mark:.0e}") for mark in marks)


def test_many_runs_with_structures_make_a_page(tmp_path):
    scene = {"format": 1, "structure": "SpanningTree", "options": {}, "true": [[[0]]]}
    frames = [{"step": 0, "map": [[[0]]]}]
    folders = [
        write_run(tmp_path / str(k), seed=k, scene=scene, frames=frames, steps=1) for k in range(30)
    ]
    write_page(folders, tmp_path / "page.html")
    players = list(pages.parse(tmp_path / "page.html").all("div", kind="player"))
    assert len(players) == 16
    assert "14 other runs have structures too." in pages.parse(tmp_path / "page.html").text
    assert not any(list(player.all("img")) for player in players)
