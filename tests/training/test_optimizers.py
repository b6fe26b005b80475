"""Optimizers: all of them resume, and those that cannot work are refused."""

import pytest
import torch
import toys
from fits import DATA, CrashError, Momentum, crash_at, metrics, nes, train

import nestruct
from nestruct.training.recipes.parts import OPTIMIZERS
from nestruct.training.run import read_checkpoint


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


def test_optimizers_that_cannot_work_are_refused(tmp_path):
    model, other = toys.vae(), toys.vae()
    options = {"max_steps": 2, "progress": False, "run": tmp_path / "run"}
    with pytest.raises(nestruct.InputError, match="LBFGS"):
        nestruct.fit(model, nes(), torch.optim.LBFGS(model.parameters()), DATA, **options)
    with pytest.raises(nestruct.InputError, match="none of the model's parameters"):
        nestruct.fit(model, nes(), torch.optim.SGD(other.parameters()), DATA, **options)
    assert not (tmp_path / "run").exists()


def test_an_estimators_parameters_join_the_optimizer_once():
    estimator = Momentum()
    train(lambda: estimator, max_steps=4)
    assert estimator.offset != 0
