"""What a run says of where it was made."""

import pytest
import torch

from nestruct.training.run import describe_environment


def test_a_variable_names_the_commit_where_git_is_not_at_hand(monkeypatch):
    monkeypatch.setenv("NESTRUCT_COMMIT", "abc1234")
    assert describe_environment(torch.device("cpu"))["commit"] == "abc1234"
    monkeypatch.delenv("NESTRUCT_COMMIT")
    assert describe_environment(torch.device("cpu"))["commit"] != "abc1234"


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/home/me/sweep/seed=0", "seed=0"),
        ("--init-from=/home/me/run", "--init-from=run"),
        ("runs/a", "a"),
        ("estimator.sigma=0.1", "estimator.sigma=0.1"),
    ],
)
def test_an_environment_names_no_folders(word, kept):
    from nestruct.training.run.environment import _without_folder

    assert _without_folder(word) == kept
