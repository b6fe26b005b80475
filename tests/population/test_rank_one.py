"""Directions of rank one: the same members as full matrices ``a b^T`` give, whatever the layer."""

import dataclasses
import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from toys import bits, gradient, vae

from nestruct import NES, SNES, InputError, check_gradient
from nestruct.noise import Noise
from nestruct.population import Layout, layers, perturbed, savings
from nestruct.population.directions import fill_directions
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


def slopes(network, x):
    return torch.func.grad(lambda x: network(x).sin().sum())(x)


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
    "names of arguments": lambda: Net(
        Weights(),
        (6,),
        lambda w, x: torch.addmm(
            input=torch.matmul(other=F.linear(input=x, weight=w.one).mT, input=w.other).mT,
            mat2=w.other.chunk(chunks=1)[0].T,
            mat1=x.mm(mat2=w.one.T),
        ),
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
    "derivatives by inputs": lambda: Net(
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        (6,),
        slopes,
    ),
    "normalised": lambda: Net(Normed(), (3, 6)),
    "normalised, in use": lambda: Net(Normed().eval(), (3, 6)),
    # Full matrices of one parameter:
    "by itself": lambda: Net(
        Weights(), (6,), lambda w, x: F.linear(x, w.one * w.one.norm()) @ w.other.sigmoid().T
    ),
    "transposed convolution": lambda: Net(nn.ConvTranspose1d(2, 3, 3), (2, 4)),
    "by a rarer name": lambda: Net(
        Weights(),
        (6,),
        lambda w, x: x @ w.one.T @ w.other.contiguous(memory_format=torch.contiguous_format).T,
    ),
    "einsum": lambda: Net(
        Weights(), (6,), lambda w, x: torch.einsum("bi,oi,po->bp", x, w.one, w.other)
    ),
    "attention": lambda: Net(
        nn.MultiheadAttention(4, 2, batch_first=True), (3, 4), lambda net, x: net(x, x, x)[0]
    ),
}
FULL = ("by itself", "by a rarer name", "transposed convolution", "einsum", "attention")


def setup(name: str) -> tuple[Net, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CASES[name]()
    return model, model.x


def drawn(model: nn.Module, nes: NES, seed: int, step: int):
    """The law of directions, and its numbers of all pairs."""
    layout = Layout(model, nes.perturb)
    law = nes.law(layout)
    assert isinstance(law, RankOneDirections)
    flat = torch.empty(nes.num_pairs, law.width, dtype=layout.dtype)
    law.fill(flat, 0, Noise(seed=seed, step=step))
    return layout, law, flat


def by_hand(model: Net, batch: Any, nes: NES, seed: int, step: int) -> torch.Tensor:
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


def test_a_weight_that_cannot_be_followed_is_never_taken_for_the_centre():
    def call(weights, x):
        return torch.func.vmap(lambda row: x @ row)(weights.one).T + weights.gain.sum()

    nes = NES(sigma=0.3, population_size=6, shaping="none", directions="rank1")
    found = []
    for mode in ("loop", "auto"):
        torch.manual_seed(0)
        model = Net(Weights(), (6,), call)
        dataclasses.replace(nes, mode=mode).backward(model, model.x, seed=0)
        found.append(gradient(model))
    torch.testing.assert_close(*found)
    with pytest.raises(InputError, match=r"reaches .* that cannot be followed"):
        dataclasses.replace(nes, mode="vmap").backward(model, model.x, seed=0)


class Largest(TorchDispatchMode):
    """The size of the largest result of any operation, and the sum of all products' work."""

    size, work = 0, 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, torch.Tensor):
            self.size = max(self.size, result.numel())
            if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
                left = arguments[-2]
                self.work += 2 * result.numel() * left.shape[-1]
        return result


@pytest.mark.parametrize("kind", ["linear", "lstm", "embedding", "convolution"])
def test_no_member_forms_its_weights(kind):
    size, members = 40, 30
    model = {
        "linear": lambda: Net(nn.Sequential(nn.Linear(size, size), nn.Linear(size, size)), (size,)),
        "lstm": lambda: Net(nn.LSTM(size, size, batch_first=True), (2, size), states),
        "embedding": lambda: Net(nn.Embedding(size**2, 4), (2,), vocabulary=9),
        "convolution": lambda: Net(nn.Conv1d(size, size, 5), (size, 5)),
    }[kind]()
    nes = NES(sigma=0.1, population_size=members, directions="rank1", mode="vmap")
    nes.plan(model, model.x)
    with Largest() as largest:
        nes.backward(model, model.x, seed=0)
    assert largest.size < members * max(p.numel() for p in model.parameters())
    if kind == "linear":  # one product for all members and examples, and one for each gradient
        products = 2 * NUM_EXAMPLES * size**2 * (1 + members)
        assert products <= largest.work <= 1.3 * products + 2 * 2 * members * size**2


class Linear(nn.Module):
    """A loss whose gradient is known: the inner product with given tensors."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.slopes = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
        self.weights = nn.ParameterList(torch.zeros_like(s) for s in self.slopes)

    def loss(self, batch, noise):
        total = sum((s * w).sum() for s, w in zip(self.slopes, self.weights, strict=True))
        return total + 0 * batch


@pytest.mark.parametrize("factors", ["rademacher", "gaussian"])
@pytest.mark.parametrize("shapes", [((3, 4),), ((2, 5), (3, 2, 2), (4,))], ids=["one", "several"])
def test_the_mean_and_the_second_moment_of_a_linear_loss(shapes, factors):
    pairs = 60_000
    model = Linear(*shapes)
    nes = NES(
        sigma=0.5, population_size=2 * pairs, directions="rank1", factors=factors, shaping="none"
    )
    truth = torch.cat([s.flatten() for s in model.slopes])
    nes.backward(model, torch.zeros(1), seed=0)
    layout, law, flat = drawn(model, nes, 0, 0)
    full = law.population(flat, True).full().directions
    rows = torch.cat([full[name].flatten(1) for name in layout.parameters], 1) / nes.sigma
    each = (rows @ truth)[:, None] * rows  # what each pair's slope gives
    torch.testing.assert_close(gradient(model), each.mean(0))
    error = each.std(0) / pairs**0.5
    assert ((each.mean(0) - truth) / error).abs().max() < 4.5
    # A matrix of rank one has its own law; a vector's entries are independent.
    expected = 0.0
    for slope in model.slopes:
        d, square = slope.numel(), slope.square().sum()
        own = d
        if factors == "gaussian":
            m, n = len(slope), slope[0].numel()
            own = d + 2 if slope.dim() == 1 else m * n + 2 + (2 * m + 2 * n + 2)
        expected += own * square + d * (truth.square().sum() - square)
    squares = each.square().sum(1)
    assert (squares.mean() - expected).abs() < 4.5 * squares.std() / pairs**0.5


@pytest.mark.parametrize("factors", ["rademacher", "gaussian"])
@pytest.mark.parametrize("rule", ["constant", "fan_in"])
def test_the_gradient_checks(factors, rule):
    nes = NES(
        sigma=0.1,
        population_size=40,
        shaping="none",
        directions="rank1",
        factors=factors,
        sigma_rule=rule,
    )
    found = check_gradient(
        vae(), nes, bits(8, 6), num_trials=150, num_reference=2000, compare_laws=False
    )
    assert found.passed, found


def test_sigma_follows_the_number_of_inputs():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Conv1d(4, 6, 3), nn.Linear(9, 2)).double()
    layout = Layout(model)
    nes = NES(sigma=0.2, population_size=2, sigma_rule="fan_in")
    assert nes.sigma_ratios(layout) == [1.0, 12**-0.5, 1.0, 1 / 3, 1.0]
    flat = torch.empty(4000, layout.size, dtype=torch.float64)
    nes.law(layout).fill(flat, 0, Noise(seed=0))
    for piece, ratio in zip(layout.split(flat).values(), nes.sigma_ratios(layout), strict=True):
        assert piece.std() == pytest.approx(0.2 * ratio, rel=0.03)


def test_a_hard_loss_needs_gaussian_factors():
    """Products of normal numbers smooth a step; signs only see it where it is within sigma."""

    class Step(nn.Module):
        def __init__(self, at: float) -> None:
            super().__init__()
            self.at, self.weight = at, nn.Parameter(torch.zeros(2, 2).double())

        def loss(self, batch, noise):
            return (F.linear(batch, self.weight)[:, 0] > self.at).double()

    x = torch.tensor([[1.0, 0.0]]).double()
    slopes: dict[tuple[str, float], float] = {}
    for at in (0.05, 0.15):
        for factors in ("gaussian", "rademacher"):
            model = Step(at)
            nes = NES(
                sigma=0.1,
                population_size=40_000,
                shaping="none",
                directions="rank1",
                factors=factors,
                mode="vmap",
            )
            nes.backward(model, x, seed=0)
            slopes[factors, at] = float(model.weight.grad[0, 0])
    for at in (0.05, 0.15):  # E[ab; ab > c] of two normal numbers is c K_1(c) / pi
        c = torch.tensor(at / 0.1)
        expected = float(c * torch.special.modified_bessel_k1(c)) / torch.pi / 0.1
        assert slopes["gaussian", at] == pytest.approx(expected, rel=0.06)
    assert slopes["rademacher", 0.05] == pytest.approx(5.0, abs=0.15)
    assert slopes["rademacher", 0.15] == 0.0


@pytest.mark.parametrize("shaping", ["standard_score", "centered_rank", "clipped"])
def test_a_few_wild_losses(shaping):
    """Of 2,000 pairs a few have losses of 1e7: ranks and clipped differences hardly notice."""
    model = Linear((6, 5), (5,))

    def loss(batch, noise):
        value = Linear.loss(model, batch[:, 0], noise)
        return torch.where(batch[:, 1] > 0, 1e7 * value.sign(), value)

    model.loss = loss
    batch = torch.zeros(400, 2).double()
    batch[0, 1] = 1.0
    nes = NES(
        sigma=0.1,
        population_size=4000,
        directions="rank1",
        shaping=shaping,
        minibatch="per_pair",
        pair_batch_size=1,
        mode="vmap",
    )
    nes.backward(model, batch, seed=0)
    truth = torch.cat([s.flatten() for s in model.slopes])
    cosine = F.cosine_similarity(gradient(model), truth, dim=0)
    assert (cosine > 0.97) == (shaping != "standard_score"), cosine


def test_snes_with_a_sigma_for_each_tensor():
    """Its step of log sigma has the expectation that full directions give it."""

    class Bowls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steep = nn.Parameter(torch.zeros(3, 4).double())
            self.flat = nn.Parameter(torch.zeros(2, 5).double())
            self.bias = nn.Parameter(torch.zeros(3).double())

        def loss(self, batch, noise):
            bowls = 3 * self.steep.square().sum() + self.flat.square().sum()
            return bowls + 2 * self.bias.square().sum() + 0 * batch

    model, options = Bowls(), {"sigma": 0.3, "population_size": 20_000, "shaping": "none"}
    found = []
    for law in ({}, {"directions": "rank1", "factors": "gaussian", "chunk_size": 8000}):
        snes = SNES(**options, **law, sigma_lr=1.0, mode="vmap")
        snes.backward(model, torch.zeros(1).double(), seed=0)
        sigmas = snes.sigmas(model)
        found.append(torch.stack([(sigmas[name] / 0.3).log() for name in sigmas]))
    # trace(H) sigma^2 / d times -1/2: curvature 6, 2 and 4.
    expected = -0.5 * 0.3**2 * torch.tensor([6.0, 2.0, 4.0]).double()
    torch.testing.assert_close(found[0], expected, rtol=0.25, atol=0)
    torch.testing.assert_close(found[1], expected, rtol=0.25, atol=0)
    for wrong in ({"adapt": "parameter", "factors": "gaussian"}, {"factors": "rademacher"}):
        with pytest.raises(InputError, match="SNES"):
            SNES(population_size=4, directions="rank1", **wrong)


def test_a_model_of_its_own_savings_gets_full_directions():
    class Own(Linear):
        def population_losses(self, population, batch, noise):
            values = population.parameters()
            assert not population.factors
            total = sum(
                (s * values[f"weights.{i}"]).flatten(1).sum(1) for i, s in enumerate(self.slopes)
            )
            return total[:, None].expand(-1, len(batch))

    nes = NES(sigma=0.1, population_size=8, directions="rank1", shaping="none", mode="vmap")
    found = []
    for kind in (Own, Linear):
        model = kind((3, 4), (3,))
        nes.backward(model, torch.zeros(2).double(), seed=0)
        found.append(gradient(model))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("largest_table", [512, 2])
@pytest.mark.parametrize(
    ("count", "gumbel"), [(1, "shared"), (1, "per_member"), (3, "per_pair"), (8, "shared")]
)
def test_own_examples_of_a_model_of_categories(count, gumbel, largest_table, monkeypatch):
    monkeypatch.setattr(layers, "_LARGEST_TABLE", largest_table)
    nes = NES(
        sigma=0.3,
        population_size=10,
        directions="rank1",
        minibatch="per_pair",
        pair_batch_size=count,
        gumbel=gumbel,
        num_samples=2,
    )
    for options in ({}, {"likelihood": "gaussian"}, {"loss_bound": 4.0}):
        model = vae(**options)
        assert calls(savings, "_of_own_examples", nes, model) > 0
        expected = gradient(model)
        dataclasses.replace(nes, mode="loop").backward(model, bits(8, 6), seed=1, step=2)
        torch.testing.assert_close(gradient(model), expected)


def calls(module: Any, name: str, nes: NES, model: nn.Module) -> int:
    """How often a step calls a function, and gets an answer."""
    found, function = [], getattr(module, name)

    def counted(*arguments: Any) -> Any:
        found.append(function(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, counted)
        dataclasses.replace(nes, mode="vmap").backward(model, bits(8, 6), seed=1, step=2)
    return sum(each is not None for each in found)


@pytest.mark.parametrize("kind", [NES, SNES])
def test_a_resumed_run_repeats_every_bit(kind):
    options = {"sigma": 0.2, "population_size": 12, "directions": "rank1", "factors": "gaussian"}
    one, other = vae(), vae()
    first, second = kind(**options), kind(**options)
    for step in range(4):
        for estimator, model in ((first, one), (second, other)):
            estimator.backward(model, bits(8, 6), seed=3, step=step)
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        state, second = second.state_dict(), kind(**options)
        second.load_state_dict(state)
    assert torch.equal(gradient(one), gradient(other))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_signs_are_fair_and_depend_on_their_place_alone(dtype):
    many = torch.empty(3000, 70, dtype=dtype)
    fill_directions(many, 5, seed=1, step=2, sigma=0.5, kind="rademacher")
    assert set(many.unique().tolist()) == {-0.5, 0.5}
    products = 4 * many.double().T @ many.double() / len(many)  # 1 on the diagonal, else about 0
    off = (products - torch.eye(70, dtype=torch.float64)).abs().max()
    assert off < 5.5 / 3000**0.5
    assert (2 * many.double().mean(0)).abs().max() < 5 / 3000**0.5
    few = torch.empty(2, 70, dtype=dtype)
    fill_directions(few, 1004, seed=1, step=2, sigma=0.5, kind="rademacher")
    assert torch.equal(few, many[999:1001])
