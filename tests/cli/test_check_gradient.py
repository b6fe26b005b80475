"""``nestruct check-gradient``: its three verdicts, and estimators without a sigma."""

import pytest
from toys import run_command as run

SMALL = ["categorical-tiny", "data.side=3", "data.num_train=8", "model.hidden_size=2"]
SMALL += ["model.num_classes=3"]


def test_too_few_trials_decide_nothing(capsys):
    assert run("check-gradient", *SMALL, "--num-trials", 2) == 1
    out = capsys.readouterr().out
    assert "NES on categorical-tiny: undecided: " in out
    assert "use more trials" in out
    assert "passed" not in out


def test_an_estimator_without_sigma_is_told_one(capsys):
    words = ["check-gradient", *SMALL, "estimator.name=Enumeration", "--num-trials", 10]
    assert run(*words) == 1
    assert "--sigma 0.01" in capsys.readouterr().err
    assert run(*words, "--sigma", 0.001) == 0
    assert "Enumeration on categorical-tiny: passed" in capsys.readouterr().out


@pytest.mark.parametrize(("option", "least"), [("--num-trials", 2), ("--batch-size", 1)])
def test_counts_are_checked(option, least, capsys):
    assert run("check-gradient", *SMALL, option, least - 1) == 1
    assert capsys.readouterr().err.endswith(
        f"{option} must be at least {least}, got {least - 1}.\n"
    )
