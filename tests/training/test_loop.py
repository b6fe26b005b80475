"""The loop: when it stops, what it counts, logs and keeps as best."""

import time

import pytest
import torch
import toys
from fits import HELD_OUT, Momentum, metrics, train
from torch.optim import lr_scheduler

import nestruct
from nestruct.reports import read_run


def test_early_stopping(tmp_path):
    _, result = train(lr=0.0, patience=2, max_steps=100, eval_interval=3, run=tmp_path)
    assert result.reason == "stopped early"
    assert result.step == 6
    assert result.best_step == 0
    _, again = train(lr=0.0, patience=2, max_steps=100, eval_interval=3, run=tmp_path, resume=True)
    assert again.step == 6


def test_a_limit_of_seconds(tmp_path):
    """The state at the end is evaluated too, and nothing is left to do."""

    def wait(event):
        time.sleep(0.02 * (event["split"] == "train"))

    options = {"max_steps": 1000, "eval_interval": 1000, "log_interval": 1, "max_seconds": 0.5}
    _, result = train(run=tmp_path, callbacks=[wait], **options)
    assert result.reason == "stopped in time"
    assert 1 <= result.step <= 25
    lines = metrics(tmp_path)
    steps = [line["step"] for line in lines if line["split"] == "validation"]
    assert steps == [0, result.step]
    _, again = train(run=tmp_path, resume=True, **options)
    assert (again.step, again.reason) == (result.step, "stopped in time")
    assert metrics(tmp_path) == lines
    assert read_run(tmp_path).finished
    with pytest.raises(nestruct.InputError, match="max_seconds must be positive, got 0"):
        train(max_seconds=0.0)


def test_a_metric_can_be_maximized():
    def measure(model, batch, noise):
        loss = model.loss(batch, noise)
        return {"loss": loss, "gain": -loss}

    _, low = train(metrics=measure, max_steps=24)
    _, high = train(metrics=measure, max_steps=24, metric="gain", maximize=True)
    assert low.best_step == high.best_step
    assert high.best["gain"] == -low.best["loss"]


def test_members_that_fail_are_counted(tmp_path):
    class Fragile(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(3))

        def loss(self, batch, noise):
            total = self.w.sum()
            return torch.where(total > 0.2, torch.nan, total**2) + 0 * batch.sum(1)

    model = Fragile()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"max_steps": 6, "log_interval": 2, "progress": False, "run": tmp_path}
    nestruct.fit(
        model, nestruct.NES(sigma=0.1, population_size=8), sgd, torch.ones(2, 3), **options
    )
    counts = [line["failed"] for line in metrics(tmp_path)]
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_losses_that_are_not_finite_are_null_and_never_best(tmp_path, capsys):
    def measure(model, batch, noise):
        return {"loss": torch.full((len(batch),), torch.nan)}

    _, result = train(run=tmp_path, metrics=measure, progress=True)
    assert result.best is None
    assert "No loss on validation data was finite" in capsys.readouterr().out
    values = [line["loss"] for line in metrics(tmp_path) if line["split"] == "validation"]
    assert set(values) == {None}


def test_a_share_of_nothing_is_null_in_logs_and_no_number_in_reports(tmp_path, capsys):
    def measure(model, batch, noise):
        loss = model.loss(batch, noise)
        return {"loss": loss, "share": (0 * loss, 0 * loss)}

    train(run=tmp_path / "run", metrics=measure, test=HELD_OUT, progress=True)
    assert "share not finite" in capsys.readouterr().out
    values = [line["share"] for line in metrics(tmp_path / "run") if line["split"] != "train"]
    assert set(values) == {None}
    assert toys.run_command("report", tmp_path / "run", "-o", tmp_path / "page.html") == 0


def test_any_object_with_a_step_is_a_scheduler():
    class Halving:
        def __init__(self, optimizer):
            self.optimizer = optimizer

        def step(self):
            self.optimizer.param_groups[0]["lr"] /= 2

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    seen = []
    train(scheduler=Halving, callbacks=[lambda r: seen.append(r.get("lr"))], max_steps=2, lr=1.0)
    assert 0.5 in seen


def test_parameters_of_an_estimator_are_scheduled_with_the_others():
    estimator = Momentum()

    def stop_after_one(optimizer):
        return lr_scheduler.MultiStepLR(optimizer, milestones=[1], gamma=0.0)

    train(lambda: estimator, scheduler=stop_after_one, max_steps=5, lr=0.02)
    assert float(estimator.offset.detach()) == pytest.approx(-0.02, rel=1e-4)  # a step of Adam
