import torch

from nestruct.training.run import describe_environment


def test_a_variable_names_the_commit_where_git_is_not_at_hand(monkeypatch):
    monkeypatch.setenv("NESTRUCT_COMMIT", "abc1234")
    assert describe_environment(torch.device("cpu"))["commit"] == "abc1234"
    monkeypatch.delenv("NESTRUCT_COMMIT")
    assert describe_environment(torch.device("cpu"))["commit"] != "abc1234"
