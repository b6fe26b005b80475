"""Milliseconds of one process's share of a step, when so many processes have one: on one device.

    python benchmarks/shares.py [--device cuda] [--processes 1,8,64,1000] [--small] [--json FILE]

No process but this one is started: a share is a step with so much less to do. NES and the parser
share members, StructureNES shares examples. With one process a step is what it always is (fused,
captured in a graph); a share of examples is neither, as in training. What crosses the wire comes
on top: `benchmarks/wire.py` and `benchmarks/projection.py`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from parser_step import random_batch, random_model

import nestruct
from nestruct.models import RelationalVAE

Step = Callable[[int], None]


def relational(estimator: Any, examples: int, steps: int, *, fused: bool, small: bool) -> Any:
    torch.manual_seed(0)
    size = 16 if small else 256
    model = RelationalVAE(10, 10, num_rollout_steps=steps, hidden_size=size, fused=fused)
    return model, {"x": torch.rand(examples, 10, 10, 2) * 2 - 1}, estimator


def nes(processes: int, small: bool) -> Any:
    """Table 1's model as published: N = 600, 128 examples, roll-outs of 3 steps."""
    pairs = max(1, (10 if small else 300) // processes)
    estimator = nestruct.NES(
        sigma=0.01, population_size=2 * pairs, mode="vmap", chunk_size=min(60, 2 * pairs)
    )
    return relational(estimator, 8 if small else 128, 3, fused=True, small=small)


def structure_nes(processes: int, small: bool) -> Any:
    """The headline of Table 1: 16 samples, one step ahead."""
    examples = max(1, (8 if small else 128) // processes)
    alone = processes == 1
    estimator = nestruct.StructureNES(num_samples=16, graph="auto" if alone else "off")
    return relational(estimator, examples, 1, fused=alone, small=small)


def parser(processes: int, small: bool) -> Any:
    """The parser of Table 2: N = 400, 128 sentences of 22 words."""
    pairs = max(1, (4 if small else 200) // processes)
    model = random_model(50 if small else 10_000, "projective", 0)
    batch = random_batch(4 if small else 128, 5 if small else 22, 50 if small else 10_000, 1)
    estimator = nestruct.NES(sigma=0.1, population_size=2 * pairs, mode="vmap")
    return model, batch, estimator


# What is trained, what a step's work is made of, and how many there are of it.
CASES: dict[str, tuple[Any, str, int]] = {
    "NES, Table 1": (nes, "pairs of members", 300),
    "StructureNES, Table 1": (structure_nes, "examples", 128),
    "NES, parser": (parser, "pairs of members", 200),
}


def milliseconds(problem: Any, device: str, repeats: int) -> list[float]:
    model, batch, estimator = problem
    model = model.to(device)
    batch = nestruct.data.to_device(batch, torch.device(device))
    adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-5)

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    spent = []
    for step in range(repeats + 3):
        wait()
        start = time.perf_counter()
        estimator.backward(model, batch, seed=0, step=step)
        adam.step()
        wait()
        spent.append(1e3 * (time.perf_counter() - start))
    return spent[3:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", default="1,2,8,64,1000")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="small models, to try it out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    rows = []
    for name, (make, unit, whole) in CASES.items():
        for processes in map(int, options.processes.split(",")):
            problem = make(processes, options.small)
            spent = milliseconds(problem, options.device, options.repeats)
            row: dict[str, Any] = {"case": name, "processes": processes, "unit": unit}
            row |= {"whole": whole, "ms": round(statistics.median(spent), 3)}
            row["parameters"] = sum(p.numel() for p in problem[0].parameters() if p.requires_grad)
            rows.append(row | {"best_ms": round(min(spent), 3)})
            print(f"{name:24} {processes:5} processes: {row['ms']:9.2f} ms", flush=True)
            if options.json:
                about = {
                    "title": "One process's share of a step, milliseconds",
                    "device": torch.cuda.get_device_name() if options.device != "cpu" else "cpu",
                    "torch": torch.__version__,
                    "made": datetime.now(UTC).isoformat(timespec="seconds"),
                    "small": options.small,
                }
                options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
