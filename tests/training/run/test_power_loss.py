"""The power is lost at any moment: what is left goes on to the same bits."""

import hashlib
import os
import random
import shutil
import tempfile
from pathlib import Path

import power
import pytest
import torch
import toys
from fits import DATA, HELD_OUT, assert_same_run, nes

import nestruct


@pytest.fixture
def disk():
    """A folder in memory where there is one: nothing of it has to outlive the test."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Path(folder)


def start(run: Path) -> None:
    """The command that begins the run; its parameters come from somewhere else."""
    _fit(run, toys.vae(), resume=False)


def resume(run: Path) -> None:
    """The command that continues it: it builds the model anew, with other first parameters."""
    model = toys.vae()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    _fit(run, model, resume=True)


def go_on(run: Path) -> None:
    """What a person does after the power came back."""
    resume(run) if (run / "config.toml").exists() else start(run)


def _fit(run: Path, model: torch.nn.Module, *, resume: bool) -> None:
    options = {"batch_size": 8, "log_interval": 1, "eval_interval": 1, "checkpoint_seconds": 0}
    nestruct.fit(
        model,
        nes(),
        torch.optim.Adam(model.parameters(), lr=0.02),
        DATA,
        validation=HELD_OUT,
        test=HELD_OUT,
        run=run,
        resume=resume,
        max_steps=2,
        progress=False,
        **options,
    )


def recorded(work, root: Path) -> tuple[power.Tree, list[power.Operation]]:
    """What was there, and what a piece of work did to it."""
    before = power.read_tree(root)
    with power.record(root) as operations:
        work(root / "run")
    disk = power.Disk(before)
    for operation in operations:
        disk.do(operation)
    assert disk.tree() == power.read_tree(root)  # so nothing was written past the recorder
    return before, operations


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("every", [60, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_a_power_loss_leaves_goes_on_to_the_same_bits(disk, every):
    """All of a short run: its beginning, checkpoints of both kinds, its logs, its end."""
    (disk / "whole").mkdir()
    before, operations = recorded(start, disk / "whole")
    model, states = power.Disk(before), {}
    for operation in [None, *operations]:
        if operation is not None:
            model.do(operation)
        for tree in model.losses():
            states.setdefault(_key(tree), tree)
    kinds = {kind for kind, _ in operations}
    assert kinds == {*("create", "hold", "append", "cut", "sync", "rename", "make", "remove")}
    print(f"{len(operations)} operations, {len(states)} states")
    for number, tree in enumerate(list(states.values())[::every]):
        root = disk / str(number)
        power.write_tree(tree, root)
        go_on(root / "run")
        assert_same_run(disk / "whole" / "run", root / "run")
        shutil.rmtree(root)


def _key(tree: power.Tree) -> bytes:
    digest = hashlib.sha256()
    for path, content in sorted(tree.items()):
        digest.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        digest.update(content or b"")
    return digest.digest()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("walks", [4, pytest.param(300, marks=pytest.mark.slow)])
def test_the_power_is_lost_again_and_again(disk, walks):
    """Also while a run is being taken up again."""
    start(disk / "whole")
    for seed in range(walks):
        draw, root = random.Random(seed), disk / str(seed)
        root.mkdir()
        for _ in range(draw.randrange(1, 6)):
            before, operations = recorded(go_on, root)
            model = power.Disk(before)
            for operation in operations[: draw.randrange(len(operations) + 1)]:
                model.do(operation)
            shutil.rmtree(root)
            power.write_tree(model.loss(draw), root)
        go_on(root / "run")
        assert_same_run(disk / "whole", root / "run")
        shutil.rmtree(root)
