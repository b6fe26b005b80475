"""Dead categories become halves of costly ones, and resumed runs do it to the same bits."""

import math

import pytest
import torch

import nestruct
from nestruct import InputError, Noise
from nestruct.models import CategoricalVAE
from nestruct.models.revival import NOISE, preferences, revive

IMAGES = (torch.rand(400, 12, generator=torch.Generator().manual_seed(0)) < 0.4).float()


def with_a_dead_category(**options):
    torch.manual_seed(0)
    model = CategoricalVAE(12, hidden_size=8, num_classes=4, **options)
    with torch.no_grad():
        model.encoder[-1].weight.mul_(5)
        model.encoder[-1].bias.copy_(torch.tensor([0.0, 0.0, -50.0, 0.0]))
    return model


def test_preferences_by_hand():
    model = with_a_dead_category()
    counts, costs = preferences(model, IMAGES, 4)
    choice = model.encode(IMAGES).argmax(-1)
    prototypes = model.prototypes()[choice]
    each = torch.nn.functional.binary_cross_entropy(prototypes, IMAGES, reduction="none").sum(-1)
    for category in range(4):
        assert counts[category] == (choice == category).sum()
        expected = each[choice == category].sum().double()
        torch.testing.assert_close(costs[category], expected, rtol=1e-5, atol=1e-5)
    assert counts[2] == 0


def test_a_dead_category_becomes_half_of_the_costliest():
    model = with_a_dead_category()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.loss(IMAGES, Noise(seed=0)).sum().backward()
    adam.step()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    counts, costs = preferences(model, IMAGES, 4)
    donor = int(costs.argmax())
    old = model.metrics(IMAGES, Noise(seed=0))["loss"].mean()
    layers = model.encoder[-1], model.decoder[0]
    assert revive(*layers, counts, costs, adam, Noise(seed=0, step=7)) == 1
    after = dict(model.named_parameters())
    last, first = "encoder.2", "decoder.0"
    assert torch.equal(after[f"{last}.weight"][2], before[f"{last}.weight"][donor])
    both = after[f"{last}.bias"][[2, donor]]
    torch.testing.assert_close(both, (before[f"{last}.bias"][donor] - math.log(2)).expand(2))
    moved = after[f"{first}.weight"][:, 2] - before[f"{first}.weight"][:, donor]
    assert 0 < moved.abs().max() < 6 * NOISE
    others = [k for k in range(4) if k not in (2, donor)]
    for name in (f"{last}.weight", f"{last}.bias"):
        assert torch.equal(after[name][others], before[name][others])
    assert torch.equal(after[f"{first}.weight"][:, others], before[f"{first}.weight"][:, others])
    for parameter, axis in ((layers[0].weight, 0), (layers[0].bias, 0), (layers[1].weight, 1)):
        for name in ("exp_avg", "exp_avg_sq"):
            moment = adam.state[parameter][name]
            assert torch.equal(moment.select(axis, 2), moment.select(axis, donor))
    new = model.metrics(IMAGES, Noise(seed=0))["loss"].mean()
    # Two halves weigh as much as the whole, and have up to log 2 more entropy.
    assert -math.log(2) < float(new - old) < 0.01


def test_without_dead_categories_nothing_happens():
    model = CategoricalVAE(12, hidden_size=8, num_classes=2)
    counts, costs = torch.tensor([7.0, 9.0]), torch.tensor([1.0, 2.0])
    adam = torch.optim.Adam(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    assert revive(model.encoder[-1], model.decoder[0], counts, costs, adam, Noise(seed=0)) == 0
    assert all(map(torch.equal, before, model.parameters()))


def train(model, steps, **options):
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    estimator = nestruct.NES(sigma=0.1, population_size=10, mode="vmap")
    options = {"batch_size": 50, "progress": False, "validation": IMAGES[:50]} | options
    return nestruct.fit(model, estimator, adam, IMAGES, max_steps=steps, **options)


def test_training_revives_when_it_is_due_and_only_then():
    cases = (({}, False), ({"revival": 4}, True), ({"revival": 4, "revival_until": 3}, False))
    for options, revived in cases:
        model = with_a_dead_category(**options)
        train(model, 4)
        assert bool(model.encoder[-1].bias[2] > -10) == revived


def test_a_resumed_run_revives_to_the_same_bits(tmp_path):
    whole = with_a_dead_category(revival=3)
    train(whole, 8)
    model = with_a_dead_category(revival=3)
    train(model, 2, run=tmp_path / "run")
    again = with_a_dead_category(revival=3)
    train(again, 8, run=tmp_path / "run", resume=True)
    assert all(map(torch.equal, whole.parameters(), again.parameters()))


def test_it_needs_the_training_examples():
    model = with_a_dead_category(revival=1)
    adam = torch.optim.Adam(model.parameters())
    nes = nestruct.NES(sigma=0.1, population_size=4)
    with pytest.raises(InputError, match="revival looks at the training examples"):
        nestruct.fit(model, nes, adam, lambda step: IMAGES, max_steps=2, progress=False)
