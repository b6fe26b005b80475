"""A resumed run is the same run, whatever was lost of it."""

import pytest
import torch
import toys
from fits import (
    DATA,
    HELD_OUT,
    CrashError,
    Momentum,
    adam,
    assert_same_run,
    crash_at,
    metrics,
    nes,
    train,
    train_normed,
)
from torch.optim import lr_scheduler

import nestruct
from nestruct.errors import NestructError
from nestruct.estimators.registry import ESTIMATORS
from nestruct.noise import Purpose, derive_seed
from nestruct.training.run import read_checkpoint
from nestruct.training.run.checkpoint import write_checkpoint


def estimators():
    options = {"NES": {"sigma": 0.1, "population_size": 6}, "SNES": {"population_size": 6}}
    for name, make in ESTIMATORS.items():
        if name == "DPP":  # of trees only; it has no state
            continue
        yield pytest.param(lambda make=make, name=name: make(**options.get(name, {})), id=name)
    yield pytest.param(
        lambda: nestruct.Reinforce(baseline="ema", num_samples=1), id="Reinforce ema"
    )
    yield pytest.param(Momentum, id="Momentum")


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


def test_batch_normalisation_resumes(tmp_path):
    options = {"log_interval": 1, "checkpoint_seconds": 0}
    train_normed(run=tmp_path / "whole", **options)
    with pytest.raises(CrashError):
        train_normed(run=tmp_path / "cut", callbacks=[crash_at(5)], **options)
    train_normed(run=tmp_path / "cut", resume=True, **options)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


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


def test_a_scheduler_that_cannot_go_on_says_so(tmp_path):
    def make(optimizer):
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4)

    train(run=tmp_path, max_steps=4, scheduler=make)
    with pytest.raises(NestructError, match="The scheduler cannot go on at step 4"):
        train(run=tmp_path, max_steps=8, scheduler=make, resume=True)


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


def test_logs_that_lost_lines_are_noted_and_stay_readable(tmp_path, capsys):
    with pytest.raises(CrashError):
        train(run=tmp_path, callbacks=[crash_at(9)], log_interval=1, checkpoint_seconds=0)
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:4])[:-5])
    train(run=tmp_path, resume=True, log_interval=1, checkpoint_seconds=0, progress=True)
    assert "metrics.jsonl has lost" in capsys.readouterr().out
    assert metrics(tmp_path)[-1]["step"] == 12


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lines", {"../victim.txt": 0, "metrics.jsonl": 0}),
        ("lines", None),
        ("lines", {"metrics.jsonl": -1}),
        ("step", 1.5),
        ("decoded", "x"),
        ("solved", [1]),
        ("seconds", "x"),
        ("best", [1]),
        ("threads", "a"),
        ("more", 1),
    ],
    ids=str,
)
def test_a_crafted_checkpoint_is_refused_or_does_no_harm(tmp_path, name, value):
    """Its checksum is right, and what it says of the run is not."""
    run, victim = tmp_path / "run", tmp_path / "victim.txt"
    victim.write_text("mine")
    train(max_steps=3, run=run)
    for kind in ("best", "last"):
        found = read_checkpoint(run / "checkpoints" / kind)
        found.loop[name] = value
        write_checkpoint(run / "checkpoints", kind, found)
    harmless = name == "lines" and isinstance(value, dict) and min(value.values()) == 0
    if harmless:
        train(max_steps=4, run=run, resume=True)
    else:
        with pytest.raises(nestruct.InputError):
            train(max_steps=4, run=run, resume=True)
    assert victim.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "victim.txt"]
