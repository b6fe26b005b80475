"""TensorBoard, as an extra: the records of ``metrics.jsonl`` as scalars."""

from pathlib import Path
from typing import Any

from nestruct.errors import InputError
from nestruct.training.run import Record


class TensorBoard:
    """A callback of `nestruct.fit` that writes into ``RUN/tensorboard``.

    Args:
        run: The run folder.
    """

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(
                "TensorBoard is not installed: pip install 'nestruct[tensorboard]'."
            ) from None
        self._open = lambda: SummaryWriter(str(run / "tensorboard"))
        self._writer: Any = None

    def __call__(self, record: Record) -> None:
        """Writes one record."""
        if self._writer is None:  # not before the run folder is there
            self._writer = self._open()
        for name, value in record.items():
            if isinstance(value, float):
                self._writer.add_scalar(f"{record['split']}/{name}", value, record["step"])

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()
