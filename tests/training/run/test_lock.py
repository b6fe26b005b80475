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


def test_a_lock_that_was_deleted_is_taken_again(tmp_path):
    def delete(record):
        if (record["step"], record["split"]) == (4, "validation"):
            (tmp_path / ".lock").unlink()
        if record["step"] == 12:  # there was a checkpoint in between
            with pytest.raises(NestructError, match="in use by another trainer"):
                take_lock(tmp_path)

    train(run=tmp_path, callbacks=[delete], checkpoint_seconds=0)
    give_lock_back(take_lock(tmp_path))


def test_two_trainers_do_not_go_on_together_where_the_lock_was_deleted(tmp_path):
    others = []

    def delete(record):
        if (record["step"], record["split"]) == (4, "validation"):
            (tmp_path / ".lock").unlink()
            others.append(take_lock(tmp_path))  # another trainer

    with pytest.raises(NestructError, match="in use by another trainer"):
        train(run=tmp_path, callbacks=[delete], checkpoint_seconds=0)
    give_lock_back(others[0])
    assert train(run=tmp_path, resume=True, checkpoint_seconds=0)[1].step == 12


def test_a_trainer_that_is_about_to_end_is_waited_for(tmp_path, monkeypatch):
    first = take_lock(tmp_path)
    look = "nestruct.training.run.lock.time.sleep"
    monkeypatch.setattr(look, lambda seconds: give_lock_back(first))
    give_lock_back(take_lock(tmp_path, patience=60.0))
