"""Records for TensorBoard."""

from fits import train


def test_tensorboard_gets_the_records(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from nestruct.training.tensorboard import TensorBoard

    board = TensorBoard(tmp_path)
    train(callbacks=[board], log_interval=4)
    board.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [4, 8, 12]
    assert [event.step for event in events.Scalars("validation/loss")] == [0, 4, 8, 12]
