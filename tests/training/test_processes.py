"""Recipes trained by two and by three processes end as by one. Real processes, gloo."""

import json
from pathlib import Path

import fit_on_ranks
import pytest
import torch
import train_on_ranks
from forked import run_on_ranks

from nestruct.training.recipes import recipe_names
from nestruct.training.run import read_checkpoint

SCRIPT = Path(train_on_ranks.__file__)
UNTRIED = {"graph-layout-5-nes", "graph-layout-10"}  # a base of another, and another of more nodes

QUICK = train_on_ranks.QUICK
NAMES = [
    *(
        pytest.param(n, marks=() if n in QUICK else pytest.mark.slow)
        for n in train_on_ranks.RECIPES
    ),
    *(
        pytest.param(n, marks=[pytest.mark.data, pytest.mark.slow])
        for n in train_on_ranks.FROM_FILES
    ),
]


@pytest.fixture(scope="module")
def names(request):
    """The recipes of the tests that will run."""
    here = [item for item in request.session.items if item.path == request.path]
    mine = [item for item in here if not item.get_closest_marker("skip")]
    return sorted({item.callspec.params["name"] for item in mine if hasattr(item, "callspec")})


@pytest.fixture(scope="module")
def alone(tmp_path_factory, names):
    folder, threads = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    train_on_ranks.main(folder, names)
    torch.set_num_threads(threads)
    return folder


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def together(request, tmp_path_factory, names):
    folder = tmp_path_factory.mktemp(f"together{request.param}")
    run_on_ranks(request.param, SCRIPT, folder, *names)
    return folder


def test_every_recipe_is_here():
    assert set(train_on_ranks.EVERY) | UNTRIED == set(recipe_names())


def records(run):
    """The numbers of each record that do not depend on the machine; words are compared apart."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    numbers = [{k: r[k] for k in r if k not in ("timing", "split", "solved")} for r in found]
    return [r["split"] for r in found], numbers


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_ends_as_in_one_process(name, alone, together):
    one, many = (read_checkpoint(f / name / "checkpoints" / "last") for f in (alone, together))
    for key, expected in one.model.items():
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(many.model[key], expected, rtol=1e-4, atol=1e-5)
        else:
            assert many.model[key] == expected
    assert one.loop["reason"] == many.loop["reason"]
    assert one.loop["best_step"] == many.loop["best_step"]
    (splits, numbers), (other_splits, others) = records(alone / name), records(together / name)
    assert splits == other_splits
    for first, second in zip(numbers, others, strict=True):
        assert second == pytest.approx(first, rel=1e-4, abs=1e-4, nan_ok=True)


def test_loaders_and_callbacks_on_several_processes(tmp_path):
    """A batch of a loader is shared by its rows; a callback of rank 0 stops all."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        fit_on_ranks.main(tmp_path)
    torch.set_num_threads(threads)
    run_on_ranks(2, Path(fit_on_ranks.__file__), tmp_path)
    alone, *together = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1-0", "2-0", "2-1")
    )
    assert together[0] == together[1]
    for a, b in zip(alone["parameters"], together[0]["parameters"], strict=True):
        assert a == pytest.approx(b, rel=1e-9)
    assert together[0]["best"] == pytest.approx(alone["best"], rel=1e-9)
    for found in (alone, *together):
        assert found["stopped"] == ["stopped by a callback", 3]
    assert len(together[0]["refused"]) == 3
    for sentence in together[0]["refused"]:
        assert "were given different batches" in sentence
