"""``nestruct train``: what it says at its end, and before it goes on for longer."""

import json

import pytest
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
