"""Directions from integers, layouts and filters, and one member after the other = all at once."""

from typing import Any

import pytest
import torch
from torch import nn
from toys import bits, vae

from nestruct import InputError, Noise
from nestruct.population import Layout, Population, evaluate_members, needs_loop
from nestruct.population.directions import fill_directions

X = bits(5, 6)
NOISE = Noise(seed=1, step=2)


def fill(pairs: int, size: int, first: int = 0, **changes) -> torch.Tensor:
    options: dict[str, Any] = {"seed": 0, "step": 0, "sigma": 1.0, "kind": "gaussian"} | changes
    out = torch.empty(pairs, size)
    fill_directions(out, first, **options)
    return out


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_directions_depend_on_seed_step_and_pair_only(kind):
    whole = fill(6, 5000, kind=kind)
    assert torch.equal(torch.cat([fill(2, 5000, kind=kind), fill(4, 5000, 2, kind=kind)]), whole)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.equal(fill(6, 5000, kind=kind), whole)
    torch.set_num_threads(before)
    for change in ({"seed": 1}, {"step": 1}):
        assert not torch.equal(fill(6, 5000, kind=kind, **change), whole)
    assert abs(whole.mean()) < 0.02
    assert abs(whole.std() - 1) < 0.02
    assert abs(torch.corrcoef(whole)[0, 1:]).max() < 0.06
    torch.testing.assert_close(fill(6, 5000, kind=kind, sigma=0.1), 0.1 * whole)
    assert kind == "gaussian" or set(whole.unique().tolist()) == {-1.0, 1.0}


def test_filters():
    model = vae()
    everything = [name for name, _ in model.named_parameters()]
    assert list(Layout(model).parameters) == everything
    assert list(Layout(model, model.encoder).parameters) == everything[:4]
    assert list(Layout(model, ["decoder.0.bias"]).parameters) == ["decoder.0.bias"]
    assert list(Layout(model, "decoder.0.bias").parameters) == ["decoder.0.bias"]
    chosen = Layout(model, lambda name, p: p.dim() == 1)
    assert list(chosen.parameters) == [name for name in everything if name.endswith("bias")]
    model.encoder.requires_grad_(False)
    assert list(Layout(model).parameters) == everything[4:]
    assert list(Layout(model, lambda name, p: True).parameters) == everything[4:]
    with pytest.raises(
        InputError, match=r"'nothing' is not a trainable parameter.*decoder.0.weight"
    ):
        Layout(model, ["nothing"])
    with pytest.raises(InputError, match="no parameter to estimate"):
        Layout(model, model.encoder)
    model.decoder[0].float()
    with pytest.raises(InputError, match=r"must share dtype and device: decoder.2.weight"):
        Layout(model)


def make(model: nn.Module, pairs: int = 3, mirrored: bool = True, sigma: float = 0.2) -> Population:
    layout = Layout(model)
    flat = torch.empty(pairs, layout.size, dtype=layout.dtype)
    fill_directions(flat, 0, seed=0, step=0, sigma=sigma, kind="gaussian")
    return Population(layout.centre(), layout.split(flat), mirrored)


def test_members_are_the_centre_plus_and_minus_each_direction():
    model = vae()
    population = make(model)
    assert population.num_members == 6
    assert population.signs.tolist() == [1, 1, 1, -1, -1, -1]
    for name, values in population.parameters().items():
        centre, direction = population.centre[name], population.directions[name]
        torch.testing.assert_close(values[:3], centre + direction)
        torch.testing.assert_close(values[3:], centre - direction)
    assert make(model, mirrored=False).num_members == 3


class Shared(nn.Module):
    """One module used twice, and one parameter in two modules."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 6).double()
        self.b = self.a
        self.c = nn.Linear(6, 6).double()
        self.d = nn.Linear(6, 6).double()
        self.d.weight = self.c.weight

    def loss(self, batch, noise):
        return self.d(self.c(self.b(self.a(batch)).tanh())).sum(1)


@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_shared_modules_and_parameters(mode):
    model = Shared()
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    population = make(model)
    losses = evaluate_members(model, population, X, NOISE, mode=mode)
    for name, p in model.named_parameters():
        assert p is before[name][0]
        assert torch.equal(p, before[name][1])
    with torch.no_grad():  # by hand, in place
        for name, p in model.named_parameters():
            p.add_(population.directions[name][1])
        torch.testing.assert_close(losses[1], model.loss(X, NOISE))


class Normed(nn.Module):
    """BatchNorm and dropout, in training."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1)
        ).double()

    def loss(self, batch, noise):
        return self.layers(batch)[:, 0] ** 2


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = kind(3, 4, batch_first=True).double()

    def loss(self, batch, noise):
        return self.recurrent(batch.view(-1, 2, 3))[0].square().sum((1, 2))


@pytest.mark.parametrize("rows", [None, torch.tensor([[0, 2], [1, 4], [3, 3]]).repeat(2, 1)])
@pytest.mark.parametrize("model", [vae(), Normed()], ids=["vae", "batch norm and dropout"])
def test_vmapped_equals_looped(model, rows):
    population = make(model)
    losses = [
        evaluate_members(model, population, X, NOISE, mode=mode, num_samples=2, rows=rows)
        for mode in ("vmap", "loop")
    ]
    assert losses[0].shape == (6, 5 if rows is None else 2)
    torch.testing.assert_close(*losses)


def test_buffers_are_never_perturbed_nor_edited():
    model = Normed()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for mode in ("vmap", "loop"):
        evaluate_members(model, make(model), X, NOISE, mode=mode)
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, before[name])
    assert not any("running" in name for name in Layout(model).parameters)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_looped(kind):
    model = Recurrent(kind)
    assert needs_loop(model)
    assert not needs_loop(vae())
    assert evaluate_members(model, make(model), X, NOISE, mode="loop").shape == (6, 5)


def test_a_part_in_training_keeps_its_buffers():
    model = Normed().eval()
    model.layers[1].train()
    for mode in ("vmap", "loop"):
        evaluate_members(model, make(model), X, NOISE, mode=mode)
    assert model.layers[1].num_batches_tracked == 0


def test_losses_must_match_the_batch():
    class Short(Normed):
        def loss(self, batch, noise):
            return super().loss(batch, noise)[:3]

    with pytest.raises(InputError, match=r"= \(5,\); got \(3,\)"):
        evaluate_members(Short(), make(Short()), X, NOISE, mode="loop")
    with pytest.raises(InputError, match="say mode='loop'"):
        evaluate_members(Recurrent(nn.GRU), make(Recurrent(nn.GRU)), X, NOISE, mode="vmap")


def test_a_loss_of_the_wrong_shape_is_refused():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.zeros(2))

        def loss(self, batch, noise):
            return self.theta.sum()

    for mode in ("vmap", "loop"):
        with pytest.raises(InputError, match=r"one loss per example, .* = \(5,\); got \(\)"):
            evaluate_members(Wrong(), make(Wrong()), X, NOISE, mode=mode)
