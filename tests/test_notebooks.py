"""Notebooks: what is committed is what the scripts say, and the scripts run as they stand."""

import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs/tools/notebooks.py")
assert spec is not None
assert spec.loader is not None
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)
NAMES = sorted(file.stem for file in notebooks.SCRIPTS.glob("*.py"))
SCRIPT = '''"""Two cells."""

# %% [markdown]
# # A title
#
# Some *text*.

# %%
import nestruct.plots

print("said")
nestruct.plots.scores({"a": 1.0}, label="x")

# %%
1 + 1
'''


def test_there_are_four_and_they_are_small():
    assert len(NAMES) == 4
    assert sum(file.stat().st_size for file in notebooks.PAGES.iterdir()) < 300_000


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_has_the_scripts_cells(name):
    cells = notebooks.cells_of((notebooks.SCRIPTS / f"{name}.py").read_text())
    page = (notebooks.PAGES / f"{name}.md").read_text()
    notebook = json.loads((notebooks.PAGES / f"{name}.ipynb").read_text())
    assert [cell["source"] for cell in notebook["cells"]] == [cell.source for cell in cells]
    code = [cell.source for cell in cells if not cell.is_text]
    assert re.findall(r"```python\n(.*?)\n```", page, re.DOTALL) == code
    pictures = re.findall(r"\]\(([\w-]+\.svg)\)", page)
    assert pictures
    assert {file.name for file in notebooks.PAGES.glob(f"{name}-*.svg")} == set(pictures)
    for picture in pictures:
        ET.parse(notebooks.PAGES / picture)


def test_a_script_becomes_a_page_and_a_notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "SCRIPTS", tmp_path)
    (tmp_path / "two.py").write_text(SCRIPT)
    notebooks.render("two", tmp_path)
    page = (tmp_path / "two.md").read_text()
    assert page.startswith("# A title\n\nSome *text*.\n\n")
    assert "```text\nsaid\n```\n\n![What the cell above shows](two-1.svg)" in page
    assert page.endswith("```python\n1 + 1\n```\n\n```text\n2\n```\n")
    first, second, third = json.loads((tmp_path / "two.ipynb").read_text())["cells"]
    assert first["cell_type"] == "markdown"
    assert [output["output_type"] for output in second["outputs"]] == ["stream", "display_data"]
    assert third["outputs"][0]["text"] == "2\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs_and_has_learnt_what_it_says(name, tmp_path):
    """Each script asserts what it has learnt; digits may differ between processors."""
    with torch.random.fork_rng():
        notebooks.render(name, tmp_path)
    texts = []
    for folder in (tmp_path, notebooks.PAGES):
        page = (folder / f"{name}.md").read_text()
        printed = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
        texts.append([re.sub(r"[\d.]+", "#", text) for text in printed])
    assert texts[0]
    assert texts[0] == texts[1]
