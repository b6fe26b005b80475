"""The call as a whole: what it trains, on what, and what it leaves behind."""

import threading

import numpy as np
import pytest
import torch
import toys
from fits import DATA, HELD_OUT, CrashError, Normed, crash_at, metrics, nes, train, train_normed
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

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


class Table(Dataset):
    def __len__(self):
        return len(DATA)

    def __getitem__(self, place):
        return DATA[place]


class Empty(Table):
    def __len__(self):
        return 0


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA)


def fit(data, **options):
    model = toys.vae()
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    options = {"max_steps": 8, "eval_interval": 4, "progress": False} | options
    return model, nestruct.fit(model, nestruct.StructureNES(), adam, data, **options)


SAME = {
    "numpy": (DATA.numpy(), HELD_OUT.numpy()),
    "smaller numbers": (DATA.float().numpy(), HELD_OUT.byte().numpy().astype(np.float16)),
    "Dataset": (Table(), DataLoader(TensorDataset(HELD_OUT), batch_size=7)),
    "TensorDataset": (TensorDataset(DATA), TensorDataset(HELD_OUT)),
}


@pytest.mark.parametrize("kind", SAME)
def test_data_of_every_kind_train_as_tensors_do(kind):
    data, held_out = SAME[kind]
    options = {"batch_size": 8, "seed": 3}
    model, result = fit(data, validation=held_out, test=held_out, **options)
    plain, expected = fit(DATA, validation=HELD_OUT, test=HELD_OUT, **options)
    assert (result.best, result.test) == (expected.best, expected.test)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_dictionary_of_numpy():
    held_out = {"x": HELD_OUT.numpy(), "z": np.eye(4)[np.arange(len(HELD_OUT)) % 4]}
    _, result = fit({"x": DATA.numpy()}, validation=held_out)
    assert result.best.keys() == {"loss", "f1_map", "f1_sample"}


def test_a_loader_says_which_examples_a_step_sees():
    class Seen(nestruct.StructureNES):
        def backward(self, model, batch, *, seed, step=0):
            seen.append(batch)
            return super().backward(model, batch, seed=seed, step=step)

    model, seen = toys.vae(), []
    adam = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(DATA), batch_size=16)
    result = nestruct.fit(model, Seen(), adam, loader, max_epochs=2, progress=False)
    assert result.step == len(seen) == 6
    for batch, expected in zip(seen, 2 * DATA.split(16), strict=True):
        assert torch.equal(batch[0], expected)


def test_a_loader_without_a_length_and_one_with_a_batch_size():
    stream = DataLoader(Stream(), batch_size=16)
    assert fit(stream)[1].step == 8
    with pytest.raises(nestruct.InputError, match="max_epochs needs data whose length is known"):
        fit(stream, max_steps=0, max_epochs=1)
    for data, options in ((Empty(), {"max_steps": 0, "max_epochs": 1}), (Empty(), {})):
        with pytest.raises(nestruct.InputError, match="The DataLoader gives no batch: give it exa"):
            fit(DataLoader(data, batch_size=2), **options)
    with pytest.raises(nestruct.InputError, match="batch_size is 8, but the DataLoader says"):
        fit(DataLoader(Table(), batch_size=16), batch_size=8)


def test_a_run_of_a_loader_goes_on_and_says_what_it_does_not_promise(tmp_path, capsys):
    def loader():
        return DataLoader(Table(), batch_size=16, shuffle=True)

    options = {"run": tmp_path, "log_interval": 1, "checkpoint_seconds": 0}
    with pytest.raises(CrashError):
        fit(loader(), callbacks=[crash_at(5)], **options)
    assert read_config(tmp_path)["data"] == {"source": "DataLoader"}
    with pytest.raises(nestruct.InputError, match=r"began with data\.source DataLoader, not none"):
        fit(DATA, resume=True, **options)
    capsys.readouterr()
    options["progress"] = True
    _, result = fit(loader(), resume=True, **options)
    assert (result.reason, result.step) == ("finished", 8)
    assert "begins anew, in an order of its own" in capsys.readouterr().out
    assert [r["step"] for r in metrics(tmp_path)] == [*range(1, 9)]


def test_a_dataset_resumes_to_the_same_bits(tmp_path):
    options = {"log_interval": 1, "checkpoint_seconds": 0, "batch_size": 8}
    whole, _ = fit(Table(), **options)
    with pytest.raises(CrashError):
        fit(Table(), run=tmp_path, callbacks=[crash_at(5)], **options)
    model, _ = fit(Table(), run=tmp_path, resume=True, **options)
    for a, b in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_held_out_batches_of_several_shapes(tmp_path):
    class Sums(toys.Formula):
        def loss(self, batch, noise):
            return (self.theta[0].sum() - batch.sum(1)) ** 2

        def details(self, batch):
            raise AssertionError("of several shapes there are no details")

    batches = [torch.ones(3, 2), torch.ones(2, 5)]
    loader = DataLoader(batches, batch_size=None)
    model = Sums(lambda theta: theta)
    adam = torch.optim.Adam(model.parameters())
    options = {"validation": loader, "test": loader, "max_steps": 2, "progress": False}
    result = nestruct.fit(model, nes(), adam, loader, run=tmp_path, **options)
    mean = sum(model.loss(batch, None).sum().item() for batch in batches) / 5
    assert result.test["loss"] == pytest.approx(mean)


@pytest.mark.parametrize("make", [nes, nestruct.StructureNES])
def test_a_batch_on_another_device_than_the_model(make):
    model, far = toys.vae(), DATA.to("meta")
    with pytest.raises(nestruct.InputError, match="the batch is on meta and the model on cpu: mov"):
        make().backward(model, far, seed=0)
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(nestruct.InputError, match="the batch is on meta and the model on cpu"):
        nestruct.fit(model, make(), adam, lambda step: far, max_steps=1, progress=False)


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
