"""``nestruct bench``: measurements of whole training steps."""

import importlib.util
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from nestruct.benches import SIZES, TASKS, measure_scaling
from nestruct.benches.scaling_figure import draw_scaling
from nestruct.benches.scaling_summary import Measurements
from nestruct.cli.arguments import check_word
from nestruct.errors import InputError
from nestruct.training.recipes import resolve_device

NAMES = ("scaling",)


def bench(
    name: Annotated[str, Positional, arg(metavar="NAME")],
    /,
    *,
    task: Annotated[str, arg(metavar="TASK")] = "all",
    sizes: Annotated[str | None, arg(metavar="N,N,...", help_behavior_hint="")] = None,
    repeats: Annotated[int, arg(metavar="N")] = 3,
    device: Annotated[str, arg(metavar="D")] = "auto",
    budget: Annotated[float | None, arg(metavar="MINUTES", help_behavior_hint="")] = None,
    longest: Annotated[float, arg(metavar="SECONDS")] = 2.0,
    output: Annotated[Path, arg(aliases=["-o"], metavar="DIR")] = Path("runs/bench"),
) -> int:
    """Time training steps; `scaling` is the paper's Figure 2, seconds against n.

    Writes scaling-cpu.json (or -cuda) and, with matplotlib, its figure. The same command again
    measures only what is missing, so a stopped or a short one goes on.

    Args:
        name: What to measure: scaling.
        task: relational, projective, non-projective, or all.
        sizes: Values of n; 10, 20, ..., 250 where nothing is said.
        repeats: Seeds of each measurement.
        device: auto, cpu, cuda or cuda:1.
        budget: When to stop starting new measurements; sizes come in an order that spreads them.
        longest: Of a NES step with the training's N; a longer one is extrapolated from fewer
            members, and marked so.
        output: The folder for results and figure.
    """
    check_word("The benchmark", name, NAMES)
    check_word("The task", task, ["all", *TASKS])
    where = resolve_device(device)
    can_draw = importlib.util.find_spec("matplotlib") is not None
    if not can_draw:
        print('There will be no figure: it needs matplotlib (pip install "nestruct[plots]").')
    path = output / f"scaling-{where.partition(':')[0]}.json"
    record = measure_scaling(
        path,
        tasks=tuple(TASKS) if task == "all" else (task,),
        sizes=_sizes(sizes),
        repeats=repeats,
        device=where,
        budget=None if budget is None else 60 * budget,
        longest=longest,
        tell=lambda line: print(line, flush=True),
    )
    _print_summary(record)
    if can_draw:
        draw_scaling(record, path.with_suffix(".png"))
        print(f"Wrote {path.with_suffix('.png')}.")
    print(f"Wrote {path}.")
    return 0


def _sizes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return SIZES
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"Say sizes as N,N,... like 10,50,250; got {text!r}.") from None


def _print_summary(record: Measurements) -> None:
    on_cpu = record["protocol"]["device"] == "cpu"
    print("Of one training step," + (" in seconds of one core:" if on_cpu else " in seconds:"))
    for row in record["summary"]:
        method = f"NES, N = {row['members']}" if row["method"] == "NES" else row["method"]
        text = f"{row['task']:15} {method:12} {row['seconds']:9.4g} s at n = {row['largest_size']}"
        growth = row["growth"]
        if growth is not None:
            text += f", n^{growth['exponent']:.2f} ({growth['low']:.2f} to {growth['high']:.2f})"
            text += f" from n = {growth['smallest']} on"
        if row["largest_size"] in row["extrapolated_sizes"]:
            text += ", extrapolated"
        if row.get("members_meanwhile"):
            text += f"; NES evaluates {row['members_meanwhile']:.3g} members meanwhile"
        print(text)
