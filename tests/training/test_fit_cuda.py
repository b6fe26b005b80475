"""The loop on a GPU: captured steps, resumed to the same bits."""

import pytest
import torch
import toys

import nestruct
from nestruct.training import Recipe, read_recipe, train
from nestruct.training.run import read_checkpoint

pytestmark = pytest.mark.cuda


class CrashError(Exception):
    pass


def crash(record):
    if record["step"] >= 7:
        raise CrashError


def nes():
    return nestruct.NES(sigma=0.1, population_size=20)


def small_vae(run, make=nes, **options):
    model = toys.vae().float().cuda()
    adam = torch.optim.Adam(model.parameters(), lr=0.02, capturable=True)
    options = {"max_steps": 20, "batch_size": 8, "log_interval": 1, "eval_interval": 5} | options
    return nestruct.fit(
        model,
        make(),
        adam,
        toys.bits(40, 6).float(),
        validation=toys.bits(20, 6, seed=1).float(),
        run=run,
        checkpoint_seconds=0,
        progress=False,
        **options,
    )


def relational(run, **options):
    overrides = ["data.num_train=200", "training.max_steps=20", "training.log_interval=1"]
    overrides += ["training.checkpoint_seconds=0", "training.batch_size=16", "device=cuda"]
    recipe = Recipe.from_tables(read_recipe("graph-layout-tiny", overrides))
    train(recipe, run, progress=False, **options)


def assert_same(one, two):
    for name in ("last", "best"):
        a, b = (read_checkpoint(run / "checkpoints" / name).model for run in (one, two))
        for key in a:
            assert torch.equal(a[key], b[key]), (name, key)


@pytest.mark.parametrize(
    "make",
    [nes, lambda: nestruct.Reinforce(baseline="ema", num_samples=1), nestruct.NVIL],
    ids=["NES", "Reinforce ema", "NVIL"],
)
def test_a_captured_step_resumes_to_the_same_bits(tmp_path, make):
    small_vae(tmp_path / "whole", make)
    with pytest.raises(CrashError):
        small_vae(tmp_path / "cut", make, callbacks=[crash])
    small_vae(tmp_path / "cut", make, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_recipe_trains_on_the_gpu_and_resumes(tmp_path):
    relational(tmp_path / "whole")
    recipe = Recipe.from_tables(nestruct.training.read_config(tmp_path / "whole"))
    assert recipe.device == "cuda"
    # A shorter run, then continued: what a kill after step 8 would leave.
    overrides = {"max_steps": 8}
    tables = recipe.to_config()
    tables["training"] |= overrides
    train(Recipe.from_tables(tables), tmp_path / "cut", progress=False)
    train(recipe, tmp_path / "cut", resume=True, progress=False)
    last = [read_checkpoint(tmp_path / n / "checkpoints" / "last").model for n in ("whole", "cut")]
    for key in last[0]:
        assert torch.equal(last[0][key], last[1][key]), key
    model = nestruct.load(tmp_path / "whole")
    batch = {"x": torch.rand(3, 5, 10, 2, device="cuda")}
    assert model.structure.contains(model.infer(batch)).all()
