"""Signals: the step is finished and saved."""

import os
import signal

import pytest
from fits import assert_same_run, train

from nestruct.training.run import read_checkpoint


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, capsys, number):
    def stop(record):
        if record["step"] == 5:
            os.kill(os.getpid(), number)

    options = {"log_interval": 1}
    train(run=tmp_path / "whole", **options)
    before = signal.getsignal(number)
    _, result = train(run=tmp_path / "cut", callbacks=[stop], **(options | {"progress": True}))
    assert signal.getsignal(number) is before
    assert (result.reason, result.step) == ("interrupted", 5)
    assert "continue with" in capsys.readouterr().out
    assert read_checkpoint(tmp_path / "cut" / "checkpoints" / "last").step == 5
    train(run=tmp_path / "cut", resume=True, **options)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
