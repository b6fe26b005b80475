"""Run folders, and archives of them, read back as plain data.

Configurations and checkpoints are read by the code that writes them, `nestruct.training`. A run
that was killed is read as far as it got: an unfinished last line is left out, a broken line
anywhere else is an error.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nestruct.errors import InputError
from nestruct.reports.archives import is_archive, unpack_runs
from nestruct.reports.metrics import METRICS
from nestruct.training.run import Record, read_config
from nestruct.training.run.checkpoint import read_last
from nestruct.training.run.verify import check_files
from nestruct.untrusted import MOST_LOG_BYTES, parse_json, read_file

log = logging.getLogger("nestruct")

# What a record says about the moment it was written; every other number in it is a metric.
POSITION_KEYS = {"step", "evaluations", "decoded", "solved", "looked_up", "best_step"}
MOST_METRICS = 1000  # of a run: each is a chart, and a column or two
DEEPEST = 4  # levels below a folder at which its runs may lie


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        path: The folder.
        config: The resolved recipe; ``config_text`` is the file as written.
        records: The lines of ``metrics.jsonl`` by split, each in order of its step, with the
            metrics that `nestruct.reports.metrics` derives from others.
        environment: Versions, device, command; empty where the file is missing.
        scene: What the structures are and the true ones (first line of ``structures.jsonl``).
        frames: The structures found at each evaluation, and what the model shows of itself.
        details: What the model noted of its test data, beside the metrics (``details.json``).
        loop: What the last checkpoint says of the training; None where only the logs were kept.
    """

    path: Path
    config: Record
    config_text: str
    records: dict[str, list[Record]]
    environment: Record
    scene: Record | None
    frames: list[Record]
    details: Record | None = None
    loop: Record | None = None

    @property
    def seed(self) -> Any:
        """The seed in the configuration, None where it has none."""
        return self.config.get("seed")

    @property
    def last_step(self) -> int:
        """The last step that left a line."""
        return max((lines[-1]["step"] for lines in self.records.values()), default=0)

    @property
    def max_steps(self) -> int | None:
        """The number of steps the configuration asks for."""
        steps = self.option("training.max_steps")
        return steps if isinstance(steps, int) else None

    @property
    def finished(self) -> bool:
        """True if nothing is left to do, not even the test; where only logs are left, by those."""
        if self.loop is None:
            return "test" in self.records or self.last_step >= (self.max_steps or math.inf)
        if self.loop.get("reason") == "finished":  # it may have been asked to go on for longer
            return self.loop.get("step", 0) >= (self.max_steps or 0)
        return self.loop.get("reason") is not None

    @property
    def state(self) -> str:
        """``finished``, or where the run stopped."""
        asked = f" of {self.max_steps:,}" if self.max_steps else ""
        return "finished" if self.finished else f"unfinished at step {self.last_step:,}{asked}"

    @property
    def best_step(self) -> int | None:
        """The step whose model was kept: as the run says, else by its own metric on validation."""
        test = self.value("test", "best_step")
        if test is not None:
            return int(test)
        metric = self.option("training.metric") or "loss"
        sign = -1 if self.option("training.maximize") else 1
        scored = [
            (sign * r[metric], r["step"]) for r in self.validation if is_number(r.get(metric))
        ]
        return min(scored)[1] if scored else None

    @property
    def validation(self) -> list[Record]:
        """The lines of the split ``validation``."""
        return self.records.get("validation", [])

    def decoded(self, record: Record) -> int | None:
        """How many examples had been decoded for training when a record was written."""
        count = record.get("decoded")
        return count if isinstance(count, int) else _decoded_by_config(self, record)

    @property
    def counts_decoded(self) -> bool:
        """True if the number of decoded examples is known."""
        return any(self.decoded(r) is not None for rs in self.records.values() for r in rs)

    def option(self, key: str) -> Any:
        """An option of the configuration, like ``estimator.sigma``; None where it is not there."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def value(self, when: str, metric: str) -> float | None:
        """A metric at the ``first``, ``best`` or ``last`` validation, or on ``test`` data."""
        if when == "test":
            lines = self.records.get("test", [])[-1:]
        elif when == "best":
            best = self.best_step
            lines = [line for line in self.validation if line["step"] == best]
        else:
            lines = self.validation[:1] if when == "first" else self.validation[-1:]
        return number_in(lines[0], metric) if lines else None

    def timings(self, key: str, split: str | None = None) -> list[float]:
        """Every number that the records give under ``timing``, or at top level, for one key."""
        lines = [r for name, rs in self.records.items() if split in (None, name) for r in rs]
        values = [r["timing"].get(key, r.get(key)) for r in lines]
        return [value for value in values if is_number(value)]


def read_run(path: str | Path) -> Run:
    """Reads one run folder.

    Raises:
        InputError: The folder or one of its files is missing or cannot be read; the message names
            the file, the line and what to do.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; give the run folder that training wrote.")
    config = read_config(path)
    if not (path / "metrics.jsonl").is_file():
        raise InputError(f"{path} is not a run folder: it has no metrics.jsonl; give one that has.")
    frames = _lines(path / "structures.jsonl") if (path / "structures.jsonl").is_file() else []
    scene = frames.pop(0) if frames else None
    if scene is not None:
        _check_structures(path / "structures.jsonl", scene, frames)
    last = read_last(path / "checkpoints")
    for sentence in [] if last is None else check_files(path, last):
        log.warning("%s: %s", path, sentence)
    return Run(
        path,
        config,
        _read(path / "config.toml").decode(),
        _records(path, config),
        _object(path / "environment.json"),
        scene,
        frames,
        # Parsers once had a file of their own.
        _object(path / "details.json") or _object(path / "attachment.json") or None,
        None if last is None else last["loop"],
    )


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Reads run folders and archives of run folders, each once.

    Raises:
        InputError: There is none, or one of them cannot be read.
    """
    found = []
    for path in dict.fromkeys(Path(path).resolve() for path in paths):
        found += _read_archive(path) if is_archive(path) else [read_run(path)]
    if not found:
        raise InputError("No run folder was given; name at least one.")
    return found


def find_runs(paths: Iterable[str | Path]) -> tuple[list[Path], list[Path]]:
    """Which run folders and archives are meant, and which paths are none and hold none.

    A folder that is no run stands for the runs in it, up to four levels deep. Hidden folders and
    those of checkpoints are passed over, and so are links to anything but a run.

    Raises:
        InputError: There is nothing at one of the paths.
    """
    found: list[Path] = []
    others: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"{path} is not a folder; give the run folder that training wrote.")
        inside = [path] if is_archive(path) else list(_runs_in(path, DEEPEST))
        found += inside
        others += [] if inside else [path]
    return found, others


def metric_names(records: Iterable[Record]) -> list[str]:
    """Every key that is a number somewhere and does not merely say when it was written."""
    return list(
        dict.fromkeys(
            key
            for record in records
            for key, value in record.items()
            if is_number(value) and key not in POSITION_KEYS
        )
    )


def number_in(record: Record, key: str) -> float | None:
    """What a record has under a key, if that is a finite number."""
    value = record.get(key)
    return value if is_number(value) else None


def is_number(value: Any) -> bool:
    """True if a value is a finite number (True and False are not)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer with hundreds of digits
        return False


def _runs_in(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "config.toml").is_file():
        yield folder
    elif depth and folder.is_dir() and not (folder.is_symlink() and depth < DEEPEST):
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and inner.name[0] != "." and inner.name != "checkpoints":
                yield from _runs_in(inner, depth - 1)


def _read_archive(file: Path) -> list[Run]:
    """The runs in an archive, as if it were a folder."""
    with TemporaryDirectory(prefix="nestruct-") as name:
        folder = Path(name)
        unpack_runs(file, folder)
        try:
            runs = [read_run(path) for path in _runs_in(folder, DEEPEST)]
        except InputError as error:
            raise InputError(str(error).replace(name, str(file))) from None
    if not runs:
        raise InputError(f"{file} holds no run; give an archive of run folders.")
    return [replace(run, path=file / run.path.relative_to(folder)) for run in runs]


def _decoded_by_config(run: Run, record: Record) -> int | None:
    """The examples decoded by a run that did not note them: its evaluations times their examples.

    Runs have noted them since records have ``decoded``.
    """
    size = run.option("training.batch_size")
    size = run.option("data.num_train") if size in (None, "none") else size
    if run.option("estimator.minibatch") == "per_pair" and isinstance(size, int):
        pairs = int(run.option("estimator.population_size") or 2) // 2
        given = run.option("estimator.pair_batch_size")
        size = given if isinstance(given, int) else max(1, size // max(1, pairs))
    count = record.get("evaluations")
    return count * size if isinstance(count, int) and isinstance(size, int) and size else None


def _records(path: Path, config: Record) -> dict[str, list[Record]]:
    """The metrics by split; where a resumed run wrote a step again, its later line counts."""
    file = path / "metrics.jsonl"
    splits: dict[str, dict[int, Record]] = {}
    derived = [(name, metric.derive) for name, metric in METRICS.items() if metric.derive]
    metrics: set[str] = set()
    for number, record in enumerate(_lines(file), start=1):
        metrics |= record.keys()
        if len(metrics) > MOST_METRICS:
            raise InputError(
                f"{file}, line {number}: a report shows at most {MOST_METRICS:,} metrics of a run; "
                "leave the run out."
            )
        step, split = record.get("step"), record.get("split")
        if not (is_number(step) and isinstance(step, int) and isinstance(split, str)):
            raise InputError(
                f"{file}, line {number}: a record needs a whole number 'step' and a text 'split'; "
                "mend the line or leave the run out."
            )
        if not isinstance(record.setdefault("timing", {}), dict):
            raise InputError(f"{file}, line {number}: 'timing' must be an object; mend the line.")
        for name, derive in derived:
            value = derive(config, record)
            if value is not None:
                record.setdefault(name, value)
        splits.setdefault(split, {})[step] = record
    return {split: [lines[step] for step in sorted(lines)] for split, lines in splits.items()}


def _object(file: Path) -> Record:
    """The object in a JSON file; empty where there is none."""
    if not file.is_file():
        return {}
    try:
        found = parse_json(_read(file))
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}; mend it or remove it.") from None
    if not isinstance(found, dict):
        raise InputError(f"{file} must hold one JSON object; mend it or remove it.")
    return found


def _check_structures(file: Path, scene: Record, frames: list[Record]) -> None:
    if scene.get("format") != 1 or not isinstance(scene.get("structure"), str):
        raise InputError(
            f"{file}, line 1: format {scene.get('format')!r} is not one this version reads (1); "
            "update nestruct, or remove the file to make the page without structures."
        )
    for number, frame in enumerate(frames, start=2):
        if not isinstance(frame.get("step"), int) or not isinstance(frame.get("map"), list):
            raise InputError(
                f"{file}, line {number}: an evaluation needs 'step' and a list 'map'; mend the "
                "line, or remove the file to make the page without structures."
            )
        if not isinstance(frame.get("model", {}), dict):
            raise InputError(f"{file}, line {number}: 'model' must be an object; mend the line.")


def _lines(file: Path) -> list[Record]:
    """The objects of a JSON-lines file, without a last line that was cut off."""
    *lines, tail = _read(file).split(b"\n")
    objects: list[Record] = []
    for number, line in enumerate([*lines, tail], start=1):
        try:
            value = parse_json(line)
            if not isinstance(value, dict):
                raise ValueError("a JSON object is expected")
        except ValueError as error:
            if number > len(lines):
                break
            message = f"{file}, line {number}, is broken: {error}; mend or remove that line."
            raise InputError(message) from None
        objects.append(value)
    return objects


def _read(file: Path) -> bytes:
    try:
        return read_file(file, MOST_LOG_BYTES)
    except ValueError as error:
        raise InputError(f"{file} cannot be read: {error}; leave the run out.") from None
    except OSError as error:
        message = f"{file} cannot be read ({error.strerror}); check its permissions."
        raise InputError(message) from error
