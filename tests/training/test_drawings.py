"""What a run says about its structure, for the page to draw."""

import importlib

import torch

import nestruct
from nestruct.models import SubsetVAE, mlp
from nestruct.reports import read_run, write_page
from nestruct.training.drawings import Drawings

pages = importlib.import_module("reports.pages")  # mypy knows that file by another name


def test_the_shape_of_a_black_box_is_told():
    structure = nestruct.BlackBox(lambda scores: scores > 0, shape=(2, 3))
    encoder = torch.nn.Sequential(mlp(4, 6), torch.nn.Unflatten(1, (2, 3)))
    decoder = torch.nn.Sequential(torch.nn.Flatten(-2), mlp(6, 4))
    vae = nestruct.StructuredVAE(encoder, decoder, structure)
    header = Drawings(vae, torch.ones(2, 4)).header()
    assert header["structure"] == "BlackBox"
    assert header["options"] == {
        "batched": True,
        "binary": True,
        "shape": [2, 3],
        "workers": 0,
    }


def test_several_structures_of_an_example_are_drawn(tmp_path):
    vae = SubsetVAE(6, num_subsets=3, num_items=4, k=2, hidden_sizes=(5,))
    adam = torch.optim.Adam(vae.parameters())
    options = {"validation": torch.eye(6)[:2], "max_steps": 2, "progress": False}
    nestruct.fit(vae, nestruct.IMLE(), adam, torch.eye(6), run=tmp_path / "run", **options)
    scene = read_run(tmp_path / "run").scene
    assert scene is not None
    assert (scene["structure"], scene["options"]["shape"]) == ("KSubset", [3, 4])
    write_page([tmp_path / "run"], tmp_path / "page.html")
    page = pages.parse(tmp_path / "page.html")
    drawn = [d for d in page.all("svg", kind="cells") if d.attributes["aria-hidden"] == "true"]
    assert len(drawn) == 2 * 2  # of each example, untrained and learned
    assert {len(list(one.all("rect", kind="cell"))) for one in drawn} == {12}
    assert all(len(list(one.all("rect", kind="chosen"))) >= 6 for one in drawn)
