"""Loggers get the numbers of every record, and are closed whatever happens."""

import csv

import pytest
from fits import CrashError, crash_at, metrics, train

import nestruct
from nestruct.training import CSVLogger, Logger, TensorBoard, WandB


class Kept:
    def __init__(self):
        self.lines, self.closed = [], 0

    def log(self, step, split, metrics):
        self.lines.append((step, split, metrics))

    def close(self):
        self.closed += 1


def rows(file):
    return [(int(step), split, name, float(value)) for step, split, name, value in read(file)[1:]]


def read(file):
    with file.open(newline="") as lines:
        return list(csv.reader(lines))


def test_a_logger_is_anything_with_two_methods(tmp_path):
    kept = Kept()
    assert isinstance(kept, Logger)
    train(loggers=[kept], run=tmp_path, log_interval=4)
    assert kept.closed == 1
    for (step, split, numbers), record in zip(kept.lines, metrics(tmp_path), strict=True):
        assert (step, split) == (record.pop("step"), record.pop("split"))
        assert numbers.pop("timing/seconds") >= 0
        own = {name: value for name, value in numbers.items() if not name.startswith("timing/")}
        assert own == {name: value for name, value in record.items() if value is not None}


def test_it_is_closed_where_training_ends_by_an_error():
    kept = Kept()
    with pytest.raises(CrashError):
        train(loggers=[kept], callbacks=[crash_at(5)], log_interval=1)
    assert kept.closed == 1
    assert kept.lines[-1][0] == 5  # loggers come before callbacks


def test_a_table_of_a_resumed_run_is_that_of_an_uninterrupted_one(tmp_path):
    options = {"log_interval": 1, "checkpoint_seconds": 0}
    train(loggers=[CSVLogger(tmp_path / "whole.csv")], **options)
    file = tmp_path / "new" / "cut.csv"
    with pytest.raises(CrashError):
        train(run=tmp_path / "run", loggers=[CSVLogger(file)], callbacks=[crash_at(7)], **options)
    with file.open("a") as half:
        half.write("7,train,lo")  # as a killed process leaves it
    train(run=tmp_path / "run", resume=True, loggers=[CSVLogger(file)], **options)
    whole, cut = rows(tmp_path / "whole.csv"), rows(file)
    assert [row for row in cut if "timing" not in row[2]] == [
        row for row in whole if "timing" not in row[2]
    ]
    assert {name for _, split, name, _ in whole if split == "validation"} >= {"loss", "decoded"}


def test_a_file_of_something_else_is_left_alone(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(nestruct.InputError, match=r"data\.csv is no log of a CSVLogger: say anot"):
        train(loggers=[CSVLogger(file)], max_steps=1)
    assert file.read_text() == "a,b\n1,2\n"


def test_two_of_one_name_and_what_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = Kept()
    twice = [CSVLogger("a.csv"), CSVLogger(tmp_path / "a.csv")]
    for pair in (twice, [kept, kept]):
        with pytest.raises(nestruct.InputError, match=r"^Two loggers are called .*: leave one out"):
            train(loggers=pair)
    train(loggers=[kept, Kept(), CSVLogger("a.csv"), CSVLogger("b.csv")], max_steps=1)
    with pytest.raises(nestruct.InputError, match=r"has the methods log\(step, split, metrics\)"):
        train(loggers=[print])
    with pytest.raises(nestruct.InputError, match=r"^loggers must be a list, like \[logger\]; got"):
        train(loggers=kept)


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(loggers=[TensorBoard(tmp_path)], log_interval=4)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [4, 8, 12]
    assert [event.step for event in events.Scalars("validation/loss")] == [0, 4, 8, 12]


@pytest.mark.integrations
def test_wandb_gets_the_numbers(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    logger = WandB("tests", dir=tmp_path, name="one")
    train(loggers=[logger], log_interval=4)
    wandb.teardown()  # its own process has written all
    logs = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(logs) == 1
    assert b"validation/loss" in logs[0].read_bytes()
    with pytest.raises(nestruct.InputError, match="Two loggers are called 'WandB tests one'"):
        train(loggers=[WandB("tests", name="one"), logger])
