"""The lines that a training prints."""

import logging

from fits import (
    train,
)


def test_progress_says_what_matters(capsys):
    train(progress=True, log_interval=12, eval_interval=12)
    output = capsys.readouterr().out
    assert "step 12/12 | loss" in output
    assert "evals/s | solver" in output
    assert "step 12 validation: loss" in output
    assert not logging.getLogger("nestruct").handlers
