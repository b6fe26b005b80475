"""The call as a whole: what it trains, on what, and what it leaves behind."""

import threading

import numpy as np
import pytest
import torch
import toys
from fits import DATA, HELD_OUT, CrashError, Normed, crash_at, metrics, nes, train, train_normed

import nestruct
from nestruct.estimators.base import StepReport
from nestruct.noise import Purpose, derive_seed
from nestruct.training.run import read_config


def test_it_learns_and_leaves_the_best_parameters():
    model, result = train(
        lambda: nestruct.NES(sigma=0.1, population_size=40), max_steps=150, lr=0.05
    )
    assert result.reason == "finished"
    assert result.best["loss"] < 0.9 * result.initial["loss"]
    assert result.evaluations == 150 * 40
    again = nestruct.evaluate(model, HELD_OUT, seed=derive_seed(0, Purpose.EVALUATION))
    assert again == result.best


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


def test_steps_must_be_said():
    with pytest.raises(nestruct.InputError, match="max_steps is missing"):
        nestruct.fit(toys.vae(), nes(), None, DATA, progress=False)


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


def test_data_can_be_a_function_of_the_step():
    seen = []

    def minibatch(step):
        seen.append(step)
        return DATA[:4]

    model = toys.vae()
    adam = torch.optim.Adam(model.parameters())
    nestruct.fit(model, nes(), adam, minibatch, max_steps=3, progress=False)
    assert seen == [0, 0, 1, 2]  # the first one also for the estimator to look at


def test_numbers_of_numpy(tmp_path):
    _, result = train(run=tmp_path, lr=np.float64(0.01), max_steps=np.int64(3))
    assert result.step == 3


def test_nes_keeps_its_filter_option():
    _, result = train(
        lambda: nestruct.NES(
            sigma=0.1, population_size=4, perturb=lambda name, p: name.startswith("encoder")
        ),
        max_steps=3,
    )
    assert result.reason == "finished"


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


def test_a_run_without_validation_has_no_best_to_miss(tmp_path, caplog):
    options = {"max_steps": 3, "run": tmp_path, "progress": False}
    model = toys.vae()
    nestruct.fit(model, nes(), torch.optim.Adam(model.parameters()), DATA, **options)
    nestruct.load(tmp_path, toys.vae())
    assert "no checkpoint" not in caplog.text


def test_nothing_is_written_where_the_first_evaluation_fails(tmp_path):
    with pytest.raises(nestruct.InputError, match="did you mean 'loss'"):
        train(run=tmp_path / "run", metric="los")
    assert not (tmp_path / "run").exists()


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
