"""Run folders read back as plain data.

The one place that knows which files a run folder has. A run that was killed is read as far as it
got: an unfinished last line is left out, a broken line anywhere else is an error.
"""

import json
import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestruct.errors import InputError

Record = dict[str, Any]

# What a record says about the moment it was written; every other number in it is a metric.
POSITION_KEYS = {"step", "evaluations", "best_step"}
# The likelihood's variance with which the ELBO of graph layouts is published: with another one,
# what a run calls loss_published cannot be compared.
PUBLISHED_VARIANCE = 5e-5


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        path: The folder.
        config: The resolved recipe; ``config_text`` is the file as written.
        records: The lines of ``metrics.jsonl`` by split, each in order of its step. Reports show
            the ELBO with its sign: where a line has ``loss_published``, there is ``elbo`` too.
        environment: Versions, device, command; empty where the file is missing.
        scene: What the structures are and the true ones (first line of ``structures.jsonl``).
        frames: The structures found at each evaluation, and what the model shows of itself.
        attachment: Of a parser, what it attaches in each test sentence (``attachment.json``).
        loop: What the last checkpoint says of the training; None where only the logs were kept.
    """

    path: Path
    config: Record
    config_text: str
    records: dict[str, list[Record]]
    environment: Record
    scene: Record | None
    frames: list[Record]
    attachment: Record | None = None
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
        """Whether nothing is left to do, not even the test; where only logs are left, by those."""
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
    def goes_on(self) -> bool:
        """Whether it starts with what another run learnt: the later phases of a parser do."""
        if "--init-from" in str(self.environment.get("command", "")):
            return True
        phase = self.option("model.objective")
        return phase in ("decoder", "vae") or (phase == "parser" and self.max_steps == 0)

    @property
    def validation(self) -> list[Record]:
        """The lines of the split ``validation``."""
        return self.records.get("validation", [])

    @property
    def examples_per_evaluation(self) -> int | None:
        """How many examples one evaluation decodes; None where the configuration does not say."""
        size = self.option("training.batch_size")
        size = self.option("data.num_train") if size in (None, "none") else size
        if self.option("estimator.minibatch") == "per_pair" and isinstance(size, int):
            pairs = int(self.option("estimator.population_size") or 2) // 2
            given = self.option("estimator.pair_batch_size")
            size = given if isinstance(given, int) else max(1, size // max(1, pairs))
        return size if isinstance(size, int) else None

    def decoded(self, record: Record) -> int | None:
        """How many examples had been decoded for training when a record was written."""
        count, size = record.get("evaluations"), self.examples_per_evaluation
        return count * size if isinstance(count, int) and size else None

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
        value = lines[0].get(metric) if lines else None
        return value if is_number(value) else None

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
    for name in ("config.toml", "metrics.jsonl"):
        if not (path / name).is_file():
            raise InputError(f"{path} is not a run folder: it has no {name}; give one that has.")
    text = _text(path / "config.toml")
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = f"{path / 'config.toml'} is not TOML: {error}; mend it or leave the run out."
        raise InputError(message) from None
    frames = _lines(path / "structures.jsonl") if (path / "structures.jsonl").is_file() else []
    scene = frames.pop(0) if frames else None
    if scene is not None:
        _check_structures(path / "structures.jsonl", scene, frames)
    run = Run(
        path,
        config,
        text,
        _records(path),
        _object(path / "environment.json"),
        scene,
        frames,
        _attachment(path / "details.json") or _attachment(path / "attachment.json"),
        _loop(path / "checkpoints"),
    )
    if run.option("model.variance") == PUBLISHED_VARIANCE:
        for record in (record for records in run.records.values() for record in records):
            if is_number(record.get("loss_published")):
                record["elbo"] = -record["loss_published"]
    return run


def find_runs(paths: Iterable[str | Path]) -> tuple[list[Path], list[Path]]:
    """Which run folders are meant, and which paths are none and hold none.

    A folder that is no run stands for the runs directly in it.

    Raises:
        InputError: There is nothing at one of the paths.
    """
    found: list[Path] = []
    others: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"{path} is not a folder; give the run folder that training wrote.")
        inside = [path] if _is_run(path) else sorted(filter(_is_run, path.glob("*")))
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


def is_number(value: Any) -> bool:
    """Whether a value is a finite number (True and False are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


def _records(path: Path) -> dict[str, list[Record]]:
    """The metrics by split; where a resumed run wrote a step again, its later line counts."""
    file = path / "metrics.jsonl"
    splits: dict[str, dict[int, Record]] = {}
    for number, record in enumerate(_lines(file), start=1):
        step, split = record.get("step"), record.get("split")
        if isinstance(step, bool) or not isinstance(step, int) or not isinstance(split, str):
            raise InputError(
                f"{file}, line {number}: a record needs a whole number 'step' and a text 'split'; "
                "mend the line or leave the run out."
            )
        if not isinstance(record.setdefault("timing", {}), dict):
            raise InputError(f"{file}, line {number}: 'timing' must be an object; mend the line.")
        splits.setdefault(split, {})[step] = record
    return {split: [lines[step] for step in sorted(lines)] for split, lines in splits.items()}


def _object(file: Path) -> Record:
    """The object in a JSON file; empty where there is none."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(_text(file))
    except json.JSONDecodeError as error:
        message = f"{file}, line {error.lineno}, is not JSON: {error.msg}; mend it or remove it."
        raise InputError(message) from None
    if not isinstance(found, dict):
        raise InputError(f"{file} must hold one JSON object; mend it or remove it.")
    return found


def _attachment(file: Path) -> Record | None:
    found = _object(file)
    if "arcs" not in found:  # none, or details of another model
        return None
    lists = [found.get(key) for key in ("words", "scored", "arcs")]
    sizes = {key: len(value) for key, value in found.items() if isinstance(value, list)}
    models = found.get("models")
    good = found.get("format") == 1 and all(isinstance(value, list) for value in lists)
    good = good and isinstance(models, dict) and sizes["words"] == sizes["scored"]
    for counts in models.values() if good and models else ():
        good = good and all(
            len(counts.get(f"{key}_right") or []) == sizes[key]
            for key in ("words", "scored", "arcs")
        )
    if not good:
        raise InputError(
            f"{file} is not what this version writes; make it again with `nestruct evaluate "
            f"{file.parent}`, or remove it."
        )
    return found


def _loop(folder: Path) -> Record | None:
    """What resuming goes by; a checkpoint that cannot be read is training's to refuse."""
    for name in ("last", "last.previous"):
        try:
            return dict(json.loads((folder / name / "state.json").read_bytes())["loop"])
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None


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
            # Python's own NaN and Infinity are read as null: no number.
            value = json.loads(line.decode(), parse_constant=lambda _: None)
            if not isinstance(value, dict):
                raise ValueError("a JSON object is expected")
        except ValueError as error:
            if number > len(lines):
                break
            message = f"{file}, line {number}, is broken: {error}; mend or remove that line."
            raise InputError(message) from None
        objects.append(value)
    return objects


def _text(file: Path) -> str:
    try:
        return _read(file).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text ({error}); save it as UTF-8.") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        message = f"{file} cannot be read ({error.strerror}); check its permissions."
        raise InputError(message) from error
