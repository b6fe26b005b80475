"""Pictures: every structure is drawn, parts are coloured against the truth, files stand alone."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

import nestruct
from nestruct import InputError, plots
from nestruct.structures.registry import STRUCTURES

RUNS = Path(__file__).parent / "fixtures" / "runs"
SIZED = {
    "ProjectiveTree": (5, 5),
    "NonProjectiveTree": (5, 5),
    "LinearChain": (5, 3, 3),
    "SemiMarkov": (6, 3, 2),
    "Alignment": (4, 5),
    "ConstituencyTree": (5, 5),
}
INSTANCES = [
    (entry.structure(**options), options)
    for entry in STRUCTURES.values()
    for options in entry.small
]


def groups(picture: plots.Picture) -> list[str]:
    """The class of each part that is drawn; the file must be well-formed."""
    root = ET.fromstring(picture.svg)
    return [g.attrib["class"] for g in root.iter("{http://www.w3.org/2000/svg}g")]


def first_members(structure: nestruct.Structure, options: dict) -> torch.Tensor:
    shape = getattr(structure, "part_shape", None) or SIZED[type(structure).__name__]
    if type(structure).__name__ == "LinearChain":
        shape = (4, options["num_states"], options["num_states"])
    elif type(structure).__name__ == "SemiMarkov":
        shape = (5, options["max_length"], options["num_states"])
    elif options.get("num_labels"):
        shape = (4, 4, options["num_labels"])
    draws = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    return structure.argmax(draws)


@pytest.mark.parametrize(("structure", "options"), INSTANCES, ids=lambda value: str(value)[:60])
def test_every_structure_is_drawn_part_by_part(structure, options):
    z = first_members(structure, options)
    drawn = groups(plots.structures(structure, z, examples=2))
    assert drawn == ["part plain"] * int(z.sum())


def test_parts_are_compared_with_the_truth():
    tree = nestruct.SpanningTree(4)
    truth = torch.tensor([1.0, 1, 1, 0, 0, 0])
    z = torch.tensor([1.0, 1, 0, 0, 0, 1])
    drawn = groups(plots.structures(tree, {"found": z[None]}, truth=truth[None]))
    assert sorted(drawn) == ["part missed", "part right", "part right", "part wrong"]


def test_only_some_examples_are_drawn():
    z = torch.eye(4)
    assert len(groups(plots.structures(nestruct.Categorical(4), z, examples=3))) == 3


def test_words_are_escaped():
    z = nestruct.ProjectiveTree().argmax(torch.randn(1, 3, 3))
    picture = plots.structures(nestruct.ProjectiveTree(), z, words=[["<b>", "a & b"]])
    texts = [t.text for t in ET.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"<b>", "a & b"} <= set(texts)


def test_a_picture_has_its_colours_in_it(tmp_path):
    picture = plots.scores({"a <b>": [1.0, 2.0], "c": 3.0}, label="F1", baselines={"none": 0.5})
    assert "var(" not in picture.svg
    assert "prefers-color-scheme: dark" in picture.svg
    assert picture._repr_html_().startswith('<img src="data:image/svg+xml;base64,')
    picture.save(tmp_path / "scores.svg")
    assert ET.parse(tmp_path / "scores.svg").getroot().tag.endswith("svg")


def test_curves_of_runs_have_a_line_each():
    picture = plots.curves([RUNS / "graph-layout-5"], "f1_map")
    assert picture.svg.count('class="mean"') == 1
    assert "shortest tree without learning" in picture.svg
    ET.fromstring(picture.svg)


def test_scores_may_be_arrays():
    numbers = plots.scores({"a": [1.0, 2.0], "b": 3.0}, label="F1")
    assert plots.scores({"a": np.array([1.0, 2.0]), "b": torch.tensor(3.0)}, label="F1") == numbers


@pytest.mark.parametrize("name", ["structures", "curves", "scores", "Picture"])
def test_what_is_public_has_an_example_and_a_place(name):
    assert ">>>" in getattr(plots, name).__doc__
    page = Path(__file__).parents[1] / "docs/api/plots.md"
    assert f"::: nestruct.plots.{name}\n" in page.read_text()


CHOICE = nestruct.Categorical(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.structures(nestruct.KSubset(4, 2), torch.zeros(2, 3, 4)), "axes of parts"),
        (lambda: plots.structures(nestruct.KSubset(4, 2), {"": []}), "got list"),  # type: ignore[dict-item]
        (lambda: plots.structures(CHOICE, torch.eye(3), truth=torch.eye(3)[:2]), "truth must be"),
        (lambda: plots.structures(CHOICE, torch.eye(3), words=[["a"]]), "words must be there"),
        (lambda: plots.scores({}, label="F1"), "at least one number"),
        (lambda: plots.scores({"a": "b"}, label="F1"), "must be numbers"),  # type: ignore[dict-item]
        (lambda: plots.scores({"a": [1.0, float("nan")]}, label="F1"), "is not finite"),
        (lambda: plots.curves(RUNS / "graph-layout-5", "f2"), "there is "),
        (lambda: plots.scores({"a": 1.0}, label="F1").save("a.png"), "a name in .svg"),
    ],
)
def test_mistakes_are_said(call, message):
    with pytest.raises(InputError, match=message):
        call()
