"""What a run says about its structure, for the page to draw."""

import torch

import nestruct
from nestruct.models import mlp
from nestruct.training.drawings import Drawings


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
