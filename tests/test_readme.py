"""The README: its program learns what it claims, its numbers are in `results/`, its size is kept.

Commands are checked here for the README and for every page of the docs.
"""

import json
import re
import shlex
from pathlib import Path
from statistics import fmean

import pytest
import torch
from toys import run_command

from nestruct.cli import VERBS, _overrides_last
from nestruct.training import Recipe, read_recipe

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
PAIR = ["data.source=gl_ctg", "data.target=gl_treegal"]  # what $pair stands for


def commands(page: Path) -> list[list[str]]:
    """The words after ``nestruct`` in each line of a page's shell blocks."""
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    lines = re.findall(r"^nestruct (.*)$", shell, re.MULTILINE)
    return [
        [word for w in shlex.split(line, comments=True) for word in (PAIR if w == "$pair" else [w])]
        for line in lines
    ]


COMMANDS = {
    page.name: found
    for page in (README, *sorted((ROOT / "docs").glob("*.md")))
    if (found := commands(page))
}


def share_of_best(names: dict) -> float:
    """The percentage that the program prints, at the network as it is."""
    x, profit = names["x"][200:], names["profit"][200:]
    context = {name: names[name][200:] for name in ("weights", "room")}
    z = names["layer"].eval()(names["network"](x)[..., 0], **context)
    best = names["knapsack"].argmax(profit, **context)
    return float(100 * (z * profit).sum() / (best * profit).sum())


def run_until(end: str | None = None) -> dict:
    """What the program has named, before a line or at its end."""
    names: dict = {}
    part = PROGRAM if end is None else PROGRAM.partition(end)[0]
    with torch.random.fork_rng():
        exec(compile(part, str(README), "exec"), names)
    return names


def test_the_program_learns_what_the_text_says(capsys):
    trained = share_of_best(run_until())
    assert capsys.readouterr().out.startswith(f"{trained:.0f}% of the best profit")
    untrained = share_of_best(run_until("for step"))
    assert trained > 95
    assert untrained < 85
    said = re.search(r"It prints (\d+)% .* Untrained, the network earns (\d+)%", TEXT)
    assert said is not None
    # Another processor rounds otherwise, so the digits may differ a little there.
    assert [trained, untrained] == pytest.approx(list(map(int, said.groups())), abs=3)


def test_what_needs_no_learning_earns_what_the_text_says():
    names = run_until("for step")
    names["network"] = lambda x: torch.ones(*x.shape[:2], 1)  # as many items as fit
    assert f"earns {share_of_best(names):.0f}%. `pack`" in " ".join(TEXT.split())


def test_it_is_one_screen():
    text = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert 600 <= len(" ".join(prose).split()) <= 800
    assert [line for line in prose if len(line) > 120] == []
    assert len(PROGRAM.splitlines()) <= 30


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="a source distribution has no results")
def test_its_results_are_those_of_the_run_files():
    def row(name: str, **what: str) -> dict:
        rows = json.loads((ROOT / "results" / f"{name}.json").read_text())["rows"]
        (found,) = [r for r in rows if what.items() <= r.items()]
        return found

    table = json.loads((ROOT / "results" / "table1.json").read_text())
    own = {"group": "no prior knowledge", "column": "spanning-tree"}
    trees = row("table1", row="StructureNES", **own)
    rival = row("table1", row="SST", **own)
    published = row("table1", group="published", row="NES", column="spanning-tree")["paper"]
    assert (len(trees["seeds"]), len(rival["seeds"])) == (5, 3)
    f1, elbo = 100 * trees["f1_sample"]["mean"], -trees["loss_published"]["mean"]
    text = " ".join(TEXT.split())
    assert f": F1 {f1:.1f} and ELBO {elbo:.0f}**" in text
    assert f"`StructureNES` finds {f1:.1f}%" in text
    assert f"has {published['f1'][0]} and {published['elbo'][0]:,}" in text
    f1, elbo = 100 * rival["f1_sample"]["mean"], -rival["loss_published"]["mean"]
    assert f"reaches {f1:.1f} and {elbo:.0f} (three seeds)" in text
    minutes = fmean(table["runs"][run]["seconds"] for run in trees["runs"]) / 60
    assert f"{minutes:.0f}" == "9"
    assert "took nine minutes" in text
    baseline = table["without learning, F1 on validation data"]["spanning-tree"]
    shortest = 100 * baseline["shortest tree without learning"]
    assert f"has {shortest:.1f}% of the edges right" in text

    demo = row("demo", row="graph-layout-10")
    runs = json.loads((ROOT / "results" / "demo.json").read_text())["runs"]
    scores = [100 * runs[run]["test"]["f1_map"] for run in demo["runs"]]
    without = 100 * demo["without learning"]
    said = f"has {min(scores):.0f}% to {max(scores):.0f}% of the edges, where the shortest tree"
    assert f"{said} has {without:.0f}%" in text

    def uas(method: str, column: str = "gl_treegal") -> float:
        found = row("table2", row=method, trees="projective", column=column)
        if column == "gl_treegal":
            assert len(found["seeds"]) == (1 if method == "source only" else 3)
        return 100 * found["uas"]["mean"]

    assert f": {uas('source only'):.2f} to {uas('StructureNES'):.2f} UAS**" in text
    assert f"DPP has {uas('DPP'):.2f} and NES {uas('NES'):.2f}" in text

    size = row("table3", row="100K", column="NES, N = 90")
    assert len(size["seeds"]) == 3
    assert f": ELBO {-size['loss_mode']['mean']:.1f}**" in text
    assert f"The paper has {size['paper']}" in text
    kind = {"estimator": "NES", "column": "revival and late cosine"}
    revived = row("table3-revival", row="100K", **kind)
    assert len(revived["seeds"]) == 4
    assert f"NES has {-revived['loss_mode']['mean']:.1f} (four seeds)" in text


def test_its_links_lead_somewhere():
    places = re.findall(r"\]\(([^)#]+)", TEXT)
    assert len(places) > 15
    assert [place for place in places if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("page", COMMANDS)
def test_the_commands_name_verbs_recipes_and_options_that_exist(page):
    for verb, *words in COMMANDS[page]:
        assert verb in VERBS
        if verb not in ("train", "sweep", "check-gradient") or "--resume" in words:
            continue
        if words[0].endswith(".toml"):  # a file of the reader's own
            continue
        overrides = [w for w in _overrides_last(words)[1:] if "=" in w]
        overrides = [w for w in overrides if ":" not in w]  # code of the reader's own
        first = [re.sub(r",.*", "", w) for w in overrides]  # of a sweep's values
        Recipe.from_tables(read_recipe(words[0], first))


def test_the_gradient_check_of_the_docs_passes(capsys):
    every = [words for found in COMMANDS.values() for words in found]
    checks = [words for words in every if words[0] == "check-gradient"]
    (words,) = [words for words in checks if not words[1].endswith(".toml")]
    assert run_command(*words, "--num-trials", 80) == 0
    assert ": passed" in capsys.readouterr().out
