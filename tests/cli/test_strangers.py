"""What a stranger wrote harms nobody: run folders through resume, evaluate, report and load;
archives, recipes, caches, word vectors and treebanks through the commands that read them.

Each command runs in a process of its own beside files that are somebody's own. It may refuse, in a
sentence, or work. It may not touch those files, show a traceback, hang, or crash.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import crafted
import crafted_files
import pytest
from toys import run_command as run

COMMANDS = {
    "resume": ["train", "--resume", "run", "--max-steps", "4"],
    "evaluate": ["evaluate", "run"],
    "report": ["report", "run", "-o", "page.html", "--csv", "--markdown"],
    "load": ["load", "run"],
}
CASES = crafted.cases()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Small runs as they should be; crafted ones are copies of them."""
    folder = tmp_path_factory.mktemp("runs")
    few = ["data.num_train=40", "data.num_validation=10", "data.num_test=10"]
    few += ["training.max_steps=3", "training.eval_interval=3", "training.log_interval=1"]
    own = ["estimator.population_size=4", "scheduler.name=CosineAnnealingLR"]
    assert run("train", "graph-layout-tiny", "--run", folder / "nes", *few, *own) == 0
    own = ["--device", "cpu", "data.num_nodes=4", "model.hidden_size=16", "training.num_starts=1"]
    assert run("train", "table1-nvil", "--run", folder / "nvil", *few, *own) == 0
    own = ["data.num_train=16", "data.num_dev=8", "data.num_target=8", "training.max_epochs=1"]
    assert run("train", "parser-tiny", "--run", folder / "parser", *own) == 0
    return folder


def try_all(jobs: list[dict], warm: list[list[str]]) -> list[dict]:
    """What became of jobs; see `harmless`."""
    script = Path(__file__).parents[1] / "harmless.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps([warm, *jobs]),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        env=environment,
    )
    return [json.loads(line) for line in answer.stdout.splitlines()]


def find_harm(done: dict, before: dict) -> list[str]:
    """What a command did that it may not do."""
    folder, said, status = Path(done["folder"]), done["said"], done["status"]
    lines = said.splitlines()
    harm = {
        "it took too long": status is None,
        "it crashed": status not in (None, 0, 1, 2),
        "it showed a traceback": "Traceback" in said or "Warning:" in said,
        "it failed in silence": bool(status) and not any(x.startswith("nestruct: ") for x in lines),
        "it said too much": len(lines) > 8 or max(map(len, lines), default=0) > 1500,
        "it touched what is not its own": crafted.contents(folder / "outside") != before,
        "it left something behind": bool(os.listdir(folder / "tmp")),
    }
    return [what for what, is_so in harm.items() if is_so]


def lay_out_runs(cases: list[crafted.Case], runs: Path, folder: Path) -> list[dict]:
    """A folder and a job for each crafted run and command."""
    jobs = []
    for number, case in enumerate(cases):
        for command, words in COMMANDS.items():
            own = folder / f"{number}-{command}"
            crafted.lay_out(own, runs, case)
            more = ["--tensorboard"] * (command == "resume" and "tensorboard" in case.name)
            jobs.append({"case": case.name, "folder": str(own), "words": [*words, *more]})
    return jobs


def lay_out_files(cases: list[crafted_files.FileCase], folder: Path) -> list[dict]:
    """A folder and a job for each crafted file."""
    jobs = []
    for number, case in enumerate(cases):
        own = folder / str(number)
        (own / "tmp").mkdir(parents=True)
        (own / "outside").mkdir()
        (own / "outside" / "thesis.txt").write_text("my thesis")
        case.write(own)
        jobs.append({"case": case.name, "folder": str(own), "words": case.words})
    return jobs


def check_jobs(jobs: list[dict], runs: Path) -> None:
    before = {job["folder"]: crafted.contents(Path(job["folder"]) / "outside") for job in jobs}
    done = try_all(jobs, [["evaluate", str(runs / name)] for name in ("nes", "nvil", "parser")])
    assert len(done) == len(jobs)
    harm = {
        f"{job['case']}, {job['words'][0]}": (found, job["said"][-300:])
        for job in done
        if (found := find_harm(job, before[job["folder"]]))
    }
    assert not harm
    assert {job["status"] for job in done} == {0, 1}  # some are refused, some do no harm


def test_a_sample_of_what_strangers_write_is_harmless(runs, tmp_path):
    files = crafted_files.cases(runs / "parser")[3::25]
    jobs = lay_out_runs(CASES[::45], runs, tmp_path / "runs")
    check_jobs(jobs + lay_out_files(files, tmp_path / "files"), runs)


def test_no_name_in_a_strangers_file_imports_anything(runs, tmp_path):
    words = (
        "callable",
        "module",
        "path",
        "entry point",
        "name of",
        "name from",
        "long name",
        "code of",
    )
    files = [
        case for case in crafted_files.cases(runs / "parser") if case.name.startswith("recipe")
    ]
    files = [case for case in files if any(word in case.name for word in words)]
    own = [case for case in CASES if case.name.startswith("config: a")]
    own = [case for case in own if any(word in case.name for word in words)]
    assert (len(files), len(own)) >= (15, 7)
    jobs = lay_out_runs(own, runs, tmp_path / "runs")
    check_jobs(jobs + lay_out_files(files, tmp_path / "files"), runs)


@pytest.mark.slow
def test_the_module_that_strangers_plant_would_do_harm(runs, tmp_path):
    """Where somebody trusts it: so the tests above can fail."""
    case = next(case for case in CASES if case.name == "config: a module beside it")
    (job,) = [j for j in lay_out_runs([case], runs, tmp_path) if j["words"][0] == "evaluate"]
    before = crafted.contents(Path(job["folder"]) / "outside")
    (done,) = try_all([job | {"words": [*job["words"], "--trust"]}], [])
    assert find_harm(done, before) == ["it touched what is not its own"]
    assert "is not a torch module" in done["said"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_crafted_run_is_harmless(runs, tmp_path):
    assert len(CASES) > 200
    check_jobs(lay_out_runs(CASES, runs, tmp_path), runs)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_crafted_file_is_harmless(runs, tmp_path):
    check_jobs(lay_out_files(crafted_files.cases(runs / "parser"), tmp_path), runs)


def test_an_honest_run_passes_the_same_checks(runs, tmp_path):
    """And they can fail: a file that is written beside it is noticed, and so is a traceback."""
    crafted.lay_out(tmp_path / "a", runs, crafted.Case("honest", "nes", lambda run: None))
    before = crafted.contents(tmp_path / "a" / "outside")
    done = {"folder": str(tmp_path / "a"), "said": "", "status": 0}
    assert find_harm(done, before) == []
    (tmp_path / "a" / "outside" / "thesis.txt").write_text("")
    assert find_harm(done, before) == ["it touched what is not its own"]
    done |= {"said": "Traceback (most recent call last):\n", "status": -11}
    assert len(find_harm(done, before)) == 4
