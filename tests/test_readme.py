"""The README: its program learns what it claims, its numbers are in `results/`, its size is kept.

Commands are checked here for the README and for every page of the docs.
"""

import json
import re
import shlex
from pathlib import Path

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


def test_the_program_learns_what_the_text_says(capsys):
    names: dict = {}
    with torch.random.fork_rng():
        exec(compile(PROGRAM, str(README), "exec"), names)
    untrained, trained = (float(names[n] / names["best"]) for n in ("untrained", "trained"))
    assert untrained < 0.85
    assert trained > 0.95
    said = re.search(r"It prints (\d+)% untrained and (\d+)% trained", TEXT)
    assert said is not None
    # Another processor rounds otherwise, so the digits may differ a little there.
    assert [100 * untrained, 100 * trained] == pytest.approx(list(map(int, said.groups())), abs=3)
    assert "untrained" in capsys.readouterr().out


def test_what_needs_no_learning_earns_what_the_text_says():
    names: dict = {}
    with torch.random.fork_rng():
        exec(compile(PROGRAM.partition("nestruct.fit")[0], str(README), "exec"), names)
    model, test = names["model"], names["test"]
    most_items = model.structure.argmax(torch.ones(100, 8), **model.context(test))
    share = model.decode(test, most_items).mean() / model.decode(test, names["best"]).mean()
    assert f"would earn {share:.0%}" in TEXT


def test_it_is_one_screen():
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    assert 600 <= len(prose.split()) <= 800
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 30
    wide = [line for line in TEXT.splitlines() if len(line) > 140 and not line.startswith("|")]
    assert wide == []


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="a source distribution has no results")
def test_its_results_are_those_of_the_run_files():
    def row(table: str, **what: str) -> dict:
        rows = json.loads((ROOT / "results" / f"{table}.json").read_text())["rows"]
        (found,) = [r for r in rows if what.items() <= r.items()]
        return found

    own = {"group": "no prior knowledge", "column": "spanning-tree"}
    trees = row("table1", row="StructureNES", **own)
    rival = row("table1", row="SST", **own)
    paper = row("table1", group="published", row="NES", column="spanning-tree")["paper"]
    assert (len(trees["seeds"]), len(rival["seeds"])) == (5, 3)
    f1, elbo = 100 * trees["f1_sample"]["mean"], -trees["loss_published"]["mean"]
    assert f"**F1 {f1:.1f} and ELBO {elbo:.0f}**" in TEXT
    assert f"`StructureNES` finds {f1:.1f}%" in TEXT
    assert f"has {paper['f1'][0]} and {paper['elbo'][0]:,}" in TEXT
    f1, elbo = 100 * rival["f1_sample"]["mean"], -rival["loss_published"]["mean"]
    assert f"reaches {f1:.1f} and {elbo:.0f} (three seeds)" in " ".join(TEXT.split())

    def uas(method: str) -> str:
        found = row("table2", row=method, trees="projective", column="gl_treegal")
        assert len(found["seeds"]) == (1 if method == "source only" else 3)
        return f"{100 * found['uas']['mean']:.2f}"

    text = " ".join(TEXT.split())
    assert f"the unadapted parser has **{uas('source only')}** UAS, DPP {uas('DPP')}" in text
    assert f"`StructureNES` {uas('StructureNES')} and NES {uas('NES')}" in text

    size = row("table3", row="100K", column="NES, N = 90")
    assert len(size["seeds"]) == 3
    assert f"**{-size['loss_mode']['mean']:.1f}**" in TEXT
    assert f"The paper has {size['paper']}" in TEXT


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
