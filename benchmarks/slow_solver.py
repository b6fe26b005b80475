"""How much faster a slow solver is in two worker processes than in one, and than in this one.

    python benchmarks/slow_solver.py [--workers 0,1,2] [--instances 200] [--repeats 9] [--json FILE]

The solver is OR-Tools CP-SAT, one thread, on knapsacks of 30 items with three resources: about five
milliseconds each. It is a `BlackBox` with ``batched=False``; all settings solve the same instances
and must give the same answers. Starting the workers does not count. Repeats take turns, and so do
steps of `StructureNES`, which train a linear encoder on the same instances. The load of the machine
when the benchmark began is noted, because it decides what a second worker can gain.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ortools.sat.python import cp_model

import nestruct

ITEMS, RESOURCES = 30, 3


def pack(worth, weights, room):
    """The most valuable items that fit into every resource, by CP-SAT."""
    model = cp_model.CpModel()
    taken = [model.new_bool_var(f"item {item}") for item in range(len(worth))]
    for needs, most in zip(weights, room, strict=True):
        model.add(cp_model.LinearExpr.weighted_sum(taken, needs.tolist()) <= int(most))
    values = np.round(1000 * worth.astype(np.float64)).astype(int)
    model.maximize(cp_model.LinearExpr.weighted_sum(taken, values.tolist()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # several threads of one worker would not be several workers
    if solver.solve(model) != cp_model.OPTIMAL:
        return np.full(len(worth), np.nan)
    return np.array([solver.boolean_value(item) for item in taken])


class Packer(nestruct.StructuredModel):
    def __init__(self, structure: nestruct.BlackBox) -> None:
        super().__init__()
        self.structure = structure
        self.worth = torch.nn.Linear(4, 1)

    def encode(self, batch: Any) -> torch.Tensor:
        return self.worth(batch["x"])[..., 0]

    def context(self, batch: Any) -> dict[str, torch.Tensor]:
        return {"weights": batch["weights"], "room": batch["room"]}

    def decode(self, batch: Any, z: torch.Tensor) -> torch.Tensor:
        return (z * batch["profit"]).sum(-1)


def draw(count: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, ITEMS, 4, generator=generator)
    weights = torch.randint(5, 50, (count, RESOURCES, ITEMS), generator=generator)
    return {"x": x, "profit": x.prod(-1), "weights": weights, "room": weights.sum(-1) // 3}


class Setting:
    """A model whose solver runs in so many workers, and what its rounds took."""

    def __init__(self, workers: int) -> None:
        self.box = nestruct.BlackBox(
            pack, (ITEMS,), batched=False, backend="numpy", workers=workers
        )
        torch.manual_seed(0)
        self.model = Packer(self.box)
        self.calls: list[float] = []  # milliseconds per instance
        self.steps: list[float] = []  # seconds
        self.processor: list[float] = []  # of this process, milliseconds per instance

    def round(self, batch: Any, number: int) -> torch.Tensor:
        """Solves all instances, and makes a step on a sixteenth of them: as many calls."""
        count = len(batch["profit"])
        few = nestruct.select_rows(batch, torch.arange(count // 16))
        start, processor = time.perf_counter(), time.process_time()
        answers = self.box.argmax(batch["profit"], **self.model.context(batch))
        middle, processor = time.perf_counter(), time.process_time() - processor
        nestruct.StructureNES().backward(self.model, few, seed=0, step=number)
        self.steps.append(time.perf_counter() - middle)
        self.calls.append(1e3 * (middle - start) / count)
        self.processor.append(1e3 * processor / count)
        return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="0,1,2")
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    settings = {int(workers): Setting(int(workers)) for workers in options.workers.split(",")}
    for number in range(options.repeats + 1):
        batch = draw(options.instances, seed=number)
        order = list(settings.values())
        order = order[number % len(order) :] + order[: number % len(order)]
        answers = [setting.round(batch, number) for setting in order]
        assert all(torch.equal(answer, answers[0]) for answer in answers)
        assert not answers[0].isnan().any()
    for setting in settings.values():  # the first round starts the workers
        del setting.calls[0], setting.steps[0], setting.processor[0]
    found: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "nestruct": nestruct.__version__,
        "ortools": importlib.metadata.version("ortools"),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load, 2),
        "instances": options.instances,
        "repeats": options.repeats,
        "workers": {
            str(workers): {
                "ms_per_instance": summary(setting.calls),
                "seconds_per_step": summary(setting.steps),
                "own_processor_ms_per_instance": summary(setting.processor),
            }
            for workers, setting in settings.items()
        },
    }
    print(f"{found['cores']} cores, load {load:.1f} before; medians (least, most)")
    for workers, row in found["workers"].items():
        each, step = row["ms_per_instance"], row["seconds_per_step"]
        print(
            f"workers={workers}: {each['median']:.2f} ms per instance "
            f"({each['least']:.2f}, {each['most']:.2f}), of which "
            f"{row['own_processor_ms_per_instance']['median']:.2f} ms in this process; "
            f"{step['median']:.3f} s per step of StructureNES"
        )
    if {1, 2} <= set(settings):
        one, two = settings[1], settings[2]
        for name in ("calls", "steps"):
            pairs = zip(getattr(one, name), getattr(two, name), strict=True)
            found[f"{name}_two_against_one"] = ratios = summary([a / b for a, b in pairs])
            print(f"two workers against one, {name}: {ratios['median']:.2f} times as fast")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def summary(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
    }


if __name__ == "__main__":
    main()
