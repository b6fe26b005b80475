"""Loggers: the numbers of ``metrics.jsonl`` for other tools, TensorBoard and Weights & Biases."""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nestruct.errors import InputError
from nestruct.training.run import Record


@runtime_checkable
class Logger(Protocol):
    """What `nestruct.fit` hands numbers to, in rank 0; anything with these two methods is one.

    A logger may have a ``name``; two of one name are refused.
    """

    def log(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """The numbers of one record.

        Args:
            step: Steps done.
            split: ``train``, ``validation`` or ``test``.
            metrics: By name; those of ``timing`` are called ``timing/seconds`` and so on.
        """
        ...

    def close(self) -> None:
        """Called once, when training ends, also by an error."""
        ...


class CSVLogger:
    """Writes a row for each number: step, split, metric, value.

    The file is written from the first step that is logged on: a resumed run keeps the rows before
    it, and replaces those that it repeats. So does another run that is told the same file.

    Args:
        file: What to write.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = Path(tempfile.mkdtemp()) / "log.csv"
        >>> logger = CSVLogger(file)
        >>> logger.log(10, "train", {"loss": 0.5})
        >>> logger.close()
        >>> file.read_text().split()
        ['step,split,metric,value', '10,train,loss,0.5']
    """

    HEADER = ("step", "split", "metric", "value")

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        self.name = f"CSV {self.file.resolve()}"
        self._open: Any = None

    def log(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Writes the numbers of one record."""
        if self._open is None:
            before = self._rows_before(step)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._open = self.file.open("w", newline="")
            self._write([self.HEADER, *before])
        self._write([step, split, name, value] for name, value in metrics.items())

    def close(self) -> None:
        """Closes the file."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _write(self, rows: Any) -> None:
        csv.writer(self._open, lineterminator="\n").writerows(rows)
        self._open.flush()

    def _rows_before(self, step: int) -> list[list[str]]:
        """What the file has of earlier steps."""
        if not self.file.exists():
            return []
        with self.file.open(newline="") as file:
            header, *rows = [*csv.reader(file)] or [list(self.HEADER)]
        if tuple(header) != self.HEADER:
            raise InputError(f"{self.file} is no log of a CSVLogger: say another file.")
        whole = [row for row in rows if len(row) == len(self.HEADER) and row[0].isdecimal()]
        return [row for row in whole if int(row[0]) < step]


class TensorBoard:
    """Writes into ``RUN/tensorboard``; needs the extra ``nestruct[tensorboard]``.

    Args:
        run: The run folder, or any other one.
    """

    def __init__(self, run: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(
                "TensorBoard is not installed: pip install 'nestruct[tensorboard]'."
            ) from None
        folder = Path(run) / "tensorboard"
        self.name = f"TensorBoard {folder.resolve()}"
        self._make = lambda: SummaryWriter(str(folder))
        self._writer: Any = None

    def log(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Writes the numbers of one record."""
        if self._writer is None:  # not before the run folder is there
            self._writer = self._make()
        for name, value in metrics.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandB:
    """Writes a run of Weights & Biases; needs the package ``wandb``.

    Args:
        project: Where the run is listed.
        **options: Options of ``wandb.init``: ``name``, ``dir``, ``mode="offline"``, and for a run
            that is resumed ``id`` and ``resume="allow"``.
    """

    def __init__(self, project: str, **options: Any) -> None:
        try:
            import wandb
        except ImportError:
            raise InputError("wandb is not installed: pip install wandb.") from None
        self.name = f"WandB {project} {options.get('id') or options.get('name') or ''}".strip()
        self._make = lambda: wandb.init(project=project, **options)
        self._run: Any = None

    def log(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Writes the numbers of one record."""
        if self._run is None:
            self._run = self._make()
        self._run.log({f"{split}/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Ends the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def check_loggers(loggers: Sequence[Any]) -> None:
    """Raises where something is no logger, or two have one name."""
    names: list[str] = []
    if not isinstance(loggers, Sequence):
        raise InputError(f"loggers must be a list, like [logger]; got {loggers!r}.")
    for logger in loggers:
        if not isinstance(logger, Logger):
            raise InputError(
                f"A logger has the methods log(step, split, metrics) and close(); got {logger!r}."
            )
        name = getattr(logger, "name", None) or f"{type(logger).__name__} at {id(logger):#x}"
        if name in names:
            raise InputError(
                f"Two loggers are called {name!r}: leave one out, or give each a file, folder or "
                "name of its own."
            )
        names.append(name)


@contextlib.contextmanager
def closing(loggers: Sequence[Logger]) -> Iterator[None]:
    """Closes every logger at the end, the first one last."""
    with contextlib.ExitStack() as stack:
        for logger in loggers:
            stack.callback(logger.close)
        yield


def numbers_of(record: Record) -> dict[str, float]:
    """The numbers of a record by name, but for its step."""
    timing = {f"timing/{name}": value for name, value in record.get("timing", {}).items()}
    numbers = {name: value for name, value in record.items() if name != "step"} | timing
    return {
        name: value
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def log_to(loggers: Sequence[Logger], record: Record) -> None:
    """Hands a record's numbers to every logger."""
    for logger in loggers:
        logger.log(record["step"], record["split"], numbers_of(record))
