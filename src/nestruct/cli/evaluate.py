"""``nestruct evaluate``: how good a trained model is."""

import json
from typing import Annotated, Literal

from tyro.conf import arg

from nestruct.cli.arguments import Flag, RunFolder
from nestruct.training import evaluate_run
from nestruct.wording import number


def evaluate(
    run: RunFolder,
    /,
    *,
    split: Literal["train", "validation", "test"] = "test",
    checkpoint: Literal["best", "last"] = "best",
    device: Annotated[str, arg(metavar="D")] = "auto",
    as_json: Annotated[Flag, arg(name="json", help_behavior_hint="")] = False,
) -> int:
    """Evaluate the model of a run on one of its data splits.

    Args:
        run: A run folder.
        split: Which examples.
        checkpoint: Which parameters: best on validation, or last.
        device: auto, cpu, cuda or cuda:1.
        as_json: Print one JSON object instead of lines.
    """
    step, values = evaluate_run(run, split=split, checkpoint=checkpoint, device=device)
    if as_json:
        print(json.dumps({"run": run.name, "split": split, "step": step, **values}))
        return 0
    print(f"{run} at step {step}, {split} split:")
    for name, value in values.items():
        print(f"  {name} {number(value)}")
    return 0
