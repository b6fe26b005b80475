"""The wheel, installed outside the source tree; and the source distribution with its tests."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import nestruct

ROOT = Path(__file__).parent.parent
SCRIPT = """
import pathlib, runpy, sys
import nestruct
from nestruct.cli import main

place, example = sys.argv[1:]
assert pathlib.Path(nestruct.__file__).is_relative_to(place), nestruct.__file__
for words in (
    ["train", "categorical-tiny", "--run", "run", "--max-steps", "3", "data.num_train=64"],
    ["report", "run", "-o", "page.html"],
    ["doctor"],
):
    try:
        main(words)
    except SystemExit as stop:
        assert not stop.code, words
assert "<html" in pathlib.Path("page.html").read_text()
runpy.run_path(example)
"""


def call(*command: object, **options) -> str:
    run = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=240, **options
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what git has, so that nothing is left in the tree."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=unwanted)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    call(*pip, "--no-build-isolation", "--wheel-dir", out, source)
    return next(out.glob("nestruct-*.whl"))


def test_the_source_distribution_has_its_tests_and_they_need_no_results(tmp_path):
    """What is published is packed from git's files; its tests find all that they read."""
    source, unwanted = tmp_path / "source", shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("docs", "examples", "src", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=unwanted)
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":
            shutil.copy(file, source)
    build = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path]
    call(*build, source)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    (place,) = (tmp_path / "there").iterdir()
    assert not (place / "results").exists()
    wanted = {path.relative_to(source) for path in (source / "tests").rglob("*") if path.is_file()}
    assert {path for path in wanted if not (place / path).is_file()} == set()
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_results.py"]
    words += ["tests/test_docs.py", "tests/test_layout.py", "-k", "not blocks"]
    printed = call(sys.executable, *words, cwd=place, env=os.environ | {"PYTHONPATH": "src"})
    assert " passed" in printed


def test_the_wheel_has_all_that_is_not_python(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    source = ROOT / "src"
    wanted = [path for path in (source / "nestruct").rglob("*") if path.is_file()]
    expected = {str(path.relative_to(source)) for path in wanted if "__pycache__" not in path.parts}
    assert expected <= inside
    assert any(name.endswith("recipes/table3-nes.toml") for name in inside)
    assert any(name.endswith("reports/assets/page.js") for name in inside)
    assert all(name.startswith("nestruct") for name in inside)


def test_it_works_outside_the_source_tree(wheel, tmp_path):
    place, empty = tmp_path / "place", tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    call(*pip, "--disable-pip-version-check", "--no-compile", "--target", place, wheel)
    settings = {"cwd": empty, "env": os.environ | {"PYTHONPATH": str(place)}}
    assert "table3-nes" in call(place / "bin" / "nestruct", "recipes", **settings)
    example = ROOT / "examples" / "knapsack.py"
    printed = call(sys.executable, "-c", SCRIPT, place, example, **settings)
    assert f"nestruct {nestruct.__version__}\n" in printed
    assert "through the solver" in printed


def test_the_version_is_the_same_everywhere(wheel):
    version = nestruct.__version__
    assert wheel.name == f"nestruct-{version}-py3-none-any.whl"
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", version]
    assert "version" not in re.findall(r"^(\w+) = ", _project_table(), re.MULTILINE)


def _project_table() -> str:
    text = (ROOT / "pyproject.toml").read_text()
    return text.split("[project]\n")[1].split("\n[")[0]
