"""``nestruct evaluate``: how good a trained model is."""

import json
import time
from typing import Annotated, Any, Literal

from tyro.conf import arg

from nestruct.cli.arguments import Flag, Number, RunFolder, Trust
from nestruct.cli.life import signs_of_life
from nestruct.errors import InputError
from nestruct.training import evaluate_file, evaluate_run
from nestruct.training.run import finite
from nestruct.wording import duration, number


def evaluate(
    run: RunFolder,
    /,
    *,
    split: Annotated[
        Literal["train", "validation", "test"] | None,
        arg(metavar="{train,validation,test}", help_behavior_hint="(default: test)"),
    ] = None,
    file: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    skip_bad: Flag = False,
    max_words: Number = None,
    checkpoint: Literal["best", "last"] = "best",
    device: Annotated[str, arg(metavar="D")] = "auto",
    trust: Trust = False,
    as_json: Annotated[Flag, arg(name="json", help_behavior_hint="")] = False,
) -> int:
    """Evaluate the model of a run on one of its data splits.

    Args:
        run: A run folder.
        split: Which examples.
        file: Examples to compare with instead, where the model reads files (a parser: CoNLL-U,
            plain or gzip).
        skip_bad: Leave malformed examples of the file out, and count them.
        max_words: A longer sentence of the file is a malformed one (1,000 where this is not said).
        checkpoint: Which parameters: best on validation, or last.
        device: auto, cpu, cuda or cuda:1.
        as_json: Print one JSON object instead of lines.
    """
    if file is not None and split is not None:
        raise InputError(f"--file is compared with instead of a split: leave out --split {split}.")
    if file is None and (skip_bad or max_words is not None):
        option = "--skip-bad" if skip_bad else "--max-words"
        raise InputError(f"{option} is about the examples of a file: say which with --file.")
    split = split or "test"
    kept: Any = {"checkpoint": checkpoint, "device": device, "trust": trust}
    began = time.monotonic()
    with signs_of_life(lambda: f"Evaluating for {duration(time.monotonic() - began)} so far."):
        if file is None:
            step, values = evaluate_run(run, split=split, **kept)
        else:
            step, values = evaluate_file(run, file, skip_bad=skip_bad, max_words=max_words, **kept)
    if as_json:
        on = {"split": split} if file is None else {"file": file}
        print(json.dumps({"run": run.name, **on, "step": step, **finite(values)}))
        return 0
    print(f"{run} at step {step}, {f'{split} split' if file is None else file}:")
    for name, value in values.items():
        print(f"  {name} {number(value)}")
    return 0
