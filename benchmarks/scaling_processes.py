"""Milliseconds per training step when 1, 2 and 4 processes share its work, and what they send.

    python benchmarks/scaling_processes.py [--processes 1,2,4] [--rounds 4] [--steps 8] [--json F]

Each process runs under torchrun with gloo and one thread; the counts take turns, round after round.
A step is ``backward`` and Adam; NES shares members, StructureNES and SST share examples. Bytes are
counted where the collectives are called: what one process puts into each all-reduce (how an
all-reduce moves it is the backend's affair: about twice that per process in a ring). On a machine
with fewer cores than processes the last ones can gain nothing; on a shared one the best time says
more than the median, and the processor time of one process says how the work divides, whoever else
is there. Of that time a share does not divide: a of ``a + b / processes``, fitted to the medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import nestruct
from nestruct.models import CategoricalVAE, RelationalVAE


def layout(examples: int) -> tuple[Any, Any]:
    """Graph layout with a small network: 10 nodes."""
    x = torch.rand(examples, 10, 10, 2)
    return RelationalVAE(10, 10, hidden_size=64, num_rollout_steps=1), {"x": x}


def population(size: int) -> nestruct.NES:
    return nestruct.NES(sigma=0.1, population_size=size, mode="vmap")


# Model and batch, and the estimator: the 100K row of Table 3, then graph layout.
CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], Callable[[], Any]]] = {
    "NES, categorical, 100K parameters, N = 90": (
        lambda: (CategoricalVAE(784, hidden_size=64), torch.rand(128, 784).round()),
        lambda: population(90),
    ),
    "NES, graph layout, N = 32": (lambda: layout(8), lambda: population(32)),
    "StructureNES, graph layout, 16 samples": (lambda: layout(64), nestruct.StructureNES),
    "SST, graph layout": (lambda: layout(64), lambda: nestruct.SST(temperature=0.5)),
}


def work(steps: int) -> dict[str, Any]:
    """What one process does; rank 0's times and counts."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sent: list[int] = []
    waited: list[float] = []
    all_reduce = dist.all_reduce

    def counted(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = all_reduce(tensor, *args, **options)
        waited.append(time.perf_counter() - start)
        sent.append(tensor.numel() * tensor.element_size())
        return result

    dist.all_reduce = counted
    found = {}
    for name, (make, make_estimator) in CASES.items():
        torch.manual_seed(0)
        model, batch = make()
        estimator = make_estimator()
        adam = torch.optim.Adam(model.parameters(), lr=1e-3)
        spent, used = [], []
        for step in range(steps + 2):
            if step == 2:  # the first steps warm up
                sent.clear()
                waited.clear()
            dist.barrier()
            start, before = time.perf_counter(), time.process_time()
            estimator.backward(model, batch, seed=0, step=step)
            adam.step()
            spent.append(time.perf_counter() - start)
            used.append(time.process_time() - before)
        found[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "ms": [round(1e3 * s, 2) for s in spent[2:]],
            "cpu_ms": [round(1e3 * s, 2) for s in used[2:]],
            "bytes_per_step": sum(sent) // steps,
            "calls_per_step": len(sent) // steps,
            "ms_in_all_reduce": round(1e3 * sum(waited) / steps, 2),
        }
    dist.destroy_process_group()
    return found


def launch(processes: int, steps: int, folder: Path) -> dict[str, Any]:
    """One torchrun; gives rank 0's findings."""
    out = folder / "found.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={processes}", __file__, "--worker", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--steps", str(steps)], env=environment, check=True)
    return json.loads(out.read_text())


def undivided(cpu: dict[int, float]) -> float | None:
    """The share of a step's processor time that does not divide; by least squares."""
    if len(cpu) < 2:
        return None
    rows = torch.tensor([[1.0, 1 / count] for count in cpu], dtype=torch.float64)
    times = torch.tensor(list(cpu.values()), dtype=torch.float64)
    whole, divided = torch.linalg.lstsq(rows, times[:, None]).solution[:, 0].tolist()
    return round(whole / (whole + divided), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        found = work(options.steps)
        if os.environ["RANK"] == "0":
            options.worker.write_text(json.dumps(found))
        return
    counts = [int(word) for word in options.processes.split(",")]
    seen: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in CASES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for count in counts:
                for name, found in launch(count, options.steps, Path(folder)).items():
                    known = seen[name].setdefault(count, found | {"ms": [], "cpu_ms": []})
                    known["ms"] += found["ms"]
                    known["cpu_ms"] += found["cpu_ms"]
    rows = []
    for by_count in seen.values():
        share = undivided({n: statistics.median(f["cpu_ms"]) for n, f in by_count.items()})
        for found in by_count.values():
            found["undivided"] = share
    print(f"{'':42} processes  best ms  median ms  speed-up  CPU ms of one  bytes a step")
    for name, by_count in seen.items():
        first = min(by_count[counts[0]]["ms"])
        for count, found in by_count.items():
            spent = found.pop("ms")
            best, median = min(spent), statistics.median(spent)
            row = {"case": name, "processes": count, "best_ms": best, "median_ms": median}
            row["speed_up"] = round(first / best, 2)
            row |= found | {"cpu_ms": statistics.median(found["cpu_ms"])}
            rows.append(row)
            print(
                f"{name:42} {count:9} {best:8.1f} {median:10.1f} {first / best:9.2f} "
                f"{row['cpu_ms']:14.1f} {row['bytes_per_step']:13,}"
            )
    if options.json:
        about = {
            "what": "backward and Adam, gloo, one thread per process",
            "cores": len(os.sched_getaffinity(0)),
            "load_average": os.getloadavg()[0],
            "torch": torch.__version__,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        }
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
