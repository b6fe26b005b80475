"""Compiled models: every part of the library sees the module inside."""

from functools import partial

import pytest
import torch
import toys
from fits import DATA, HELD_OUT, crash_at, nes
from torch import nn

import nestruct
from nestruct.estimators.registry import ESTIMATORS
from nestruct.models.compiled import load_state, state_of, unwrap
from nestruct.training.run import read_checkpoint

compiled = partial(torch.compile, backend="eager")  # the others need a compiler of C++
OPTIONS = {
    "NES": {"sigma": 0.1, "population_size": 6},
    "SNES": {"sigma": 0.1, "population_size": 6},
    "NVIL": {"hidden_size": 4},
}


def inside(model):
    """A model whose networks are compiled."""
    model.encoder, model.decoder = compiled(model.encoder), compiled(model.decoder)
    return model


class Taught(nestruct.StructuredModel):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 1).double()

    def loss(self, batch, noise):
        return (self.encoder(batch)[:, 0] - 1).square()


def problem(name):
    if name == "DPP":
        return toys.Sentences(nestruct.ProjectiveTree()), toys.sentences(2, 3, 1)
    if name == "Supervised":
        return Taught(), DATA
    return toys.vae(), DATA[:4]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_takes_a_compiled_model(name):
    grads = []
    for wrap in (lambda model: model, compiled):
        torch.manual_seed(0)
        model, batch = problem(name)
        estimator = ESTIMATORS[name](**OPTIONS.get(name, {}))
        estimator.backward(wrap(model), batch, seed=0)
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    assert grads[0]
    for plain, other in zip(*grads, strict=True):
        assert torch.equal(plain, other)


def test_what_is_compiled_as_a_whole_is_the_module_inside():
    model = toys.vae()
    assert unwrap(compiled(model)) is model
    assert unwrap(model) is model
    assert nestruct.evaluate(compiled(model), HELD_OUT) == nestruct.evaluate(model, HELD_OUT)
    small = toys.vae()
    options = {"num_trials": 10, "num_reference": 20}
    estimator = nestruct.NES(sigma=0.3, population_size=10)
    checks = [
        nestruct.check_gradient(model, estimator, DATA[:2], **options)
        for model in (small, compiled(small))
    ]
    assert checks[0] == checks[1]
    gaps = [
        nestruct.smoothing_gap(model, DATA[:2], sigma=0.1, num_perturbations=8)
        for model in (small, compiled(small))
    ]
    assert gaps[0] == gaps[1]


def test_a_compiled_encoder_stays_compiled_and_gives_the_same_gradient():
    estimators = {
        "vmap": nes(),
        "loop": nestruct.NES(sigma=0.1, population_size=6, mode="loop"),
        "one": nestruct.StructureNES(),
    }
    for name, estimator in estimators.items():  # one after the other: none spoils it for the next
        calls = []

        def backend(graph, inputs, calls=calls):
            calls.append(len(inputs))
            return graph.forward

        plain, other = toys.vae(), toys.vae()
        other.encoder = torch.compile(other.encoder, backend=backend)
        for model in (plain, other):
            estimator.backward(model, DATA[:4], seed=0)
        assert bool(calls) == (name != "vmap")
        for a, b in zip(plain.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_parameters_have_the_names_of_a_model_that_is_not_compiled():
    plain, other = toys.vae(), inside(toys.vae())
    assert list(state_of(other)) == list(plain.state_dict())
    for tensor in plain.state_dict().values():
        tensor.zero_()
    load_state(other, state_of(plain))
    assert not any(tensor.any() for tensor in state_of(other).values())
    load_state(plain, inside(toys.vae()).state_dict())
    assert any(tensor.any() for tensor in plain.state_dict().values())
    with pytest.raises(RuntimeError, match="Missing key"):
        load_state(plain, {})


@pytest.mark.parametrize("wrap", [compiled, inside])
def test_a_run_of_a_compiled_model(tmp_path, wrap):
    """It is that of the plain model, can be resumed either way, and is loaded into either."""

    def run(wrap, folder, **options):
        model = toys.vae()
        wrapped = wrap(model)
        adam = torch.optim.Adam(wrapped.parameters(), lr=0.02)
        options = {"log_interval": 1, "max_steps": 6, "checkpoint_seconds": 0} | options
        options |= {"validation": HELD_OUT, "run": tmp_path / folder, "progress": False}
        nestruct.fit(wrapped, nestruct.StructureNES(), adam, DATA, **options)
        return model

    plain = run(lambda model: model, "plain")
    with pytest.raises(Exception, match="callback"):
        run(wrap, "cut", callbacks=[crash_at(3)])
    other = run(lambda model: model, "cut", resume=True)
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    saved = read_checkpoint(tmp_path / "cut" / "checkpoints" / "best").model
    assert list(saved) == list(plain.state_dict())
    loaded = nestruct.load(tmp_path / "cut", wrap(toys.vae()))
    assert nestruct.evaluate(loaded, HELD_OUT) == nestruct.evaluate(plain, HELD_OUT)
