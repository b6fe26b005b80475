"""The loop: what it trains, logs, keeps and stops at; and that a resumed run is the same run."""

import json
import logging
import os
import re
import signal
import threading

import numpy as np
import pytest
import torch
import toys
from torch.optim import lr_scheduler

import nestruct
from nestruct.errors import NestructError
from nestruct.estimators.base import StepReport
from nestruct.models import mlp
from nestruct.noise import Purpose, derive_seed
from nestruct.training.recipes.parts import OPTIMIZERS, PARTS
from nestruct.training.run import read_checkpoint, read_config
from nestruct.training.run.packing import pack

PATTERNS = toys.bits(4, 6, seed=3)  # to be found by the four categories
DATA, HELD_OUT = PATTERNS.repeat(10, 1), PATTERNS.repeat(5, 1)


class CrashError(Exception):
    pass


def crash_at(step: int):
    def callback(record):
        if record["step"] >= step:
            raise CrashError

    return callback


class Momentum(nestruct.estimators.Estimator):
    """An estimator with state of every kind: a running mean, a counter, a parameter of its own."""

    kind = "exact"

    def __init__(self) -> None:
        self.mean = torch.zeros((), dtype=torch.float64)
        self.calls = 0
        self.offset = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def parameters(self):
        return [self.offset]

    def state_dict(self):
        return {"mean": self.mean, "calls": self.calls, "offset": self.offset.data}

    def load_state_dict(self, state):
        self.mean, self.calls = state["mean"], state["calls"]
        self.offset.data.copy_(state["offset"])

    def estimate(self, model, layout, batch, noise):
        self.calls += 1
        exact, stats = nestruct.Enumeration().estimate(model, layout, batch, noise)
        self.mean = 0.9 * self.mean + 0.1 * stats["loss"]
        factor = 1 + 0.01 * self.mean + self.offset.detach()
        return [*(gradient * factor for gradient in exact), self.mean * 1e-2], stats


def estimators():
    options = {"NES": {"sigma": 0.1, "population_size": 6}, "SNES": {"population_size": 6}}
    for name, part in PARTS["estimator"].items():
        if name == "DPP":  # of trees only; it has no state
            continue
        yield pytest.param(lambda part=part, name=name: part.make(**options.get(name, {})), id=name)
    yield pytest.param(
        lambda: nestruct.Reinforce(baseline="ema", num_samples=1), id="Reinforce ema"
    )
    yield pytest.param(Momentum, id="Momentum")


def nes(**options):
    return nestruct.NES(sigma=0.1, population_size=6, mode="vmap", **options)


def train(make=nes, *, scheduler=None, lr=0.02, **options):
    model, estimator = toys.vae(), make()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    options = {"max_steps": 12, "batch_size": 8, "eval_interval": 4, "progress": False} | options
    options.setdefault("validation", HELD_OUT)
    result = nestruct.fit(
        model,
        estimator,
        optimizer,
        DATA,
        scheduler=None if scheduler is None else scheduler(optimizer),
        **options,
    )
    return model, result


def metrics(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("timing")
    return lines


def assert_same_run(one, two):
    assert metrics(one) == metrics(two)
    assert (one / "structures.jsonl").read_text() == (two / "structures.jsonl").read_text()
    for name in ("last", "best"):
        a, b = (read_checkpoint(run / "checkpoints" / name) for run in (one, two))
        assert a.step == b.step
        assert a.model.keys() == b.model.keys()
        for key in a.model:
            assert torch.equal(a.model[key], b.model[key]), key
        assert a.estimator.keys() == b.estimator.keys()
        states = [pack(one.estimator, "the estimator")[1] for one in (a, b)]
        torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)
        assert str(a.optimizer) == str(b.optimizer)


def test_it_learns_and_leaves_the_best_parameters():
    model, result = train(
        lambda: nestruct.NES(sigma=0.1, population_size=40), max_steps=150, lr=0.05
    )
    assert result.reason == "finished"
    assert result.best["loss"] < 0.9 * result.initial["loss"]
    assert result.evaluations == 150 * 40
    again = nestruct.evaluate(model, HELD_OUT, seed=derive_seed(0, Purpose.EVALUATION))
    assert again == result.best


@pytest.mark.parametrize("make", list(estimators()))
def test_resumed_is_uninterrupted(tmp_path, make):
    options = {"test": toys.bits(10, 6, seed=2), "log_interval": 1, "checkpoint_seconds": 0}
    train(make, run=tmp_path / "whole", **options)
    for step in (1, 6, 9):
        with pytest.raises(CrashError):
            train(make, run=tmp_path / "cut", resume=True, callbacks=[crash_at(step)], **options)
    train(make, run=tmp_path / "cut", resume=True, **options)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=12),
        lambda o: lr_scheduler.MultiStepLR(o, milestones=[3, 7, 7]),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=1.0),
        lambda o: lr_scheduler.SequentialLR(
            o,
            [lr_scheduler.LinearLR(o, total_iters=4), lr_scheduler.CosineAnnealingLR(o, T_max=8)],
            [4],
        ),
    ],
    ids=["one cycle", "milestones", "plateau", "sequence"],
)
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
def test_schedulers_resume(tmp_path, scheduler):
    options = {"log_interval": 1, "checkpoint_seconds": 0, "scheduler": scheduler}
    train(run=tmp_path / "whole", **options)
    with pytest.raises(CrashError):
        train(run=tmp_path / "cut", callbacks=[crash_at(6)], **options)
    train(run=tmp_path / "cut", resume=True, **options)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    rates = {line["lr"] for line in metrics(tmp_path / "whole") if line["split"] == "train"}
    assert len(rates) > 1


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path, capsys):
    options = {"log_interval": 1, "checkpoint_seconds": 0}
    train(run=tmp_path / "whole", **options)
    with pytest.raises(CrashError):
        train(run=tmp_path / "cut", callbacks=[crash_at(7)], **options)
    file = tmp_path / "cut" / "checkpoints" / "last" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    train(run=tmp_path / "cut", resume=True, **(options | {"progress": True}))
    output = capsys.readouterr().out
    assert "last/model.safetensors was truncated or edited" in output
    assert "Continuing at step 5." in output
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_best_checkpoint_that_is_newer_than_the_last_is_gone_on_from(tmp_path):
    """So a kill leaves it; its parameters must not pass for those of another step."""
    train(run=tmp_path / "whole", log_interval=1)
    for run, steps in (("cut", 12), ("short", 3)):
        with pytest.raises(CrashError):
            train(run=tmp_path / run, log_interval=1, callbacks=[crash_at(9)])
        folder = tmp_path / run / "checkpoints"
        assert [read_checkpoint(folder / name).step for name in ("last", "best")] == [1, 8]
        model, result = train(run=tmp_path / run, log_interval=1, resume=True, max_steps=steps)
        seed = derive_seed(0, Purpose.EVALUATION)
        assert nestruct.evaluate(model, HELD_OUT, seed=seed) == result.best
        assert result.best_step == read_checkpoint(folder / "best").step
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_every_checkpoint_lost_starts_anew_and_says_so(tmp_path, capsys):
    options = {"log_interval": 1}
    train(run=tmp_path / "whole", **options)
    with pytest.raises(CrashError):
        train(run=tmp_path / "cut", callbacks=[crash_at(9)], **options)
    for file in (tmp_path / "cut" / "checkpoints").rglob("*.safetensors"):
        file.write_bytes(b"")
    train(run=tmp_path / "cut", resume=True, **(options | {"progress": True}))
    assert "no checkpoint to continue from: starting anew at step 0." in capsys.readouterr().out
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_longer_training_goes_on_where_it_ended(tmp_path):
    options = {"test": HELD_OUT, "log_interval": 4}
    train(run=tmp_path / "long", max_steps=20, **options)
    train(run=tmp_path / "cut", max_steps=8, **options)
    assert metrics(tmp_path / "cut")[-1]["split"] == "test"
    _, result = train(run=tmp_path / "cut", resume=True, max_steps=20, **options)
    assert result.step == 20
    assert_same_run(tmp_path / "long", tmp_path / "cut")


def test_a_finished_run_is_left_alone(tmp_path):
    first, result = train(run=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    second, again = train(run=tmp_path, resume=True)
    assert again == result
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_early_stopping(tmp_path):
    _, result = train(lr=0.0, patience=2, max_steps=100, eval_interval=3, run=tmp_path)
    assert result.reason == "stopped early"
    assert result.step == 6
    assert result.best_step == 0
    _, again = train(lr=0.0, patience=2, max_steps=100, eval_interval=3, run=tmp_path, resume=True)
    assert again.step == 6


def test_a_metric_can_be_maximized():
    def measure(model, batch, noise):
        loss = model.loss(batch, noise)
        return {"loss": loss, "gain": -loss}

    _, low = train(metrics=measure, max_steps=24)
    _, high = train(metrics=measure, max_steps=24, metric="gain", maximize=True)
    assert low.best_step == high.best_step
    assert high.best["gain"] == -low.best["loss"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, capsys, number):
    def stop(record):
        if record["step"] == 5:
            os.kill(os.getpid(), number)

    options = {"log_interval": 1}
    train(run=tmp_path / "whole", **options)
    before = signal.getsignal(number)
    _, result = train(run=tmp_path / "cut", callbacks=[stop], **(options | {"progress": True}))
    assert signal.getsignal(number) is before
    assert (result.reason, result.step) == ("interrupted", 5)
    assert "continue with" in capsys.readouterr().out
    assert read_checkpoint(tmp_path / "cut" / "checkpoints" / "last").step == 5
    train(run=tmp_path / "cut", resume=True, **options)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


class Normed(nestruct.StructuredVAE):
    """With batch normalisation, whose statistics move in training mode."""

    def __init__(self, **options):
        torch.manual_seed(0)
        encoder = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4)
        )
        super().__init__(encoder, mlp(4, 5, 6), nestruct.Categorical(4), **options)


def train_normed(**options):
    model = Normed()
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    options = {"max_steps": 10, "eval_interval": 2, "progress": False} | options
    data, held_out = DATA.float(), HELD_OUT.float()
    return model, nestruct.fit(model, nes(), adam, data, validation=held_out, **options)


def test_what_is_saved_as_best_is_what_was_scored(tmp_path):
    """Drawing, evaluating and saving leave the statistics of batch normalisation alone."""
    bare, without = train_normed()
    model, result = train_normed(run=tmp_path)
    assert result.best == without.best
    for a, b in zip(bare.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    loaded = nestruct.load(tmp_path, Normed())
    seed = derive_seed(0, Purpose.EVALUATION)
    assert nestruct.evaluate(loaded, HELD_OUT.float(), seed=seed) == result.best


def test_batch_normalisation_resumes(tmp_path):
    options = {"log_interval": 1, "checkpoint_seconds": 0}
    train_normed(run=tmp_path / "whole", **options)
    with pytest.raises(CrashError):
        train_normed(run=tmp_path / "cut", callbacks=[crash_at(5)], **options)
    train_normed(run=tmp_path / "cut", resume=True, **options)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_optimizer_resumes(tmp_path, name, dtype):
    def run(folder, **options):
        model = toys.vae().to(dtype)
        optimizer = OPTIMIZERS[name].make(model.parameters(), lr=0.01)
        options = {"max_steps": 5, "log_interval": 1, "checkpoint_seconds": 0} | options
        nestruct.fit(model, nes(), optimizer, DATA.to(dtype), run=folder, progress=False, **options)

    run(tmp_path / "whole")
    with pytest.raises(CrashError):
        run(tmp_path / "cut", callbacks=[crash_at(3)])
    run(tmp_path / "cut", resume=True)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "cut")
    a, b = (read_checkpoint(tmp_path / n / "checkpoints" / "last") for n in ("whole", "cut"))
    assert all(torch.equal(a.model[key], b.model[key]) for key in a.model)
    assert str(a.optimizer) == str(b.optimizer)


def test_a_longer_run_is_remembered(tmp_path):
    train(run=tmp_path, max_steps=40)
    with pytest.raises(CrashError):
        train(run=tmp_path, max_steps=80, resume=True, callbacks=[crash_at(60)])
    config = read_config(tmp_path)
    assert config["training"]["max_steps"] == 80
    assert config["training"]["log_interval"] == 1


def test_a_scheduler_that_cannot_go_on_says_so(tmp_path):
    def make(optimizer):
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4)

    train(run=tmp_path, max_steps=4, scheduler=make)
    with pytest.raises(NestructError, match="The scheduler cannot go on at step 4"):
        train(run=tmp_path, max_steps=8, scheduler=make, resume=True)


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


def test_another_seed_is_another_run(tmp_path):
    train(run=tmp_path, max_steps=3)
    with pytest.raises(nestruct.InputError, match="began with seed 0, not 7"):
        train(run=tmp_path, max_steps=6, resume=True, seed=7)


def adam(model, **options):
    return torch.optim.Adam(model.parameters(), **options)


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


def test_what_no_parameter_depends_on_may_change(tmp_path):
    train(run=tmp_path, max_steps=3)
    other = {"eval_batch_size": 5, "log_interval": 2, "eval_interval": 4, "checkpoint_seconds": 5.0}
    _, result = train(run=tmp_path, max_steps=6, resume=True, **other)
    assert result.step == 6
    _, result = train(run=tmp_path, max_steps=9, resume=True, make=lambda: nes(chunk_size=2))
    assert result.step == 9


def test_a_longer_training_keeps_the_intervals_that_it_began_with(tmp_path):
    train(run=tmp_path, max_steps=40, eval_interval=None)
    train(run=tmp_path, max_steps=80, eval_interval=None, resume=True)
    assert read_config(tmp_path)["training"]["eval_interval"] == 2
    train(run=tmp_path, max_steps=120, eval_interval=4, resume=True)
    assert read_config(tmp_path)["training"]["eval_interval"] == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=12),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=12),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=1.0),
    ],
    ids=["cosine", "one cycle", "plateau"],
)
def test_the_objects_of_a_stopped_run_take_it_up_again(tmp_path, make):
    """As in a notebook, where a call is repeated with what the scheduler has moved meanwhile."""
    model, estimator = toys.vae(), nes()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    options = {"scheduler": make(optimizer), "validation": HELD_OUT, "eval_interval": 2}
    options |= {"max_steps": 12, "run": tmp_path, "progress": False, "checkpoint_seconds": 0}
    with pytest.raises(CrashError):
        nestruct.fit(model, estimator, optimizer, DATA, callbacks=[crash_at(8)], **options)
    assert optimizer.param_groups[0]["lr"] != 0.02
    assert nestruct.fit(model, estimator, optimizer, DATA, resume=True, **options).step == 12


def test_numbers_of_numpy(tmp_path):
    _, result = train(run=tmp_path, lr=np.float64(0.01), max_steps=np.int64(3))
    assert result.step == 3


def test_optimizers_that_cannot_work_are_refused(tmp_path):
    model, other = toys.vae(), toys.vae()
    options = {"max_steps": 2, "progress": False, "run": tmp_path / "run"}
    with pytest.raises(nestruct.InputError, match="LBFGS"):
        nestruct.fit(model, nes(), torch.optim.LBFGS(model.parameters()), DATA, **options)
    with pytest.raises(nestruct.InputError, match="none of the model's parameters"):
        nestruct.fit(model, nes(), torch.optim.SGD(other.parameters()), DATA, **options)
    assert not (tmp_path / "run").exists()


def test_nothing_is_written_where_the_first_evaluation_fails(tmp_path):
    with pytest.raises(nestruct.InputError, match="did you mean 'loss'"):
        train(run=tmp_path / "run", metric="los")
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_does_not_displace_the_good_one_before(tmp_path):
    with pytest.raises(CrashError):
        train(run=tmp_path, callbacks=[crash_at(7)], log_interval=1, checkpoint_seconds=0)
    file = tmp_path / "checkpoints" / "last" / "state.json"
    file.write_text("{}")
    good = read_checkpoint(tmp_path / "checkpoints" / "last.previous").step
    with pytest.raises(CrashError):  # saves once
        train(
            run=tmp_path,
            resume=True,
            callbacks=[crash_at(good + 2)],
            log_interval=1,
            checkpoint_seconds=0,
        )
    assert read_checkpoint(tmp_path / "checkpoints" / "last").step == good + 1
    assert read_checkpoint(tmp_path / "checkpoints" / "last.previous").step == good


def test_logs_that_lost_lines_are_noted_and_stay_readable(tmp_path, capsys):
    with pytest.raises(CrashError):
        train(run=tmp_path, callbacks=[crash_at(9)], log_interval=1, checkpoint_seconds=0)
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:4])[:-5])
    train(run=tmp_path, resume=True, log_interval=1, checkpoint_seconds=0, progress=True)
    assert "metrics.jsonl has lost" in capsys.readouterr().out
    assert metrics(tmp_path)[-1]["step"] == 12


def test_a_log_that_is_a_link_is_refused(tmp_path):
    train(run=tmp_path / "run", max_steps=2)
    outside = tmp_path / "outside"
    outside.write_text("precious\n" * 50)
    log = tmp_path / "run" / "metrics.jsonl"
    log.unlink()
    log.symlink_to(outside)
    with pytest.raises(NestructError, match="Cannot write"):
        train(run=tmp_path / "run", resume=True, max_steps=4)
    assert outside.read_text() == "precious\n" * 50


def test_threads_are_left_as_they_were(tmp_path):
    before = torch.get_num_threads()
    with pytest.raises(CrashError):
        train(run=tmp_path, callbacks=[crash_at(5)], log_interval=1, checkpoint_seconds=0)
    try:
        torch.set_num_threads(before + 1)
        train(run=tmp_path, resume=True, log_interval=1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_it_runs_in_a_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(train()[1]))
    thread.start()
    thread.join()
    assert results[0].reason == "finished"


def test_the_callers_random_state_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train()
    assert torch.equal(torch.rand(3), expected)


def test_models_that_draw_from_torch_resume_too(tmp_path):
    class Dropped(nestruct.StructuredVAE):
        def loss(self, batch, noise):
            return super().loss(torch.nn.functional.dropout(batch, 0.3, self.training), noise)

    def run(folder, **options):
        model = toys.vae()
        model.__class__ = Dropped
        adam = torch.optim.Adam(model.parameters(), lr=0.01)
        options = {"max_steps": 8, "log_interval": 1, "checkpoint_seconds": 0} | options
        estimator = nestruct.NES(sigma=0.1, population_size=4, mode="loop")
        nestruct.fit(
            model, estimator, adam, DATA, validation=HELD_OUT, run=folder, progress=False, **options
        )

    run(tmp_path / "whole")
    with pytest.raises(CrashError):
        run(tmp_path / "cut", callbacks=[crash_at(4)])
    run(tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_data_that_draw_from_torch_resume_too(tmp_path):
    def draw(step):
        return DATA[torch.randint(len(DATA), (4,))]

    def run(folder, **options):
        model = toys.vae()
        options = {"max_steps": 8, "log_interval": 1, "checkpoint_seconds": 0} | options
        options |= {"validation": HELD_OUT, "run": folder, "progress": False}
        nestruct.fit(model, nes(), adam(model), draw, **options)

    run(tmp_path / "whole")
    with pytest.raises(CrashError):
        run(tmp_path / "cut", callbacks=[crash_at(4)])
    run(tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_an_estimators_parameters_join_the_optimizer_once():
    estimator = Momentum()
    train(lambda: estimator, max_steps=4)
    assert estimator.offset != 0


def test_nes_keeps_its_filter_option():
    _, result = train(
        lambda: nestruct.NES(
            sigma=0.1, population_size=4, perturb=lambda name, p: name.startswith("encoder")
        ),
        max_steps=3,
    )
    assert result.reason == "finished"


def test_data_can_be_a_function_of_the_step():
    seen = []

    def minibatch(step):
        seen.append(step)
        return DATA[:4]

    model = toys.vae()
    adam = torch.optim.Adam(model.parameters())
    nestruct.fit(model, nes(), adam, minibatch, max_steps=3, progress=False)
    assert seen == [0, 0, 1, 2]  # the first one also for the estimator to look at


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


def test_a_model_that_only_has_a_loss_trains_and_loads(tmp_path):
    model = toys.Formula(lambda theta: (theta**2).sum())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"max_steps": 5, "progress": False, "run": tmp_path, "validation": torch.ones(2, 1)}
    nestruct.fit(model, nes(), sgd, torch.ones(2, 1), **options)
    other = toys.Formula(lambda theta: (theta**2).sum())
    nestruct.load(tmp_path, other)
    assert torch.equal(other.theta[0], model.theta[0])
    assert (tmp_path / "structures.jsonl").read_text() == ""
    with pytest.raises(nestruct.InputError, match=r"nestruct\.load\(run, model\)"):
        nestruct.load(tmp_path)
    with pytest.raises(nestruct.InputError, match="not those of this StructuredVAE"):
        nestruct.load(tmp_path, toys.vae())


def test_what_a_run_folder_says(tmp_path):
    train(run=tmp_path, test=HELD_OUT)
    names = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert names == [
        "checkpoints",
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "structures.jsonl",
    ]
    checkpoint = sorted(path.name for path in (tmp_path / "checkpoints" / "best").iterdir())
    assert checkpoint == [
        "estimator.safetensors",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert (first["step"], first["split"]) == (0, "validation")
    assert (last["step"], last["split"]) == (12, "test")
    assert set(last["timing"]) == {"seconds"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_step": 3}, "did you mean 'max_steps'"),
        ({"max_steps": -1}, r"training\.max_steps must not be negative"),
        ({"max_steps": 2.5}, r"training\.max_steps must be a whole number, got 2\.5"),
        ({"batch_size": 0}, r"training\.batch_size must be at least 1"),
        ({"matmul_precision": "low"}, r"training\.matmul_precision"),
        ({"metric": "los"}, r"training\.metric 'los' is not known; did you mean 'loss'"),
        ({"patience": 3, "validation": None}, "needs a validation set"),
        ({"validation": torch.zeros(0, 6)}, "nothing to evaluate on"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(nestruct.InputError, match=message):
        train(**options)


def test_steps_must_be_said():
    with pytest.raises(nestruct.InputError, match="max_steps is missing"):
        nestruct.fit(toys.vae(), nes(), None, DATA, progress=False)


def test_another_model_cannot_take_up_a_run(tmp_path):
    train(run=tmp_path)
    model = toys.vae(hidden=7)
    options = {"max_steps": 20, "batch_size": 8, "eval_interval": 4, "progress": False}
    with pytest.raises(nestruct.InputError, match="another model"):
        nestruct.fit(model, nes(), adam(model, lr=0.02), DATA, run=tmp_path, resume=True, **options)


def test_a_second_trainer_is_refused(tmp_path):
    def second(record):
        train(run=tmp_path, resume=True)

    with pytest.raises(NestructError, match="in use by another trainer"):
        train(run=tmp_path, callbacks=[second])
    train(run=tmp_path, resume=True)  # and the folder is free again


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    train(run=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(nestruct.InputError, match="already holds a run"):
        train(run=tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_other_things_does_not_become_a_run(tmp_path, resume):
    notes = tmp_path / "notes.txt"
    notes.touch()
    with pytest.raises(nestruct.InputError, match=r"other things.*notes\.txt.*say a new folder"):
        train(run=tmp_path, resume=resume)
    assert list(tmp_path.iterdir()) == [notes]
    notes.unlink()
    for name in (".lock", ".config.toml.writing", "environment.json", "train.log"):
        (tmp_path / name).touch()  # what a killed run and the shell may leave
    train(run=tmp_path, resume=resume)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NestructError, match=r"^Cannot write to .*: Not a directory"):
        train(run=tmp_path / "file" / "run")


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


def test_progress_says_what_matters(capsys):
    train(progress=True, log_interval=12, eval_interval=12)
    output = capsys.readouterr().out
    assert "step 12/12 | loss" in output
    assert "evals/s | solver" in output
    assert "step 12 validation: loss" in output
    assert not logging.getLogger("nestruct").handlers


def test_tensorboard_gets_the_records(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from nestruct.training.tensorboard import TensorBoard

    board = TensorBoard(tmp_path)
    train(callbacks=[board], log_interval=4)
    board.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [4, 8, 12]
    assert [event.step for event in events.Scalars("validation/loss")] == [0, 4, 8, 12]


def test_a_report_without_solver_time():
    class Quiet(nestruct.Enumeration):
        def backward(self, model, batch, *, seed, step=0):
            report = super().backward(model, batch, seed=seed, step=step)
            return StepReport(
                report.loss,
                report.loss_std,
                report.grad_norm,
                report.num_evaluations,
                report.num_failed,
            )

    _, result = train(Quiet, max_steps=3)
    assert result.reason == "finished"


def test_the_precision_of_products_is_set_and_put_back():
    model, seen = toys.vae(), []
    before = torch.get_float32_matmul_precision()
    nestruct.fit(
        model,
        nestruct.Enumeration(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        toys.bits(4, 6),
        max_steps=1,
        matmul_precision="high",
        callbacks=[lambda record: seen.append(torch.get_float32_matmul_precision())],
        progress=False,
    )
    assert seen == ["high"]
    assert torch.get_float32_matmul_precision() == before != "high"


def test_epochs_say_how_long(tmp_path):
    model, result = train(max_steps=0, max_epochs=3, eval_interval=None, run=tmp_path / "run")
    steps = len(DATA) // 8
    assert result.step == 3 * steps
    records = metrics(tmp_path / "run")
    assert [r["step"] for r in records if r["split"] == "validation"] == [
        steps * epoch for epoch in range(4)
    ]
    config = read_config(tmp_path / "run")
    assert config["training"]["max_steps"] == 3 * steps
    assert config["training"]["max_epochs"] == 3
    with pytest.raises(nestruct.InputError, match="max_epochs needs data whose length is known"):
        nestruct.fit(
            model, nes(), torch.optim.Adam(model.parameters()), lambda step: DATA, max_epochs=1
        )
    with pytest.raises(nestruct.InputError, match="max_epochs must be at least 1"):
        train(max_steps=0, max_epochs=0)


@pytest.mark.parametrize("option", ["smoothing_gap", "num_starts", "start_steps"])
def test_what_only_recipes_have_is_refused(option):
    with pytest.raises(nestruct.InputError, match=rf"training\.{option} is for recipes"):
        train(nes, **{option: 20})


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/home/me/sweep/seed=0", "seed=0"),
        ("--init-from=/home/me/run", "--init-from=run"),
        ("runs/a", "a"),
        ("estimator.sigma=0.1", "estimator.sigma=0.1"),
    ],
)
def test_an_environment_names_no_folders(word, kept):
    from nestruct.training.run.environment import _without_folder

    assert _without_folder(word) == kept


def test_a_run_without_validation_has_no_best_to_miss(tmp_path, caplog):
    options = {"max_steps": 3, "run": tmp_path, "progress": False}
    model = toys.vae()
    nestruct.fit(model, nes(), torch.optim.Adam(model.parameters()), DATA, **options)
    nestruct.load(tmp_path, toys.vae())
    assert "no checkpoint" not in caplog.text
