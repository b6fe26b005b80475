"""Which settings a resumed run may change."""

import re

import pytest
import torch
import toys
from fits import DATA, CrashError, adam, crash_at, nes, train
from torch.optim import lr_scheduler

import nestruct
from nestruct.training.run import read_config


def test_another_seed_is_another_run(tmp_path):
    train(run=tmp_path, max_steps=3)
    with pytest.raises(nestruct.InputError, match="began with seed 0, not 7"):
        train(run=tmp_path, max_steps=6, resume=True, seed=7)


def adam_groups(model, lr=0.02):
    groups = [{"params": model.encoder.parameters()}, {"params": model.decoder.parameters()}]
    return torch.optim.Adam([groups[0], groups[1] | {"lr": lr}], lr=0.01)


@pytest.mark.parametrize(
    ("make", "first", "second", "message"),
    [
        (adam, {"lr": 0.1}, {"lr": 0.001}, "optimizer.lr 0.1, not 0.001"),
        (adam, {}, {"betas": (0.5, 0.9)}, "optimizer.betas [0.9, 0.999], not [0.5, 0.9]"),
        (adam_groups, {}, {"lr": 0.03}, "optimizer.group_1.lr 0.02, not 0.03"),
    ],
)
def test_an_optimizer_with_other_settings_cannot_take_up_a_run(
    tmp_path, make, first, second, message
):
    def run(steps, **options):
        model = toys.vae()
        optimizer = make(model, **options)
        settings = {"max_steps": steps, "run": tmp_path, "resume": True, "progress": False}
        nestruct.fit(model, nes(), optimizer, DATA, **settings)

    run(3, **first)
    run(6, **first)
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(nestruct.InputError, match=re.escape(f"This run began with {message}:")):
        run(9, **second)
    assert (tmp_path / "config.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 25}, "training.batch_size 8, not 25"),
        ({"batch_size": None}, "training.batch_size 8, not none"),
        ({"patience": 3}, "training.patience none, not 3"),
        ({"make": nestruct.Enumeration}, "estimator.name NES, not Enumeration"),
        (
            {"make": lambda: nestruct.NES(sigma=0.5, population_size=8, mode="vmap")},
            "estimator.sigma 0.1, not 0.5 and estimator.population_size 6, not 8",
        ),
        ({"scheduler": None}, "scheduler.name StepLR, not none"),
        ({"scheduler": lambda o: lr_scheduler.StepLR(o, 5)}, "scheduler.step_size 2, not 5"),
    ],
)
def test_other_settings_cannot_take_up_a_run(tmp_path, change, message):
    options = {"run": tmp_path, "scheduler": lambda o: lr_scheduler.StepLR(o, 2)}
    train(max_steps=3, **options)
    with pytest.raises(nestruct.InputError, match=re.escape(message)):
        train(**({"max_steps": 6, "resume": True} | options | change))


def test_another_model_cannot_take_up_a_run(tmp_path):
    train(run=tmp_path)
    model = toys.vae(hidden=7)
    options = {"max_steps": 20, "batch_size": 8, "eval_interval": 4, "progress": False}
    with pytest.raises(nestruct.InputError, match="another model"):
        nestruct.fit(model, nes(), adam(model, lr=0.02), DATA, run=tmp_path, resume=True, **options)


def test_what_no_parameter_depends_on_may_change(tmp_path):
    train(run=tmp_path, max_steps=3)
    other = {"eval_batch_size": 5, "log_interval": 2, "eval_interval": 4, "checkpoint_seconds": 5.0}
    _, result = train(run=tmp_path, max_steps=6, resume=True, **other)
    assert result.step == 6
    _, result = train(run=tmp_path, max_steps=9, resume=True, make=lambda: nes(chunk_size=2))
    assert result.step == 9


def test_a_longer_run_is_remembered(tmp_path):
    train(run=tmp_path, max_steps=40)
    with pytest.raises(CrashError):
        train(run=tmp_path, max_steps=80, resume=True, callbacks=[crash_at(60)])
    config = read_config(tmp_path)
    assert config["training"]["max_steps"] == 80
    assert config["training"]["log_interval"] == 1


def test_a_longer_training_keeps_the_intervals_that_it_began_with(tmp_path):
    train(run=tmp_path, max_steps=40, eval_interval=None)
    train(run=tmp_path, max_steps=80, eval_interval=None, resume=True)
    assert read_config(tmp_path)["training"]["eval_interval"] == 2
    train(run=tmp_path, max_steps=120, eval_interval=4, resume=True)
    assert read_config(tmp_path)["training"]["eval_interval"] == 4
