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


class Commands:
    """What a person types: to begin a run, and to go on after the power came back.

    Args:
        validates: True if the run has validation data, and so checkpoints of its best parameters.
    """

    def __init__(self, validates: bool) -> None:
        self.held_out = HELD_OUT if validates else None

    def start(self, run: Path) -> None:
        """Begins the run; its first parameters come from somewhere else."""
        self._fit(run, toys.vae(), resume=False)

    def go_on(self, run: Path) -> None:
        """Resumes it, with a model that is built anew; where there is no run yet, begins again."""
        if not (run / "config.toml").exists():
            self.start(run)
            return
        model = toys.vae()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        self._fit(run, model, resume=True)

    def _fit(self, run: Path, model: torch.nn.Module, *, resume: bool) -> None:
        nestruct.fit(
            model,
            nes(),
            torch.optim.Adam(model.parameters(), lr=0.02),
            DATA,
            validation=self.held_out,
            test=HELD_OUT,
            run=run,
            resume=resume,
            max_steps=3,
            batch_size=8,
            log_interval=1,
            eval_interval=2,
            checkpoint_seconds=0,
            progress=False,
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


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("every", [100, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("validates", [True, False])
def test_whatever_a_power_loss_leaves_goes_on_to_the_same_bits(disk, validates, every):
    """All of a short run: its beginning, checkpoints of both kinds, its logs, its end."""
    commands = Commands(validates)
    (disk / "whole").mkdir()
    before, operations = recorded(commands.start, disk / "whole")
    assert {kind for kind, _ in operations} == {
        *("create", "hold", "append", "cut", "sync", "rename", "make", "remove")
    }
    model, states = power.Disk(before), {}
    for operation in [None, *operations]:
        if operation is not None:
            model.do(operation)
        for tree in model.losses():
            states.setdefault(_key(tree), tree)
    print(f"{len(operations)} operations, {len(states)} states")
    for number, tree in enumerate(list(states.values())[::every]):
        root = disk / str(number)
        power.write_tree(tree, root)
        commands.go_on(root / "run")
        assert_same_run(disk / "whole" / "run", root / "run")
        shutil.rmtree(root)


def _key(tree: power.Tree) -> bytes:
    digest = hashlib.sha256()
    for path, content in sorted(tree.items()):
        digest.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        digest.update(content or b"")
    return digest.digest()


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("walks", [4, pytest.param(300, marks=pytest.mark.slow)])
def test_the_power_is_lost_again_and_again(disk, walks):
    """Also while a run is being taken up again."""
    kinds = [Commands(validates) for validates in (True, False)]
    for number, commands in enumerate(kinds):
        commands.start(disk / f"whole {number}")
    for seed in range(walks):
        draw, root, commands = random.Random(seed), disk / str(seed), kinds[seed % 2]
        root.mkdir()
        for _ in range(draw.randrange(1, 6)):
            before, operations = recorded(commands.go_on, root)
            model = power.Disk(before)
            for operation in operations[: draw.randrange(len(operations) + 1)]:
                model.do(operation)
            shutil.rmtree(root)
            power.write_tree(model.loss(draw), root)
        commands.go_on(root / "run")
        assert_same_run(disk / f"whole {seed % 2}", root / "run")
        shutil.rmtree(root)
