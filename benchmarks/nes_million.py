"""Seconds per NES step of 10^5 and 10^6 members of one example each, on a GPU, beside its floor.

    python benchmarks/nes_million.py [--repeats 5] [--json FILE]

The model of `nes_step.py` with 300 hidden units, directions of rank one, Adam, float32 products of
precision "high"; how far they move the gradient is shown too.
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
from nes_step import BATCH, CLASSES, PIXELS, SIGMA, build, rank_one, seconds_of
from torch import nn

import nestruct
from nestruct.training.run.environment import describe_environment

HIDDEN = 300
TARGETS_MS = {100_000: 3.0, 1_000_000: 12.0}
OPTIONS: dict[str, Any] = {"minibatch": "per_pair", "pair_batch_size": 1, "shaping": "clipped"}


def steps(repeats: int) -> list[dict[str, Any]]:
    """Populations whose members see one example each, on a GPU; their floors beside them."""
    rows: list[dict[str, Any]] = []
    for population, target in TARGETS_MS.items():
        step = rank_one(HIDDEN, population, "cuda", **OPTIONS)
        start = time.perf_counter()
        seconds_of(step, 0, "cuda", 5)
        print(f"\n784-300-10-300-784, N = {population:,}, one example each, Adam", flush=True)
        print(f"  first five steps, compiling and capturing: {time.perf_counter() - start:.1f} s")
        calls = 4_000_000 // population
        times = [seconds_of(step, 1000 * r, "cuda", calls) for r in range(1, repeats + 1)]
        limits = floors(population // 2)
        floor, median = sum(limits.values()), statistics.median(times)
        row = {"hidden": HIDDEN, "population": population, "engine": "ours, rank 1, one example"}
        rows.append(row | {"median_s": median, "min_s": min(times), "floors": limits})
        parts = ", ".join(f"{name} {1e3 * value:.2f}" for name, value in limits.items())
        best, speed = 1e3 * min(times), population / median
        print(f"  {1e3 * median:.2f} ms a step [{best:.2f}], {speed:,.0f} members a second")
        print(f"  floor {1e3 * floor:.2f} ms: {parts}; ours takes {median / floor:.2f} times that")
        met = 1e3 * median <= target or (population == 1_000_000 and median <= 2 * floor)
        print(f"  target {target} ms{' or twice the floor' * (population == 1_000_000)}: ", end="")
        print("met" if met else "MISSED", flush=True)
        del step
        torch.cuda.empty_cache()
    print(f"  memory at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    return rows


def floors(pairs: int) -> dict[str, float]:
    """Seconds for the products, and for what must cross the memory, at speeds measured here."""
    hidden, inputs = HIDDEN, PIXELS
    a, w = torch.randn(100_000, hidden, device="cuda"), torch.randn(hidden, inputs, device="cuda")
    rate = 2 * len(a) * hidden * inputs / _time_cuda(lambda: a @ w)
    one, other = torch.empty(2, 1 << 28, device="cuda")
    speed = 2 * one.nbytes / _time_cuda(lambda: other.copy_(one))
    # x . b of every example of the batch, two small layers, the last one, the two large gradients.
    work = pairs * 2 * BATCH * inputs + 2 * pairs * 2 * 2 * hidden * CLASSES
    work += 2 * pairs * 2 * hidden * inputs + pairs * 2 * 2 * hidden * inputs
    # Numbers of a pair: drawn, read for the losses and read for the gradient.
    numbers = 2 * (inputs + hidden) + 2 * (hidden + CLASSES) + 2 * hidden + CLASSES + inputs
    # Two hidden layers of both members: written and read.
    traffic = 4 * pairs * (3 * numbers + 2 * 2 * 2 * hidden)
    return {"products": work / rate, "memory": traffic / speed}


def precision_cosine() -> float:
    found = []
    for precision in ("high", "highest"):
        torch.set_float32_matmul_precision(precision)
        model, x = build(HIDDEN, "cuda")
        estimator = nestruct.NES(
            sigma=SIGMA, population_size=100_000, directions="rank1", graph="off", **OPTIONS
        )
        estimator.backward(model, x, seed=0, step=0)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append(torch.cat([g.flatten() for g in gradients]).double())
    return float(nn.functional.cosine_similarity(found[0], found[1], dim=0))


def _time_cuda(call: Callable[[], Any]) -> float:
    call()
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Time NES steps of a million members.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "torch": torch.__version__}
    facts |= {"gpu": torch.cuda.get_device_name(), "matmul_precision": "high"}
    facts["commit"] = describe_environment(torch.device("cuda"))["commit"] or "unknown"
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    rows, cosine = steps(options.repeats), precision_cosine()
    print(f"\nN = 100,000: cosine of the gradients with 'high' and 'highest' {cosine:.6f}")
    if options.json:
        found = {"environment": facts, "rows": rows, "cosine_high_to_highest": cosine}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
