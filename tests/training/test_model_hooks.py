"""What a model may define, as training uses it: ``after_step`` and ``details``."""

import json

import pytest
import torch
import toys

import nestruct
from nestruct.training.run import read_checkpoint

DATA, HELD_OUT = toys.bits(32, 6), toys.bits(8, 6, seed=1)


class Decaying(nestruct.StructuredVAE):
    """Pulls its weights to zero after each step, and forgets the momentum of every other one."""

    def after_step(self, step, optimizer):
        self.seen = [*getattr(self, "seen", []), step]
        with torch.no_grad():
            for parameter in self.parameters():
                parameter *= 1 - 0.1 / (1 + step)
                if step % 2:
                    optimizer.state[parameter]["exp_avg"].zero_()


def decaying() -> nestruct.StructuredVAE:
    plain = toys.vae()
    return Decaying(plain.encoder, plain.decoder, plain.structure)


def fit(model, **options):
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    nes = nestruct.NES(sigma=0.1, population_size=6, mode="vmap")
    options = {"max_steps": 6, "batch_size": 8, "progress": False} | options
    nestruct.fit(model, nes, adam, DATA, **options)
    return model, adam


def test_after_step_follows_every_step_of_the_optimizer():
    model, adam = fit(decaying())
    assert model.seen == [0, 1, 2, 3, 4, 5]
    weight = model.encoder[0].weight
    assert not adam.state[weight]["exp_avg"].any()  # of step 5
    assert adam.state[weight]["exp_avg_sq"].all()
    without, _ = fit(toys.vae())
    assert weight.norm() < 0.9 * without.encoder[0].weight.norm()


def test_a_resumed_run_repeats_after_step(tmp_path):
    whole, _ = fit(decaying(), run=tmp_path / "whole")
    fit(decaying(), run=tmp_path / "cut", max_steps=3)
    again, _ = fit(decaying(), run=tmp_path / "cut", resume=True)
    assert again.seen == [3, 4, 5]
    for one, two in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)
    saved = [read_checkpoint(tmp_path / name / "checkpoints/last") for name in ("whole", "cut")]
    for one, two in zip(*(c.optimizer["optimizer"]["state"].values() for c in saved), strict=True):
        assert all(torch.equal(one[key], two[key]) for key in one)


class Detailed(nestruct.StructuredVAE):
    def details(self, batch):
        assert not self.training
        assert not torch.is_grad_enabled()
        ones = batch.sum(1).int().tolist()
        return {"examples": {"ones": ones}, "weight": float(self.encoder[0].weight.sum())}


def detailed() -> nestruct.StructuredVAE:
    plain = toys.vae()
    return Detailed(plain.encoder, plain.decoder, plain.structure)


def test_details_are_saved_with_the_best_and_the_last_parameters(tmp_path):
    run = tmp_path / "run"
    options = {"validation": HELD_OUT, "test": HELD_OUT, "eval_interval": 2, "run": run}
    model, _ = fit(detailed(), metric="steps", metrics=counting(), **options)
    found = json.loads((run / "details.json").read_text())
    assert found["ones"] == HELD_OUT.sum(1).int().tolist()
    assert {key: found[key] for key in ("format", "split")} == {"format": 1, "split": "test"}
    for name, step in {"best": 2, "last": 6}.items():
        state = read_checkpoint(run / "checkpoints" / name).model
        weight = float(state["encoder.0.weight"].sum())
        assert found["models"][name] == {"step": step, "weight": weight}
    assert found["models"]["best"]["weight"] == float(model.encoder[0].weight.detach().sum())


def counting():
    """A metric that is best at the second evaluation."""
    values = iter([1.0, 0.0, 2.0, 3.0, 4.0])
    return lambda model, batch, noise: {"steps": torch.full((len(batch),), next(values))}


def test_a_model_without_details_has_no_such_file(tmp_path):
    fit(toys.vae(), test=HELD_OUT, run=tmp_path / "run")
    assert not (tmp_path / "run" / "details.json").exists()


def test_details_that_are_no_json_are_refused(tmp_path):
    model = detailed()
    model.details = lambda batch: {"tensor": batch}
    with pytest.raises(nestruct.InputError, match=r"Detailed\.details must give plain"):
        fit(model, test=HELD_OUT, run=tmp_path / "run")
