"""Seconds of one training step against n: Figure 2 of the paper, measured on one device.

A step is what training does: draw, solve, evaluate or differentiate, and Adam. All methods run on
one device, so times are per unit of hardware; the paper's NES had four GPUs for its N = 4. On a
CPU the processor time of all threads is kept beside the wall-clock, which depends on who else uses
the machine: core-seconds are the unit of hardware there. Each repeat has a seed of its own:
parameters, data and noise. Results go to one JSON file after every measurement, and a later call
continues from there.
"""

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from nestruct.benches.scaling_summary import Measurement, Measurements, step_seconds, summarise
from nestruct.benches.scaling_tasks import TASKS, Protocol, build, estimator, evaluations
from nestruct.checks import check_count, check_name
from nestruct.data import to_device
from nestruct.errors import InputError
from nestruct.files import write_whole
from nestruct.structures.solvers import solver_seconds
from nestruct.training.run import describe_environment
from nestruct.wording import duration

SIZES = tuple(range(10, 251, 10))
FORMAT = 1
_WORTH_TIMING = 0.1  # seconds: shorter steps are timed several at a time
_MOST_AT_A_TIME = 20


def measure_scaling(
    path: Path,
    *,
    tasks: Sequence[str] = tuple(TASKS),
    sizes: Sequence[int] = SIZES,
    repeats: int = 3,
    device: str = "cpu",
    budget: float | None = None,
    longest: float = 2.0,
    protocol: Protocol | None = None,
    tell: Callable[[str], None] = print,
) -> Measurements:
    """Times what is missing in the file ``path``, which may not exist yet.

    Args:
        path: Where results are read from and written to.
        tasks: Of `TASKS`.
        sizes: Values of n; in an order that spreads them, whenever the budget ends.
        repeats: Seeds of each measurement.
        device: Where to run.
        budget: Seconds after which nothing new is started.
        longest: Seconds that a step with the training's N may take, by what N = 4 takes; a larger
            one is timed with fewer members, and marked as extrapolated.
        protocol: What else a step depends on.
        tell: Shows a line of progress.
    """
    protocol = protocol or Protocol()
    check_options(tasks, sizes, repeats, budget, longest)
    target = torch.device(device)
    record = _open(path, protocol, target)
    # How memory is handed out decides what large tensors cost on a CPU: see docs/scaling.md.
    memory = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
    session = describe_environment(target) | {"malloc": memory, "load_at_start": _load()}
    record["sessions"].append(session)
    cells = _wanted(record, tasks, sizes, protocol)
    todo = [cell for cell in cells if len(cell["seconds"]) < repeats]
    begin = time.monotonic()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(protocol.matmul_precision)
    try:
        for number, cell in enumerate(todo):
            if budget is not None and time.monotonic() - begin > budget:
                spent = duration(budget)
                for late in todo[number:]:
                    late["note"] = f"not run: the budget of {spent} was spent"
                tell(f"The budget of {spent} is spent: {len(todo) - number} measurements not run.")
                break
            _measure(cell, record, repeats, target, longest, protocol)
            tell(f"{number + 1}/{len(todo)} {_describe(cell)}")
            session |= {
                "load_at_end": _load(),
                "seconds": time.monotonic() - begin,
                "peak_process_bytes": _peak_memory(),
            }
            _save(path, record)
    finally:
        torch.set_float32_matmul_precision(before)
        _save(path, record)
    return record


def read_scaling(path: Path) -> Measurements:
    """What `measure_scaling` wrote."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["benchmark"] != "scaling" or record["format"] != FORMAT:
            raise KeyError
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path} holds no results of this version's scaling benchmark: move it away, or say "
            "another folder."
        ) from None
    return record


def check_options(
    tasks: Sequence[str],
    sizes: Sequence[int],
    repeats: int,
    budget: float | None,
    longest: float,
) -> None:
    """Refuses what cannot be measured, before anything is."""
    for task in tasks:
        check_name("scaling: the task", task, TASKS)
    if not sizes or min(sizes) < 3:
        raise InputError(f"Sizes must be whole numbers of at least 3, got {list(sizes)}.")
    check_count("scaling", "repeats", repeats, 1)
    if budget is not None and not budget > 0:
        raise InputError(f"The budget must be positive, got {budget!r}.")
    if not longest > 0:
        raise InputError(f"The longest step must be positive, got {longest!r}.")


def spread_out(sizes: Sequence[int]) -> list[int]:
    """The same sizes, each as far as can be from those before it: first the two ends.

    Example:
        >>> spread_out([10, 20, 30, 40, 50])
        [10, 50, 30, 20, 40]
    """
    left = sorted(set(sizes))
    order = [left.pop(0)]
    while left:
        order.append(max(left, key=lambda n: min(abs(n - known) for known in order)))
        left.remove(order[-1])
    return order


def _open(path: Path, protocol: Protocol, device: torch.device) -> Measurements:
    """The file's record, or an empty one; one of another protocol or device is refused."""
    on_gpu = device.type == "cuda"
    wanted = asdict(protocol) | {
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
    }
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {
            "benchmark": "scaling",
            "format": FORMAT,
            "protocol": wanted,
            "sessions": [],
            "cells": [],
        }
    record = read_scaling(path)
    for name, value in wanted.items():
        known = record["protocol"].get(name)
        if known != value:
            raise InputError(
                f"{path} was measured with {name} = {known}, not {value}: times would not compare. "
                "Say another folder, or measure alike."
            )
    return record


def _wanted(
    record: Measurements, tasks: Sequence[str], sizes: Sequence[int], protocol: Protocol
) -> list[Measurement]:
    """The cells that were asked for, in the order to measure; those not known yet are added."""
    known = {_key(cell): cell for cell in record["cells"]}
    wanted = []
    for size in spread_out(sizes):
        for task in tasks:
            for method in TASKS[task]:
                for members in protocol.members(task, method):
                    cell: Measurement = {
                        "task": task,
                        "size": size,
                        "method": method,
                        "members": members,
                    }
                    cell = known.setdefault(_key(cell), cell)
                    cell.setdefault("timed_members", members)
                    cell.setdefault("seconds", [])
                    wanted.append(cell)
    order = [(task, method) for task, methods in TASKS.items() for method in methods]
    record["cells"] = sorted(
        known.values(),
        key=lambda c: (order.index((c["task"], c["method"])), c["members"], c["size"]),
    )
    return wanted


def _key(cell: Measurement) -> tuple[str, int, str, int]:
    return cell["task"], cell["size"], cell["method"], cell["members"]


def _measure(
    cell: Measurement,
    record: Measurements,
    repeats: int,
    device: torch.device,
    longest: float,
    protocol: Protocol,
) -> None:
    """Fills a cell in."""
    cell.pop("note", None)
    few = protocol.few_members
    if cell["method"] == "NES" and cell["members"] > few and not cell["seconds"]:
        small = next(c for c in record["cells"] if _key(c) == (*_key(cell)[:3], few))
        if not small["seconds"]:
            cell["note"] = f"not run: N = {few} has no time to start from"
            return
        each = median(small["seconds"]) / evaluations(cell["task"], few)
        fitting = max(few, int(longest / each) // 2 * 2)
        cell["timed_members"] = min(fitting, cell["members"])
        if cell["timed_members"] == few:  # the same measurement serves both
            cell |= json.loads(json.dumps(small)) | {"members": cell["members"]}
            return
    try:
        _time_steps(cell, repeats, device, protocol)
        # A step of few members may be launches more than work: there is time for more of them.
        while (timed := cell["timed_members"]) < cell["members"]:
            spent = median(cell["seconds"])
            if spent > longest / 2:
                break
            members = min(int(timed * longest / spent) // 2 * 2, cell["members"])
            larger = {name: value for name, value in cell.items() if name != "first_seconds"}
            larger |= {"timed_members": members, "seconds": [], "core_seconds": None}
            _release(device)
            _time_steps(larger, repeats, device, protocol)
            cell |= larger
    except (torch.OutOfMemoryError, MemoryError):
        if not cell["seconds"]:
            cell |= {"core_seconds": None, "note": "not run: out of memory"}
    _release(device)


def _release(device: torch.device) -> None:
    """Gives memory back to a GPU; captured steps are held by closures."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _time_steps(cell: Measurement, repeats: int, device: torch.device, protocol: Protocol) -> None:
    task, size, method = cell["task"], cell["size"], cell["method"]
    on_gpu = device.type == "cuda"
    model = build(task, size, 0, protocol)[0].to(device)
    members = cell["timed_members"]
    method_estimator = estimator(task, method, size, members, protocol, on_gpu=on_gpu)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adam = torch.optim.Adam(trained, lr=1e-5, fused=on_gpu)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)

    def steps(batch: Any, first: int, count: int) -> tuple[float, float]:
        """Seconds of each of some steps: of the clock on the wall, and of all threads."""
        _wait(device)
        start, cores = time.perf_counter(), time.process_time()
        for number in range(first, first + count):
            method_estimator.backward(model, batch, seed=0, step=number)
            adam.step()
        _wait(device)
        return (time.perf_counter() - start) / count, (time.process_time() - cores) / count

    known = len(cell["seconds"])
    solver, core_seconds = [], list(cell.get("core_seconds") or [])
    for seed in range(known, repeats):
        batch = _restart(model, task, size, seed, protocol, device)
        if seed == known:
            # The first step compiles, captures and takes memory; where it is short so is the next.
            first, _ = steps(batch, 0, 1)
            again = steps(batch, 1, 1)[0] if on_gpu or first < 0.5 else first
            cell.setdefault("first_seconds", first)
            count = min(max(1, int(_WORTH_TIMING / again)), _MOST_AT_A_TIME)
        before = solver_seconds()
        wall, cores = steps(batch, 1000 * (seed + 1), count)
        cell["seconds"].append(wall)
        core_seconds.append(cores)
        solver.append((solver_seconds() - before) / count)
    cell["core_seconds"] = None if on_gpu else core_seconds
    cell["solver_seconds"] = None if on_gpu else median(solver)
    cell["memory_bytes"] = torch.cuda.max_memory_allocated(device) if on_gpu else None
    cell["load"] = _load()


def _restart(
    model: nn.Module, task: str, size: int, seed: int, protocol: Protocol, device: torch.device
) -> Any:
    """Gives a model the parameters of a seed, in place (a captured step stays); and a batch."""
    fresh, batch = build(task, size, seed, protocol)
    model.load_state_dict(fresh.state_dict())
    return to_device(batch, device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _describe(cell: Measurement) -> str:
    members = f", N = {cell['members']}" if cell["method"] == "NES" else ""
    text = f"{cell['task']}, n = {cell['size']}, {cell['method']}{members}: "
    if not cell["seconds"]:
        return text + cell["note"]
    times = step_seconds(cell, "wall")
    text += f"{_exact(median(times))} a step"
    if len(times) > 1:
        text += f" ({_exact(min(times))} to {_exact(max(times))})"
    timed = cell["timed_members"]
    return text if timed == cell["members"] else f"{text}, extrapolated from {timed} members"


def _exact(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _save(path: Path, record: Measurements) -> None:
    """One cell a line; what is derived from them is written anew."""
    head = {key: value for key, value in record.items() if key != "cells"}
    head["summary"] = record["summary"] = summarise(record)
    lines = ",\n".join(f"  {json.dumps(cell)}" for cell in record["cells"])
    text = f'{json.dumps(head, indent=1)[:-2]},\n "cells": [\n{lines}\n ]\n}}\n'
    write_whole(path, text.encode())


def _load() -> float | None:
    """How many processes wanted a CPU in the last minute; others' too."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
