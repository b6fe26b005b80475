"""Small parsers and populations of them, which tests share."""

import torch
from torch import nn

from nestruct import Noise
from nestruct.data import Grammar
from nestruct.models import ParserVAE
from nestruct.population import Layout, Population, evaluate_members

DATA = Grammar(num_train=40, num_dev=12, num_target=20, vector_size=6)
SMALL = {"word_size": 4, "lstm_size": 6, "mlp_size": 5, "decoder_size": 7}


def make(seed: int = 0, *, dtype=torch.float64, **options) -> ParserVAE:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ParserVAE(DATA.vocabulary, DATA.vectors, **(SMALL | options))
        for parameter in model.decoder.parameters():
            nn.init.normal_(parameter, std=0.5)
        return model.to(dtype)


def perturbed(model, pairs: int = 3, mirrored: bool = True) -> Population:
    layout = Layout(model)
    generator = torch.Generator().manual_seed(1)
    flat = 0.3 * torch.randn(pairs, layout.size, generator=generator, dtype=layout.dtype)
    return Population(layout.centre(), layout.split(flat), mirrored)


def losses(model, population, batch, mode, **options):
    return evaluate_members(model, population, batch, Noise(seed=3, step=2), mode=mode, **options)
