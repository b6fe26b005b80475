"""``nestruct train``: what it says at its end, and before it goes on for longer."""

import json

import pytest
from fits import train as fit
from toys import run_command as run

QUICK = ["data.num_train=64", "data.num_validation=32", "data.num_test=32", "model.hidden_size=4"]
QUICK += ["estimator.population_size=4", "training.batch_size=8"]


def test_the_end_says_which_step_was_kept_and_why(tmp_path, capsys):
    folder = tmp_path / "with space"
    words = ["train", "graph-layout-tiny", *QUICK, "training.metric=f1_map"]
    assert run(*words, "training.maximize=true", "--run", folder, "--max-steps", 1) == 0
    out = capsys.readouterr().out
    assert "Finished after 1 step, " in out
    test = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"Kept: step {test['best_step']}, the best f1_map on validation data.\n" in out
    assert f"kept, test {test['f1_map']:.3f}\n" in out
    assert out.endswith(f"nestruct report '{folder}' -o page.html\n")
    assert run(*words, "--run", folder) == 1
    assert f"nestruct train --resume '{folder}'" in capsys.readouterr().err


def test_a_longer_run_is_told_that_its_learning_rate_rises_again(tmp_path, capsys):
    folder = tmp_path / "run"
    assert run("train", "graph-layout-tiny", *QUICK, "--run", folder, "--max-steps", 2) == 0
    assert run("train", "--resume", folder, "--max-steps", 2) == 0
    assert "rises again" not in capsys.readouterr().out
    assert run("train", "--resume", folder, "--max-steps", 3) == 0
    out = capsys.readouterr().out
    assert out.count("The learning rate rises again after step 2: CosineAnnealingLR keeps") == 1


@pytest.mark.parametrize("steps", [2, 3])
def test_a_schedule_that_has_ended_is_not_gone_on_with(tmp_path, capsys, steps):
    folder = tmp_path / "run"
    words = ["scheduler.name=OneCycleLR", "scheduler.max_lr=0.01", "--run", folder]
    assert run("train", "graph-layout-tiny", *QUICK, *words, "--max-steps", 2) == 0
    before = (folder / "metrics.jsonl").read_bytes()
    assert run("train", "--resume", folder, "--max-steps", steps) == int(steps > 2)
    assert ("OneCycleLR ends at step 2" in capsys.readouterr().err) == (steps > 2)
    assert (folder / "metrics.jsonl").read_bytes() == before


def continue_(folder, *words):
    return run("train", "graph-layout-tiny", *QUICK, "--run", folder, "--continue", *words)


def test_one_command_begins_goes_on_and_says_that_it_has_finished(tmp_path, capsys):
    folder = tmp_path / "run"
    assert continue_(folder, "--max-steps", 2, "--seed", 3) == 0
    assert "Finished after 2 steps" in capsys.readouterr().out
    before = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "config.toml")}
    assert continue_(folder, "--max-steps", 2, "--seed", 3) == 0
    out = capsys.readouterr().out
    assert "This run finished at step 2: nothing is left to do." in out
    assert out.endswith(f"nestruct report {folder} -o page.html\n")
    assert before == {name: (folder / name).read_bytes() for name in before}
    for _ in range(2):  # for longer, and the same once more
        assert continue_(folder, "--max-steps", 3, "--seed", 3) == 0
    out = capsys.readouterr().out
    assert out.count("Continuing at step 2.") == 1
    assert out.count("The learning rate rises again after step 2") == 1
    assert "This run finished at step 3" in out
    assert continue_(folder, "--max-steps", 2, "--seed", 3) == 0  # it has more than that
    assert "This run finished at step 3" in capsys.readouterr().out


def test_going_on_for_longer_keeps_the_intervals_of_the_run(tmp_path):
    folder = tmp_path / "run"
    words = ["training.log_interval=none", "training.eval_interval=none"]
    assert continue_(folder, *words, "--max-steps", 20) == 0
    assert continue_(folder, *words, "--max-steps", 40) == 0
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in steps if r["split"] == "validation"] == list(range(41))


def test_what_may_differ_between_sessions_may_differ_here(tmp_path, capsys):
    folder = tmp_path / "run"
    assert continue_(folder, "--max-steps", 2) == 0
    assert continue_(folder, "training.checkpoint_seconds=5", "--max-steps", 3) == 0
    assert "checkpoint_seconds = 5.0" in (folder / "config.toml").read_text()


def test_another_run_is_refused_by_what_differs(tmp_path, capsys):
    folder = tmp_path / "run"
    assert continue_(folder, "--max-steps", 1) == 0
    before = (folder / "config.toml").read_bytes()
    assert continue_(folder, "--max-steps", 2, "--seed", 5, "estimator.sigma=3") == 1
    error = capsys.readouterr().err
    assert "This run began with seed 0, not 5 and estimator.sigma 0.03, not 3.0" in error
    assert len(error.splitlines()) == 1
    assert (folder / "config.toml").read_bytes() == before


def test_a_folder_with_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert continue_(tmp_path) == 1
    assert "holds other things than a run (thesis.txt)" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
    fit(run=tmp_path / "fit")
    assert continue_(tmp_path / "fit") == 1
    assert "was made by fit() in a program" in capsys.readouterr().err


def test_resume_and_continue_do_not_stand_together(tmp_path, capsys):
    assert run("train", "--resume", tmp_path, "--continue") == 1
    assert "--resume continues a run as it began" in capsys.readouterr().err


def test_the_time_limit_of_collectives_is_positive(tmp_path, capsys):
    assert continue_(tmp_path / "run", "--collective-timeout", 0) == 1
    assert "The time limit on collectives must be above 0 seconds" in capsys.readouterr().err


def test_going_on_takes_the_start_that_the_run_began_with(tmp_path, capsys):
    run_a, run_b, folder = (tmp_path / name for name in "abc")
    assert continue_(run_a, "--max-steps", 1) == 0
    assert continue_(run_b, "--max-steps", 1, "--seed", 1) == 0
    assert continue_(folder, "--max-steps", 1, "--init-from", run_a) == 0
    assert continue_(folder, "--max-steps", 2, "--init-from", run_a) == 0
    assert "Continuing at step 1." in capsys.readouterr().out
    assert continue_(folder, "--max-steps", 3, "--init-from", run_b) == 1
    assert "did not begin with the parameters of" in capsys.readouterr().err


def test_a_run_without_its_config_goes_on_by_both_commands(tmp_path, capsys):
    folder = tmp_path / "run"
    assert continue_(folder, "--max-steps", 2) == 0
    before = (folder / "config.toml").read_bytes()
    (folder / "config.toml").unlink()
    assert continue_(folder, "--max-steps", 2) == 0
    assert "This run finished at step 2" in capsys.readouterr().out
    assert run("train", "--resume", folder, "--max-steps", 3) == 0
    assert "Continuing at step 2." in capsys.readouterr().out
    after = (folder / "config.toml").read_bytes()
    assert after == before.replace(b"max_steps = 2", b"max_steps = 3")
