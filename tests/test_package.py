"""The wheel, installed outside the source tree; and the source distribution with its tests."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

import pytest
import torch
from strict import program

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


@pytest.mark.slow  # `make check` checks the same program against the sources
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_program_passes_strict_checkers(wheel, tmp_path, checker):
    place, own = tmp_path / "place", tmp_path / "program.py"
    shutil.unpack_archive(wheel, place, "zip")
    shutil.copy(ROOT / "tests" / "strict" / "program.py", own)
    env = os.environ | {"MYPYPATH": str(place)}
    command: list[object] = [sys.executable, "-m", "mypy", "--strict", "--config-file="]
    command += ["--follow-imports=silent", own]
    if checker == "pyright":  # whose package fetches itself when it runs first
        found = shutil.which("pyright")
        if found is None:
            pytest.skip("pyright is not installed")
        settings: dict[str, object] = {"include": ["program.py"], "typeCheckingMode": "strict"}
        settings |= {"extraPaths": [str(place)]}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
        command = [found, "--pythonpath", sys.executable, "-p", tmp_path]
    call(*command, cwd=tmp_path, env=env)
    with own.open("a") as file:  # and they see what is wrong
        file.write("\nwrong: int = nestruct.NES(sigma=0.1, population_size=8)\n")
    with pytest.raises(AssertionError, match="NES"):
        call(*command, cwd=tmp_path, env=env)


def test_that_program_runs():
    batch = {"x": torch.rand(9, 8, 3), "weights": torch.rand(9, 8) + 0.1}
    with torch.random.fork_rng():
        assert math.isfinite(program.train(batch | {"profit": torch.rand(9, 8)}))
        router = program.Router()
        router(torch.rand(2, 4)).sum().backward()
        assert router.scores.weight.grad is not None
        scores = torch.randn(2, 4, 4)
        z = nestruct.ProjectiveTree().argmax(scores)
        assert program.losses(scores, z).shape == (2,)


def test_badges_say_what_is_so():
    table = _project_table()
    said = {}
    for file in sorted((ROOT / "docs" / "badges").glob("*.svg")):
        label = ET.parse(file).getroot().attrib["aria-label"]
        assert re.findall(r">([^<>\n]+)</text>", file.read_text()) == label.split(": ")
        said[file.stem] = label.split(": ")[1]
    assert f'\nlicense = "{said.pop("licence")}"\n' in table
    assert f'\nrequires-python = ">={said.pop("python").removesuffix("+")}"\n' in table
    assert said == {"tests": "make test"}
    assert "\ntest: " in (ROOT / "Makefile").read_text()


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
