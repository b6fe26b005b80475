"""What the documentation says runs and exists: Python blocks, objects, files, verbs, recipes."""

import inspect
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Protocol

import pytest
import torch
from reports.pages import in_browser, opened

from nestruct.cli import VERBS
from nestruct.training import recipe_names

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
PAGES = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "docs").rglob("*.md"))}


def exists(name: str) -> bool:
    """Whether a file is there; what a source distribution leaves out is not looked for."""
    left_out = name.startswith(("benchmarks/", "results/")) and not (ROOT / "results").is_dir()
    return left_out or (ROOT / name).exists()


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


# Notebooks are made from scripts, which tests/test_notebooks.py runs.
NOTEBOOKS = "docs/notebooks/"
RUNNABLE = [
    page
    for page, path in PAGES.items()
    if python_blocks(path.read_text()) and not page.startswith(NOTEBOOKS)
]


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "docs"}
    with torch.random.fork_rng():
        for block in python_blocks(PAGES[page].read_text()):
            exec(compile(block, page, "exec"), names)
    if page == "docs/start.md":
        assert names["result"].best["f1_map"] > 0.8


def resolve(name: str) -> object:
    """An object by its dotted name; a method or attribute too."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            fields = getattr(found, "__dataclass_fields__", {})
            found = fields[part] if part in fields else getattr(found, part)
        return found
    raise AssertionError(f"there is no {name}")


def test_the_paper_map_names_what_exists():
    text = PAGES["docs/paper-map.md"].read_text()
    files = set(re.findall(r"`([a-z_/]+\.py)`", text))
    objects = set(re.findall(r"`(nestruct\.[A-Za-z_.]+)`", text))
    assert len(files) > 10
    assert len(objects) > 20
    for file in files:
        is_whole = file.startswith(("benchmarks/", "examples/"))
        assert exists(file if is_whole else f"src/nestruct/{file}"), file
    for name in objects:
        resolve(name)


def test_api_pages_name_what_exists():
    for page, path in PAGES.items():
        for name in re.findall(r"^::: (\S+)$", path.read_text(), re.MULTILINE):
            assert resolve(name) is not None, (page, name)


def test_every_public_name_has_a_place_in_the_api_pages():
    import nestruct

    shown = "\n".join(path.read_text() for page, path in PAGES.items() if "/api/" in page)
    missing = [n for n in nestruct.__all__ if f"::: nestruct.{n}\n" not in f"{shown}\n"]
    assert missing == ["__version__"]


def test_every_option_is_described():
    """By its class or one that it derives from: the API pages show both."""
    from nestruct.estimators.registry import ESTIMATORS
    from nestruct.structures import BlackBox
    from nestruct.structures.registry import STRUCTURES

    undescribed = []
    structures = [known.structure for known in STRUCTURES.values()]
    for part in (*ESTIMATORS.values(), *structures, BlackBox):
        described = " ".join(parent.__doc__ or "" for parent in part.__mro__)
        options = inspect.signature(part).parameters
        undescribed += [
            f"{part.__name__}({name})"
            for name in options
            if name not in ("args", "options") and not re.search(rf"\b{name}\b", described)
        ]
    assert undescribed == []


def test_every_verb_is_described():
    text = PAGES["docs/command-line.md"].read_text()
    assert [verb for verb in VERBS if f"`nestruct {verb}" not in text] == []


@pytest.mark.parametrize("room", ["models", "data"])
def test_every_hook_has_its_line(room):
    module = import_module(f"nestruct.{room}.hooks")
    text = PAGES["docs/hooks.md"].read_text()
    own = [name for name, value in vars(module).items() if value.__class__ is type(Protocol)]
    missing = [name for name in own if name != "Protocol" and f"`{name}` |" not in text]
    assert len(own) > 5
    assert missing == []


def test_recipes_and_files_that_are_named_exist():
    known = set(recipe_names())
    for page, path in PAGES.items():
        text = path.read_text()
        for recipe in re.findall(
            r"nestruct train ((?:table|unstructured|graph|categorical)\S*)", text
        ):
            assert recipe in known, (page, recipe)
        for name in re.findall(r"`((?:results|benchmarks|examples)/[A-Za-z0-9_./-]+)`", text):
            assert exists(name), (page, name)


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    assert [page for page in PAGES if page.removeprefix("docs/") not in listed] == []


needs_site = pytest.mark.skipif(not SITE.exists(), reason="`make docs` has not been run")


@needs_site
def test_built_pages_fetch_nothing():
    for page in SITE.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="https?:[^"]+"', page.read_text()
        )
        assert not fetched, (page, fetched)


@needs_site
@in_browser
@pytest.mark.parametrize("page", ["index.html", "api/structures.html"])
def test_search_works_from_disk(page, tmp_path):
    copy = tmp_path / "site"
    shutil.copytree(SITE, copy)
    document, complaints = opened(copy / page, "?q=mirrored+pairs")
    assert complaints == []
    assert re.search(r"\d+ matching documents", document)
    assert "search-result__item" in document
