"""Worker processes of a solver: real ones, really killed."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path
from typing import Any

import pytest
import slow_solvers
import torch
from slow_solvers import CRASH, HANG, ODD, RAISE

import nestruct
from nestruct import BlackBox, InputError

ONE: dict[str, Any] = {"batched": False, "backend": "numpy"}
TESTS = Path(__file__).parents[1]


def draws(*lead: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*lead, 4, generator=torch.Generator().manual_seed(seed))


def asking(*what: float, seed: int = 0) -> torch.Tensor:
    """Scores of which the third, fourth ... ask for something."""
    scores = draws(9, seed=seed)
    scores[2 : 2 + len(what), 0] = torch.tensor(what)
    return scores


@pytest.fixture(scope="module")
def box():
    """Two workers and a timeout, for all tests that leave them as they were."""
    box = BlackBox(slow_solvers.positive, 4, workers=2, timeout=1.0, **ONE)
    yield box
    box.close()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SLOW_SOLVERS_FOLDER", str(tmp_path))
    return tmp_path


def here(**options) -> BlackBox:
    return BlackBox(slow_solvers.positive, 4, **ONE | options)


def test_workers_give_what_this_process_gives(box):
    scores, shift = draws(3, 40), draws(40, seed=1)[:, 0]
    expected = here().argmax(scores, shift=shift)
    assert torch.equal(box.argmax(scores, shift=shift), expected)
    assert torch.equal(torch.func.vmap(lambda s: box.argmax(s, shift=shift))(scores), expected)
    assert torch.equal(box.argmax(scores[0, 0]), here().argmax(scores[0, 0]))


def test_a_crash_and_a_timeout_cost_a_row_each(box):
    scores = asking(CRASH, HANG)
    before = dict(box.counts)
    with nestruct.nan_rows():
        z = box.argmax(scores)
    assert z.isnan().all(-1).nonzero()[:, 0].tolist() == [2, 3]
    keep = torch.tensor([0, 1, 4, 5, 6, 7, 8])
    assert torch.equal(z[keep], here().argmax(scores[keep]))
    assert box.counts["crashed"] == before["crashed"] + 1
    assert box.counts["timed_out"] == before["timed_out"] + 1
    for rows, message in (
        (scores, r"row 2 crashed the solver's process twice: .* \(2 such rows\)"),
        (scores[3:], r"row 0 took longer than the timeout"),
        (scores[3], r"scores took longer than the timeout"),
    ):
        with pytest.raises(InputError, match=message):
            box.argmax(rows)


class Shifted(nestruct.StructuredModel):
    """Scores from a linear map, and a solver that is told a shift of each example."""

    def __init__(self, structure):
        super().__init__()
        self.structure = structure
        self.scores = torch.nn.Linear(4, 4)
        torch.nn.init.eye_(self.scores.weight)
        torch.nn.init.zeros_(self.scores.bias)

    def encode(self, batch):
        return self.scores(batch["x"])

    def context(self, batch):
        return {"shift": batch["shift"]}

    def decode(self, batch, z):
        return (z * batch["x"]).sum(-1)


@pytest.mark.parametrize(
    "estimator",
    [nestruct.StructureNES(num_samples=3), nestruct.NES(sigma=0.1, population_size=4, mode="vmap")],
    ids=lambda estimator: type(estimator).__name__,
)
def test_estimators_get_the_same_gradients(estimator, box):
    batch = {"x": draws(6), "shift": torch.zeros(6)}
    gradients = []
    for structure in (here(), box):
        model = Shifted(structure)
        report = estimator.backward(model, batch, seed=0)
        gradients.append(model.scores.weight.grad)
        assert int(report.num_solved) == 6 * int(report.num_evaluations)
    assert gradients[0].any()
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    "estimator",
    [nestruct.StructureNES(num_samples=2), nestruct.IMLE(num_samples=2)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_training_goes_on_without_what_takes_too_long(estimator, box):
    batch = {"x": draws(6), "shift": torch.zeros(6)}
    model, others = Shifted(box), Shifted(here())
    before = box.counts["timed_out"]
    estimator.backward(others, {k: v[:5] for k, v in batch.items()}, seed=0)
    batch["shift"][5] = HANG
    report = estimator.backward(model, batch, seed=0)
    assert int(report.num_failed) == 2
    assert box.counts["timed_out"] == before + 2  # not asked again on the way back
    assert torch.equal(model.scores.weight.grad, others.scores.weight.grad)


def test_an_instance_that_crashes_once_is_solved_by_another_worker():
    box = BlackBox(slow_solvers.crash_once, 4, workers=1, **ONE)
    scores = draws(3)
    z = box.argmax(scores, file=torch.tensor([0, 1, 1]))
    assert torch.equal(z, (scores > 0).float())
    assert box.counts["solved"] == 3
    assert box.counts["crashed"] == 0
    box.close()


@pytest.mark.parametrize("where", ["here", "workers"])
def test_an_exception_names_its_instance(where, box):
    box = box if where == "workers" else here()
    scores = asking(RAISE, RAISE).view(3, 3, 4)
    message = (
        r"BlackBox\(positive, \(4,\)\): the function failed on row \(0, 2\) with the context "
        r"shift: ZeroDivisionError: no division by zero\."
    )
    with pytest.raises(InputError, match=message) as caught:
        box.argmax(scores, shift=torch.zeros(3))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    there = str(caught.value.__cause__.__cause__)
    assert ("slow_solvers.py" in there) == (where == "workers")
    with pytest.raises(InputError, match=r"the function failed on row 2: .*OddError: odd 3"):
        box.argmax(asking(ODD))
    scores[0, 0, 0] = torch.nan  # rows are counted as they were given
    with pytest.raises(InputError, match=r"failed on row \(1, 1, 0\)"):
        torch.func.vmap(box.argmax)(torch.stack([scores * 0, scores])[:, :, :1])


def test_the_same_processes_serve_all_calls():
    box = BlackBox(slow_solvers.surroundings, 26, workers=2, **ONE)
    first, second = (box.argmax(torch.randn(30, 26)) for _ in range(2))
    assert not first[:, 0].any()  # a numpy solver's worker has no torch
    assert first[:, 1].all()
    processes = torch.cat([first, second])[:, 2:].unique(dim=0)
    assert len(processes) <= 2
    for other in (copy.deepcopy(box), pickle.loads(pickle.dumps(box))):
        assert other._calls.workers._workers == []
        assert not any(other.counts.values())
    numbers = [worker.process.pid for worker in box._calls.workers._workers]
    del box, other
    assert not any(Path(f"/proc/{number}").exists() for number in numbers)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_batched_solver_gets_slices(backend):
    options = {"backend": backend, "workers": 2, "timeout": 0.3}
    box = BlackBox(slow_solvers.all_positive, 4, **options)
    scores = draws(3, 5)
    assert torch.equal(box.argmax(scores), (scores > 0).float())
    with pytest.raises(InputError, match=r"failed on rows 0 to 3: ZeroDivisionError"):
        box.argmax(asking(RAISE, seed=1))
    if backend == "numpy":  # another worker with torch takes seconds
        with nestruct.nan_rows():
            z = box.argmax(asking(HANG, seed=2))
        assert z.isnan().any(-1).nonzero()[:, 0].tolist() == [2]
    box.close()


def test_what_workers_cannot_import_is_refused(tmp_path, monkeypatch):
    for options in ({"workers": 1}, {"timeout": 1.0}):
        with pytest.raises(InputError, match=r"worker processes cannot import .*<lambda>, which"):
            BlackBox(lambda scores: scores > 0, 4, **options)

    def local(scores):
        return scores > 0

    with pytest.raises(InputError, match=r"cannot import test_.*<locals>\.local"):
        BlackBox(local, 4, workers=1)
    monkeypatch.setattr(slow_solvers.needs_its_file, "__name__", "nowhere")
    monkeypatch.setattr(slow_solvers.needs_its_file, "__qualname__", "nowhere")
    with pytest.raises(InputError, match="cannot import nowhere"):
        BlackBox(slow_solvers.needs_its_file, 4, workers=1).argmax(draws(2))
    elsewhere = types.ModuleType("elsewhere")
    elsewhere.__file__ = str(tmp_path / "elsewhere.py")
    (tmp_path / "elsewhere.py").write_text("def solve(scores):\n    return scores > 0\n")
    exec((tmp_path / "elsewhere.py").read_text(), elsewhere.__dict__)
    monkeypatch.setitem(sys.modules, "elsewhere", elsewhere)  # a module that no path leads to
    assert BlackBox(elsewhere.solve, 4, workers=1, backend="numpy").argmax(draws(2)).any()
    monkeypatch.setattr(slow_solvers, "nowhere", slow_solvers.needs_its_file, raising=False)
    with pytest.raises(InputError, match=r"cannot load the solver .*nowhere.*in a file of its own"):
        BlackBox(slow_solvers.needs_its_file, 4, workers=1).argmax(draws(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers must be a whole number of at least 0"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"pool_share": 1.5}, "pool_share must be from 0 to 1"),
    ],
)
def test_mistakes_in_the_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        here(**options)


def script(folder: Path, text: str) -> subprocess.Popen:
    file = folder / "script.py"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(file)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        stderr=subprocess.PIPE,
        text=True,
    )


# Tests that were started in the background (nohup make test &) inherit that Ctrl-C is ignored.
HANGING = """
    import signal, torch, nestruct, slow_solvers
    signal.signal(signal.SIGINT, signal.default_int_handler)
    one = {"batched": False, "backend": "numpy"}
    box = nestruct.BlackBox(slow_solvers.note_and_hang, 2, workers=2, **one)
    box.argmax(torch.randn(4, 2))
"""


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL],
)
def test_workers_end_with_their_parent(number, folder):
    with script(folder, HANGING) as parent:
        workers = wait_for(lambda: [f.name for f in folder.iterdir() if f.name.isdigit()], 2)
        parent.send_signal(number)
        parent.communicate(timeout=30)
    assert parent.returncode != 0
    wait_for(lambda: [1 for worker in workers if not Path(f"/proc/{worker}").exists()], 2)


def wait_for(found, count: int) -> list:
    end = time.monotonic() + 30
    while len(found()) < count:
        assert time.monotonic() < end
        time.sleep(0.02)
    return found()


IN_THE_SCRIPT = """
    import torch, nestruct

    def solve(scores):
        return scores > 0

    def main():
        box = nestruct.BlackBox(solve, 2, workers=1, batched=False, backend="numpy")
        assert box.argmax(torch.ones(3, 2)).sum() == 6

    {call}
"""


def test_a_solver_in_a_script_without_a_guard(folder):
    with script(folder, IN_THE_SCRIPT.format(call="main()")) as parent:
        _, error = parent.communicate(timeout=60)
    assert parent.returncode == 1
    assert "put what runs under `if __name__ == '__main__':`" in error.splitlines()[-1]


@pytest.mark.slow
def test_a_solver_in_a_script_with_a_guard(folder):
    with script(folder, IN_THE_SCRIPT.format(call="if __name__ == '__main__': main()")) as parent:
        _, error = parent.communicate(timeout=60)
    assert (parent.returncode, error) == (0, "")
