"""Callbacks see the model, and can stop a training."""

import json

import pytest
import torch
from fits import CrashError, crash_at, metrics, train

import nestruct
from nestruct.training.run import read_checkpoint


def test_they_are_given_every_record_the_model_and_the_step(tmp_path):
    seen = []

    def look(event):
        json.dumps(event)
        assert event["step"] == event.step
        seen.append((dict(event), event.model, [p.clone() for p in event.model.parameters()]))

    model, _ = train(callbacks=[look], run=tmp_path, log_interval=4, test=None)
    assert all(about is model for _, about, _ in seen)
    records = [{k: v for k, v in record.items() if k != "timing"} for record, _, _ in seen]
    assert records == metrics(tmp_path)
    assert not torch.equal(seen[0][2][0], seen[-1][2][0])  # the model as it was at each


def stop_at(step):
    def callback(event):
        if event.step >= step:
            event.stop()

    return callback


def test_one_that_stops_ends_the_run_as_an_early_stop_does(tmp_path, capsys):
    options = {"log_interval": 1, "run": tmp_path, "eval_interval": 2}
    model, result = train(callbacks=[stop_at(5)], test=torch.zeros(4, 6).double(), **options)
    assert (result.reason, result.step) == ("stopped by a callback", 5)
    assert result.test is not None
    assert result.best_step in (0, 2, 4)
    last = read_checkpoint(tmp_path / "checkpoints" / "last")
    assert (last.step, last.loop["reason"]) == (5, "stopped by a callback")
    best = read_checkpoint(tmp_path / "checkpoints" / "best").model
    for name, value in model.state_dict().items():
        assert torch.equal(value, best[name])
    _, again = train(resume=True, progress=True, **options)
    assert (again.reason, again.step) == ("stopped by a callback", 5)
    assert "This run stopped by a callback at step 5: nothing is left" in capsys.readouterr().out


def test_one_may_stop_before_the_first_step_and_too_late():
    _, result = train(callbacks=[stop_at(0)])
    assert (result.reason, result.step, result.best_step) == ("stopped by a callback", 0, 0)
    _, result = train(callbacks=[stop_at(12)])
    assert (result.reason, result.step) == ("finished", 12)


@pytest.mark.parametrize("callbacks", [stop_at(1), [3], {"a": stop_at(1)}])
def test_what_is_no_list_of_functions_is_refused(callbacks):
    with pytest.raises(nestruct.InputError, match=r"callbacks must be a list of functions .*; got"):
        train(callbacks=callbacks)


def test_an_error_names_the_callback():
    with pytest.raises(CrashError) as caught:
        train(callbacks=[lambda event: None, crash_at(0)])
    assert caught.value.__notes__ == [
        "This was raised by the callback crash_at.<locals>.callback at step 0, in the validation "
        "record."
    ]

    class Mine:
        def __call__(self, event):
            raise nestruct.InputError("no")

    with pytest.raises(nestruct.InputError, match=r"Mine at step 4, in the train record\.$"):
        train(callbacks=[Mine()], validation=None, log_interval=4)
