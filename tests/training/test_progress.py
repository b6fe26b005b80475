"""The lines that a training prints."""

import logging
import re

from fits import train

from nestruct.training.progress import Display


def test_progress_says_what_matters(capsys):
    train(progress=True, log_interval=12, eval_interval=12)
    output = capsys.readouterr().out
    assert "step 12/12 | loss" in output
    assert "evals/s | solver" in output
    assert "step 12 validation: loss" in output
    assert not logging.getLogger("nestruct").handlers


def test_progress_says_how_often_the_solver_was_called(capsys):
    train(progress=True, log_interval=6)
    shown = re.findall(r"solver \d+% \((\d+) calls, \S+ m?s a step\)", capsys.readouterr().out)
    assert shown  # lines come every other second
    record = {
        "step": 3,
        "solved": 60,
        "looked_up": 30,
        "timing": {"solver_seconds_per_step": 0.25},
    }
    display = Display(None, max_steps=9)
    display.begin(0)
    assert display._calls(record) == " (20 calls, 250 ms, 10 looked up a step)"
    assert display._calls(record | {"step": 5, "solved": 100}) == " (20 calls, 250 ms a step)"
    assert display._calls(record | {"step": 7, "solved": None}) == ""
    resumed = Display(None, max_steps=9)
    resumed.begin(2)
    assert resumed._calls(record) == ""
