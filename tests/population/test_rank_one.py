"""Directions of rank one: the same members as full matrices ``a b^T`` give, whatever the layer."""

import dataclasses
import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from toys import gradient

from nestruct import NES
from nestruct.noise import Noise
from nestruct.population import Layout, perturbed
from nestruct.population.laws import RankOneDirections

NUM_EXAMPLES = 4


class Net(nn.Module):
    """Any network and any function of it, as a black box with a loss."""

    def __init__(self, network: nn.Module, shape: tuple[int, ...], call: Any = None, vocabulary=0):
        super().__init__()
        self.network, self.call = network, call or (lambda network, x: network(x))
        generator = torch.Generator().manual_seed(0)
        if vocabulary:
            self.x = torch.randint(vocabulary, (NUM_EXAMPLES, *shape), generator=generator)
        else:
            self.x = torch.randn(NUM_EXAMPLES, *shape, generator=generator).double()
        self.double()

    def loss(self, batch, noise):
        out = self.call(self.network, batch)
        return out.flatten(1).sin().sum(1) + out.flatten(1).square().mean(1)


class Weights(nn.Module):
    """Two matrices and a vector, used by hand."""

    def __init__(self, one: tuple[int, ...] = (5, 6), other: tuple[int, ...] = (3, 5)) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(one)), nn.Parameter(torch.randn(other))
        self.gain = nn.Parameter(torch.randn(other[0]))


def states(network, x):
    """What a recurrent layer gives, examples first."""
    if not network.batch_first:
        x = x.transpose(0, 1)
    out, last = network(x)
    if not network.batch_first:
        out = out.transpose(0, 1)
    last = last if isinstance(last, tuple) else (last,)
    return torch.cat([out.flatten(1), *(each.transpose(0, 1).flatten(1) for each in last)], 1)


def cells(network, x):
    state = network[0](x[:, 0])
    hidden, cell = network[1](state, (state, state))
    return torch.cat([network[2](hidden, cell), hidden], 1)


def tied(network, x):
    return F.linear(network.one[x].mean(1), network.one)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 5), nn.LayerNorm(5)
        )

    def forward(self, x):
        return self.layers(x)


CASES: dict[str, Any] = {
    "linear": lambda: Net(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "linear of sequences": lambda: Net(
        nn.Sequential(nn.Linear(6, 5, bias=False), nn.Linear(5, 3)), (2, 6)
    ),
    "F.linear": lambda: Net(
        Weights(), (6,), lambda w, x: F.linear(F.linear(x, w.one), w.other, w.gain)
    ),
    "matmul": lambda: Net(Weights(), (6,), lambda w, x: (x @ w.one.T @ w.other.mT) * w.gain),
    "matmul from the left": lambda: Net(
        Weights(), (6, 2), lambda w, x: (w.other @ (w.one @ x)).sin() + w.gain[:, None]
    ),
    "vectors": lambda: Net(
        Weights(), (6,), lambda w, x: (w.other @ (w.one @ x.mean(0))) + 0 * x[:, :3]
    ),
    "addmm": lambda: Net(
        Weights(), (6,), lambda w, x: torch.addmm(w.gain, x.mm(w.one.t()), w.other.transpose(0, 1))
    ),
    "slices": lambda: Net(
        Weights(), (3,), lambda w, x: F.linear(x, w.one[1:3, 3:]) @ w.other.chunk(2)[0][:, :2]
    ),
    "embedding": lambda: Net(
        nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3)), (3,), vocabulary=7
    ),
    "tied embedding": lambda: Net(Weights((7, 5)), (3,), tied, vocabulary=7),
    "convolution of lines": lambda: Net(
        nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv1d(3, 4, 2, stride=2)),
        (2, 6),
    ),
    "convolution of images": lambda: Net(
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding="same"),
            nn.ReLU(),
            nn.Conv2d(4, 6, (2, 1), groups=2, dilation=(2, 1)),
            nn.ReLU(),
            nn.Conv2d(6, 6, 2, groups=6, bias=False),
        ),
        (2, 5, 5),
    ),
    "lstm": lambda: Net(nn.LSTM(3, 4, num_layers=2, bidirectional=True), (5, 3), states),
    "lstm, batch first": lambda: Net(nn.LSTM(3, 4, batch_first=True, proj_size=2), (5, 3), states),
    "gru": lambda: Net(nn.GRU(3, 4, bidirectional=True, batch_first=True), (5, 3), states),
    "rnn": lambda: Net(nn.RNN(3, 4, batch_first=True, bias=False), (5, 3), states),
    "cells": lambda: Net(
        nn.ModuleList([nn.GRUCell(3, 4), nn.LSTMCell(4, 4), nn.RNNCell(4, 4)]), (2, 3), cells
    ),
    "normalised": lambda: Net(Normed(), (3, 6)),
    "normalised, in use": lambda: Net(Normed().eval(), (3, 6)),
    # Full matrices of one parameter:
    "by itself": lambda: Net(
        Weights(), (6,), lambda w, x: F.linear(x, w.one * w.one.norm()) @ w.other.sigmoid().T
    ),
    "transposed convolution": lambda: Net(nn.ConvTranspose1d(2, 3, 3), (2, 4)),
    "einsum": lambda: Net(
        Weights(), (6,), lambda w, x: torch.einsum("bi,oi,po->bp", x, w.one, w.other)
    ),
    "attention": lambda: Net(
        nn.MultiheadAttention(4, 2, batch_first=True), (3, 4), lambda net, x: net(x, x, x)[0]
    ),
}
FULL = ("by itself", "transposed convolution", "einsum", "attention")


def setup(name: str) -> tuple[Net, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CASES[name]()
    return model, model.x


def drawn(model: nn.Module, nes: NES, seed: int, step: int):
    """The law of directions, and its numbers of all pairs."""
    layout = Layout(model, nes.perturb)
    law = nes._law(layout)
    assert isinstance(law, RankOneDirections)
    flat = torch.empty(nes.num_pairs, law.width, dtype=layout.dtype)
    law.fill(flat, 0, Noise(seed=seed, step=step))
    return layout, law, flat


def by_hand(model: nn.Module, batch: Any, nes: NES, seed: int, step: int) -> torch.Tensor:
    """Eq. 8 in a loop over members, each with its matrices ``sigma a b^T`` and raw losses."""
    layout, law, flat = drawn(model, nes, seed, step)
    centre = {name: p.detach().clone() for name, p in layout.parameters.items()}
    total = {name: torch.zeros_like(p) for name, p in centre.items()}
    ratios = dict(zip(centre, nes.sigma_ratios(layout), strict=True))
    for row in flat:
        unit = {}
        for name, places in law.places.items():
            parts = [row[place] for place in places]
            outer = torch.outer(*parts) if len(parts) == 2 else parts[0]
            unit[name] = outer.view(centre[name].shape)
        for sign in (1, -1):
            with torch.no_grad():
                for name, p in layout.parameters.items():
                    p.copy_(centre[name] + sign * nes.sigma * ratios[name] * unit[name])
                buffers = [b.clone() for b in model.buffers()]
                loss = model.loss(batch, Noise(seed=seed, step=step)).mean()
                for b, value in zip(model.buffers(), buffers, strict=True):
                    b.copy_(value)
                for name, p in layout.parameters.items():
                    p.copy_(centre[name])
            for name in total:
                total[name] += sign * loss * unit[name] / (nes.sigma * ratios[name])
    return torch.cat([t.flatten() for t in total.values()]) / nes.population_size


@pytest.mark.parametrize("factors", ["rademacher", "gaussian"])
@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_that_of_full_matrices(name, factors, caplog, monkeypatch):
    monkeypatch.setattr(perturbed, "_said", set())
    model, x = setup(name)
    rule = "fan_in" if factors == "gaussian" else "constant"
    nes = NES(
        sigma=0.3,
        population_size=6,
        shaping="none",
        directions="rank1",
        factors=factors,
        sigma_rule=rule,
        mode="vmap",
    )
    expected = by_hand(model, x, nes, seed=2, step=3)
    with caplog.at_level(logging.INFO, logger="nestruct"):
        for _ in range(2):
            nes.backward(model, x, seed=2, step=3)
            torch.testing.assert_close(gradient(model), expected, rtol=1e-9, atol=1e-9)
    said = [r.message for r in caplog.records if "full matrix" in r.message]
    assert len(said) == len(set(said))
    assert bool(said) == (name in FULL), said
    dataclasses.replace(nes, mode="loop").backward(model, x, seed=2, step=3)
    torch.testing.assert_close(gradient(model), expected, rtol=1e-9, atol=1e-9)
