"""Processes of torchrun that are killed, hang, or are lost with their agent; they take minutes.

`test_kill.py` has one killed rank in the default tests.
"""

import os
import re
import signal
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest
import rank_faults
from rank_faults import Trial, ranks_of

from nestruct import InputError
from nestruct.training import join_processes
from nestruct.training.run import read_checkpoint

PAGE = Path(__file__).parents[2] / "docs" / "many-processes.md"
KINDS = [*rank_faults.SAME_BITS, *rank_faults.TO_ROUNDING]
CASES = list(zip(KINDS, cycle(["NES", "StructureNES", "SST"])))
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds ranks in /proc")


def test_the_time_limit_is_positive():
    with pytest.raises(InputError, match="above 0 seconds"), join_processes(timeout=0):
        pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed runs by recipe, made when they are first asked for."""
    folder, runs = tmp_path_factory.mktemp("whole"), {}

    def get(recipe: str) -> Path:
        if recipe not in runs:
            runs[recipe] = rank_faults.undisturbed(recipe, folder / recipe)
        return runs[recipe]

    return get


@pytest.mark.parametrize(("kind", "recipe"), CASES, ids=lambda v: getattr(v, "__name__", v))
@pytest.mark.timeout(900)
@pytest.mark.slow
@linux
def test_a_fault_changes_nothing(kind, recipe, whole, tmp_path):
    reference = whole(recipe)
    with rank_faults.trial_of(recipe, tmp_path / "run") as trial:
        kind(trial)
        rank_faults.check(trial, reference, rounding=kind in rank_faults.TO_ROUNDING)


def block(language: str, word: str) -> str:
    """The page's one block that has a word in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = [text for text in blocks if word in text]
    return found


def shell(text: str, trial: Trial) -> subprocess.Popen:
    """Types lines into a shell of its own, in the folder of the run."""
    bin = Path(sys.executable).parent
    settings = {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with trial.log.open("ab") as log:
        process = subprocess.Popen(
            ["bash", "-c", text.replace("torchrun", "exec torchrun", 1)],
            cwd=trial.folder.parent.parent,
            env=os.environ | settings | {"NESTRUCT_FAULTS": trial.mark},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    trial.agents.append(process)
    return process


@pytest.mark.timeout(900)
@pytest.mark.slow
@linux
def test_the_documented_agents_lose_one_and_go_on(tmp_path):
    (tmp_path / "runs").mkdir()
    with rank_faults.trial_of("NES", tmp_path / "runs" / "two") as trial:
        port = rank_faults.free_port()
        lines = block("sh", "--nnodes 1:2").replace("localhost:29400", f"localhost:{port}")
        shell(lines, trial)
        trial.wait(lambda: rank_faults.is_listening(port), "the first agent")
        second = shell(lines, trial)
        trial.wait_for_line(10)
        trial.agents.remove(second)
        second.kill()
        second.wait()
        shell(lines, trial)
        trial.finish()
        end = read_checkpoint(trial.folder / "checkpoints" / "last").loop
        assert end["reason"] == "finished"
        assert "Continuing at step" in trial.log.read_text()
        assert end["step"] == 250


@pytest.mark.timeout(900)
@pytest.mark.slow
@linux
def test_the_documented_program_goes_on_after_a_kill(tmp_path):
    ends = []
    for killed in (False, True):
        folder = tmp_path / str(killed) / "runs" / "mine"
        folder.parent.mkdir(parents=True)
        with rank_faults.trial_of("NES", folder) as trial:
            (folder.parent.parent / "program.py").write_text(block("python", "join_processes"))
            agent = shell(block("sh", "program.py"), trial)
            if killed:
                trial.wait_for_line(10)
                os.kill(ranks_of(agent)[0], signal.SIGKILL)
            trial.finish()
            assert ("Continuing at step" in trial.log.read_text()) == killed
            assert trial.log.read_text().count("Another process of this run ended") == killed
        ends.append((folder / "checkpoints/last/model.safetensors").read_bytes())
    assert ends[0] == ends[1]
