"""One trainer at a time."""

import pytest
from fits import train

from nestruct.errors import NestructError
from nestruct.training.run.lock import give_lock_back, take_lock


def test_a_second_trainer_is_refused(tmp_path):
    def second(record):
        train(run=tmp_path, resume=True)

    with pytest.raises(NestructError, match="in use by another trainer"):
        train(run=tmp_path, callbacks=[second])
    train(run=tmp_path, resume=True)  # and the folder is free again


def test_a_trainer_that_is_about_to_end_is_waited_for(tmp_path, monkeypatch):
    first = take_lock(tmp_path)
    look = "nestruct.training.run.lock.time.sleep"
    monkeypatch.setattr(look, lambda seconds: give_lock_back(first))
    give_lock_back(take_lock(tmp_path, patience=60.0))
