"""What every model of the registry keeps to. A new one is covered by its line there."""

import pytest
import registered
import torch
from parser_models import losses, perturbed

import nestruct
from nestruct import Noise
from nestruct.data import batch_size
from nestruct.models.hooks import HasMetrics
from nestruct.models.registry import MODELS
from nestruct.structures.base import Enumerable
from nestruct.training import Recipe, train

NOISE = Noise(seed=1, step=2)


@pytest.fixture(params=MODELS)
def name(request) -> str:
    return request.param


@pytest.fixture
def built(name) -> registered.Built:
    return registered.build(name)


def test_a_loss_for_each_example_that_the_noise_decides(built):
    model, batch, _ = built
    model.eval()
    loss = model.loss(batch, NOISE)
    assert loss.shape == (batch_size(batch),)
    assert loss.isfinite().all()
    torch.manual_seed(3)  # nothing comes from torch's generator
    assert torch.equal(model.loss(batch, NOISE), loss)
    assert not torch.equal(model.loss(batch, NOISE.replace(step=3)), loss)
    rows = torch.tensor([5, 0])  # alone, an example's loss at given structures is the same
    few = nestruct.select_rows(batch, rows)
    z = model.infer(batch)
    all_of_them = model.loss_at(batch, model.encode(batch), z)[rows]
    size = model.encode(few).shape[1:]  # a shorter batch may be padded less
    less = z[rows][(slice(None), *map(slice, size))]
    torch.testing.assert_close(model.loss_at(few, model.encode(few), less), all_of_them)


def test_scores_are_those_of_its_structure_and_context_is_accepted(built):
    model, batch, _ = built
    scores, context = model.encode(batch), model.context(batch)
    assert isinstance(model, nestruct.StructuredModel)
    assert len(scores) == batch_size(batch)
    assert all(len(value) == len(scores) for value in context.values())
    z = model.structure.argmax(scores.detach(), **context)
    assert z.shape == scores.shape
    with pytest.raises(nestruct.InputError, match="no_such_context"):
        model.structure.argmax(scores.detach(), **context, no_such_context=scores[:, 0])


def test_structures_are_legal_members(built):
    model, batch, _ = built
    context = model.context(batch)
    assert isinstance(model.structure, Enumerable)
    best, drawn = model.infer(batch), model.sample(batch, 3, NOISE)
    assert drawn.shape == (3, *best.shape)
    assert model.structure.contains(best, **context).all()
    assert model.structure.contains(drawn, **context).all()
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(model.sample(batch, 2, NOISE), drawn[:2])


def test_decode_takes_leading_axes(built):
    model, batch, _ = built
    z = model.sample(batch, 6, NOISE)
    found = model.decode(batch, z.unflatten(0, (2, 3)))
    assert found.shape == (2, 3, batch_size(batch))
    one_by_one = torch.stack([model.decode(batch, each) for each in z])
    torch.testing.assert_close(found.flatten(0, 1), one_by_one)


def test_metrics_have_a_value_for_each_example(built):
    model, batch, _ = built
    assert isinstance(model, HasMetrics)
    model.eval()
    metrics = model.metrics(batch, NOISE)
    assert "loss" in metrics
    for key, value in metrics.items():
        for part in value if isinstance(value, tuple) else (value,):
            assert part.shape == (batch_size(batch),), key
            assert not part.requires_grad, key


def test_its_state_makes_another_the_same(name, built):
    model, batch, _ = built
    other = registered.build(name, seed=1).model
    before = other.eval().loss(batch, NOISE)
    other.load_state_dict(model.state_dict())
    loss = model.eval().loss(batch, NOISE)
    assert torch.equal(other.loss(batch, NOISE), loss)
    assert not torch.equal(before, loss)


def test_members_side_by_side_are_those_of_a_loop(built):
    """Mirrored pairs with a minibatch, normalisation in training mode included."""
    model, batch, _ = built
    population = perturbed(model)
    found = [losses(model, population, batch, mode) for mode in ("vmap", "loop")]
    assert found[0].shape == (6, batch_size(batch))
    torch.testing.assert_close(*found)
    assert len(found[0].mean(1).unique()) == 6


def test_a_run_of_it_is_loaded(name, tmp_path):
    """From its run folder alone, with what its data gave it."""
    data, estimator = registered.data_for(name), {"sigma": 0.1, "population_size": 4}
    tables = {
        "title": "A run of a contract",
        "device": "cpu",
        "data": {"name": data, **registered.SMALL_DATA.get(data, {})},
        "model": {"name": name, **registered.SMALL_MODELS.get(name, {})},
        "estimator": {"name": "NES", "mode": "vmap", **estimator},
        "optimizer": {"name": "Adam", "lr": 0.01},
        "training": {"max_steps": 2, "batch_size": 4},
    }
    train(Recipe.from_tables(tables), tmp_path / "run", progress=False)
    model, (fresh, _, source) = nestruct.load(tmp_path / "run"), registered.build(name)
    assert type(model) is MODELS[name].make
    assert {k: v.shape for k, v in model.named_parameters()} == {
        k: v.shape for k, v in fresh.named_parameters()
    }
    batch = source.splits()["test"]
    values = nestruct.evaluate(model, batch, seed=0)
    assert values["loss"] == nestruct.evaluate(model, batch, seed=0)["loss"]
