"""What follows from the measurements of `scaling.py`: whole steps, growth, hardware."""

from dataclasses import asdict
from statistics import median
from typing import Any

from nestruct.benches.growth import fit_growth
from nestruct.benches.scaling_tasks import evaluations

_PAPER_DEVICES = 4  # GPUs, one member on each

Measurement = dict[str, Any]  # what was measured of one method at one size
Measurements = dict[str, Any]  # the whole file


def step_seconds(cell: Measurement, clock: str = "hardware") -> list[float]:
    """Seconds of a step with all its members, extrapolated from those that were timed.

    Args:
        cell: A measurement.
        clock: ``wall``, or ``hardware``: core-seconds on a CPU, and the same as wall on a GPU.
    """
    task, members, timed = cell["task"], cell["members"], cell["timed_members"]
    scale = evaluations(task, members) / evaluations(task, timed) if timed != members else 1.0
    spent = cell["seconds"] if clock == "wall" else cell.get("core_seconds") or cell["seconds"]
    return [scale * seconds for seconds in spent]


def summarise(record: Measurements) -> list[dict[str, Any]]:
    """For each method its growth, and its times at the largest size that was measured.

    ``seconds``, and what follows from them, are of one GPU, or of one core; ``wall_seconds`` are
    what passed. ``seconds_on_4`` is the paper's view of NES with N = 4, one member on each of four
    devices, if nothing were lost between them. ``members_meanwhile`` is how many members NES
    evaluates on the same hardware while this method does one step.
    """
    rows, series = [], _series(record)
    for (task, method, members), cells in series.items():
        times = {cell["size"]: median(step_seconds(cell)) for cell in cells}
        largest = max(times)
        growth = fit_growth(list(times), list(times.values()))
        row: dict[str, Any] = {"task": task, "method": method, "members": members}
        last = next(cell for cell in cells if cell["size"] == largest)
        row |= {"largest_size": largest, "seconds": times[largest]}
        row["wall_seconds"] = median(step_seconds(last, "wall"))
        row["extrapolated_sizes"] = [
            cell["size"] for cell in cells if cell["timed_members"] != members
        ]
        if method == "NES" and members == record["protocol"]["few_members"]:
            row["seconds_on_4"] = times[largest] / _PAPER_DEVICES
        if method != "NES":
            rate = _member_seconds(series, task, largest)
            row["members_meanwhile"] = None if rate is None else times[largest] / rate
        row["growth"] = None if growth is None else asdict(growth)
        rows.append(row)
    return rows


def _series(record: Measurements) -> dict[tuple[str, str, int], list[Measurement]]:
    series: dict[tuple[str, str, int], list[Measurement]] = {}
    for cell in record["cells"]:
        if cell["seconds"]:
            key = (cell["task"], cell["method"], cell["members"])
            series.setdefault(key, []).append(cell)
    return series


def _member_seconds(series: dict, task: str, size: int) -> float | None:
    """What a member takes in the largest population that was timed at a size."""
    found = [
        (cell["timed_members"], median(step_seconds(cell)) / cell["members"])
        for (name, method, _), cells in series.items()
        for cell in cells
        if name == task and method == "NES" and cell["size"] == size
    ]
    return max(found)[1] if found else None
