"""The verdict: one true sentence about any runs, and what its chart leaves out."""

import importlib
from pathlib import Path

import pytest

from nestruct.reports import read_groups, write_page
from nestruct.reports.tasks import compare_methods
from nestruct.reports.verdict import say_verdict

write_run = importlib.import_module("reports.test_runs").write_run
pages = importlib.import_module("reports.pages")
SCENE = {
    "format": 1,
    "structure": "SpanningTree",
    "options": {"num_nodes": 3},
    "true": None,
    "references": {"chance": {"f1": 0.4}, "shortest tree without learning": {"f1": 0.6}},
}


def run(folder: Path, name: str = "NES", data: str = "num_nodes = 3", **options) -> Path:
    """A run of a method on data, over trees."""
    folder = write_run(folder, **({"scene": SCENE} | options))
    config = (folder / "config.toml").read_text().replace('name = "NES"', f'name = "{name}"')
    more = f'[model]\nstructure = "tree"\n[data]\n{data}\n'
    (folder / "config.toml").write_text(config + more)
    return folder


def verdict(*folders: Path) -> str:
    found = compare_methods(read_groups(folders))
    assert found is not None
    return say_verdict(found).replace("\N{NO-BREAK SPACE}", " ")


def page(tmp_path: Path, *folders: Path):
    write_page(folders, tmp_path / "page.html")
    return pages.parse(tmp_path / "page.html")


def test_methods_are_told_with_their_spread_and_with_what_needs_no_learning(tmp_path):
    seeds = [run(tmp_path / str(k), seed=k) for k in range(3)]
    other = run(tmp_path / "other", "SST", seed=5)
    assert verdict(*seeds, other) == (
        "SST reaches 75.0 % (F1 of the most likely tree on test data, 1 to 3 runs), NES 71.0 ± "
        "1.0 %; without learning 60.0 % at best (shortest tree)."
    )
    assert verdict(*seeds) == (
        "NES reaches 71.0 ± 1.0 % (F1 of the most likely tree on test data, mean of 3 runs); "
        "without learning 60.0 % at best (shortest tree)."
    )


def test_what_nothing_learnt_beats_is_said_first(tmp_path):
    strong = SCENE | {"references": {"shortest tree": {"f1": 0.9}}}
    said = verdict(run(tmp_path / "a", scene=strong))
    assert said.startswith("No method beats what needs no learning (shortest tree): NES reaches")


def test_a_run_that_goes_on_is_not_told_as_an_end(tmp_path):
    assert verdict(run(tmp_path / "a", steps=20, tested=False, seed=1)) == (
        "NES reaches 61.0 % (F1 of the most likely tree on validation data, 1 of 1 runs "
        "unfinished); without learning 60.0 % at best (shortest tree)."
    )


def test_each_of_few_tasks_is_told(tmp_path):
    config = 'name = "toys"\ndataset = "{}"'
    folders = [run(tmp_path / name, data=config.format(name), seed=2) for name in ("b", "a")]
    said = verdict(*folders)
    assert "B, tree: NES reaches 72.0 %" in said
    assert "; a, tree: NES 72.0 %; without learning 60.0 % at best (shortest tree)." in said


def test_many_tasks_are_told_by_means_over_methods_that_ran_in_all(tmp_path):
    folders = []
    for k in range(4):
        data = f'dataset = "set {k}"'
        folders.append(run(tmp_path / f"nes{k}", data=data, seed=k))
        folders.append(run(tmp_path / f"sst{k}", "SST", data=data, seed=k + 2))
    folders.append(run(tmp_path / "exact", "Enumeration", data='dataset = "set 0"', seed=9))
    assert verdict(*folders) == (
        "In the mean of 4 tasks, SST reaches 73.5 % (F1 of the most likely tree on test data, "
        "1 run), NES 71.5 %; fewer tasks: Enumeration in 1."
    )
    found = page(tmp_path, *folders)
    figure = next(found.one("header").all("figure"))
    dots = [len(list(row.all("circle"))) for row in figure.all("svg")]
    assert dots == [9, 9]  # 4 and 4 tasks and 1; wide and narrow
    assert "set 0, tree; set 1, tree" in found.one("header").text


def test_tasks_of_one_method_each_are_drawn_as_they_are(tmp_path):
    folders = [run(tmp_path / str(k), data=f'dataset = "set {k}"', seed=k) for k in range(4)]
    said = verdict(*folders)
    assert said == (
        "In the mean of 4 tasks, NES reaches 71.5 % (F1 of the most likely tree on test data, "
        "1 run)."
    )
    figure = next(page(tmp_path, *folders).one("header").all("figure"))
    names = [text.text for text in next(figure.all("svg")).all("text", kind="word")]
    assert names == [f"set {k}, tree: NES" for k in range(4)]


def test_a_loss_is_said_to_be_better_when_less(tmp_path):
    folder = run(tmp_path / "a", scene=None)
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"f1_map"', '"step_length"'))
    assert "NES reaches 6.500 (loss on test data, less is better)" in verdict(folder)


def test_tests_choose_no_configuration(tmp_path):
    """The better on validation data stands for the method, though it is worse on test data."""
    good, lucky = run(tmp_path / "good", sigma=0.1), run(tmp_path / "lucky", sigma=0.2)
    log = lucky / "metrics.jsonl"
    text = log.read_text().replace('"f1_map": 0.7,', '"f1_map": 0.69,')
    *lines, test = text.splitlines()
    text = "\n".join(line.replace('"f1_map": 0.7', '"f1_map": 0.65') for line in lines)
    log.write_text(f"{text}\n{test.replace('0.7', '0.99')}\n")
    sst = run(tmp_path / "sst", "SST", seed=1)
    said = verdict(good, lucky, sst)
    assert "NES 70.0 %" in said
    note = page(tmp_path, good, lucky, sst).one("header").one("div", kind="note").text
    assert "3 configurations ran; of each method, the one with the most tested runs" in note


def test_runs_on_other_data_are_counted_and_not_compared(tmp_path):
    usual = [run(tmp_path / str(k), seed=k) for k in range(2)]
    other = run(tmp_path / "other", "SST", data="num_nodes = 4", seed=9)
    assert "SST" not in verdict(*usual, other)
    note = page(tmp_path, *usual, other).one("header").one("div", kind="note").text
    assert "Not here: 1 run with other data or settings, or without this number." in note
    # What a method was trained on is its own affair.
    same = run(tmp_path / "same", "SST", data='num_nodes = 3\ntrain_on = "half"', seed=9)
    assert "SST reaches 79.0 %" in verdict(*usual, same)


@pytest.mark.parametrize(("maximize", "first"), [("false", "SST"), ("true", "NES")])
def test_a_metric_of_ones_own_is_better_as_the_run_says(tmp_path, maximize, first):
    folders = []
    for name, value in (("NES", 3.0), ("SST", 2.0)):
        folder = run(tmp_path / name, name, metric="profit", maximize=maximize)
        text = (folder / "metrics.jsonl").read_text()
        (folder / "metrics.jsonl").write_text(text.replace('"f1_map"', f'"profit": {value}, "x"'))
        folders.append(folder)
    assert f"{first} reaches " in verdict(*folders)


def test_a_page_without_results_says_so(tmp_path):
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "split": "validation", "loss": null}\n')
    write_page([tmp_path], tmp_path / "page.html")
    assert pages.parse(tmp_path / "page.html").one("p", kind="verdict").text == "No results yet."


# ------------------------------------------------------------------ the page, in a browser


def many(folder: Path) -> list[Path]:
    """Two hundred runs: fifty configurations with four seeds, some with structures."""
    frames = [{"step": step, "map": [[[0], [2]]] * 4} for step in (0, 30)]
    return [
        run(
            folder / f"{k}/{seed}",
            ("NES", "SST", "NVIL", "REBAR", "Enumeration")[k % 5],
            sigma=0.1 + k // 5,
            seed=seed,
            frames=frames if k < 9 else [],
        )
        for k in range(50)
        for seed in range(4)
    ]


@pages.in_browser
def test_a_page_of_two_hundred_runs_is_short_in_every_form(tmp_path):
    write_page(many(tmp_path), tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    check_forms(tmp_path / "page.html", most=9_000)


@pytest.mark.slow
@pages.in_browser
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("table1", "Spanning tree: "),
        ("table2", "In the mean of 12 tasks, "),
        ("table3", "In the mean of 6 tasks, "),
    ],
)
def test_pages_of_our_own_runs_are_short_in_every_form(tmp_path, table, said):
    archive = Path(__file__).parents[2] / f"results/{table}-runs.tar.xz"
    if not archive.exists():  # a source distribution has none
        pytest.skip("no results here")
    told = page(tmp_path, archive).one("p", kind="verdict").text
    assert told.startswith(said)
    assert ("source only" in told) == (table == "table2")
    assert (tmp_path / "page.html").stat().st_size < 3_000_000
    check_forms(tmp_path / "page.html", most=9_000)


CUT = """[...document.querySelectorAll(".scores svg")].flatMap((svg) => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const own = text.getBoundingClientRect();
    return own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1;
  }).map((text) => text.textContent);
})"""  # words of the first chart that are not whole


def check_forms(file: Path, most: int) -> None:
    """Both widths, both schemes, and paper: nothing too long or too wide, and no complaint."""
    with pages.browser(str(pages.BROWSER)) as tab:
        for width in (1200, 390):
            for dark in (False, True):
                tab.open(file, width=width, dark=dark)
                assert tab.complaints == []
                assert tab.overflow() == []
                assert tab.run(CUT) == []
                assert tab.height() < (most if width == 1200 else 2 * most)
                first = tab.run("document.querySelector('.verdict').getBoundingClientRect().top")
                assert first < 300
        colours = []
        for dark in (False, True):
            tab.open(file, dark=dark)
            colours.append(tab.run("getComputedStyle(document.body).backgroundColor"))
        assert len(set(colours)) == 2
        # The contents unfold what they name, and stay in sight.
        tab.run("document.querySelector('nav a[href=\"#configuration\"]').click()")
        assert tab.run(
            "new Promise((done) => setTimeout(() => done("
            "document.querySelector('#configuration > details').open), 50))"
        )
        assert tab.run("document.querySelector('nav').getBoundingClientRect().top") == 0
        hints = "[...document.querySelectorAll('.hint')].filter((one) => one.offsetHeight).length"
        assert tab.run(hints) > 0
        tab.open(file, width=964, printed=True)  # the narrower of two common papers, turned
        assert tab.overflow() == []
        assert tab.run(hints) == 0
        assert tab.run("document.querySelector('#configuration').offsetHeight") == 0
        tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert tab.overflow() == []
