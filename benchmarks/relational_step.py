"""Milliseconds of one training step of Table 1's recipes, and the floor of its arithmetic.

    python benchmarks/relational_step.py [--device cuda] [--repeats 20] [--plain] [--json FILE]

A step is what training does: draw, solve, roll out, differentiate (or evaluate the population), and
Adam. Data are random positions: a step costs the same for all. The floor is the multiplications of
the message layers (those of the exact savings: an edge gets an edge's message only), at the rate
that the device reaches in one large product of the same kind, measured in the same run.
``--plain`` times the same without the fused step (float32 products in TF32).
"""

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import nestruct
from nestruct.models import RelationalVAE

NODES, TIMES, HIDDEN, BATCH = 10, 10, 256, 128
PAIRS, ENDS = NODES * (NODES - 1), 2 * (NODES - 1)

# Estimator, steps of a roll-out.
CASES: dict[str, tuple[Any, int]] = {
    "StructureNES, 16 samples": (nestruct.StructureNES(num_samples=16), 9),
    "StructureNES, 16 samples, one step": (nestruct.StructureNES(num_samples=16), 1),
    "StructureNES, 8 samples, one step": (nestruct.StructureNES(num_samples=8), 1),
    "ScoreNES, 4 pairs": (nestruct.ScoreNES(num_pairs=4), 9),
    "REINFORCE, 4 samples": (nestruct.Reinforce(num_samples=4), 9),
    "NVIL": (nestruct.NVIL(), 9),
    "SST": (nestruct.SST(temperature=0.5), 9),
    "NES, N=600": (nestruct.NES(sigma=0.01, population_size=600, mode="vmap", chunk_size=60), 3),
    "NES, N=600, 8 examples per pair": (
        nestruct.NES(
            sigma=0.01,
            population_size=600,
            mode="vmap",
            minibatch="per_pair",
            pair_batch_size=8,
        ),
        3,
    ),
    "NES, N=600, 32 examples per pair, one step": (
        nestruct.NES(
            sigma=0.01,
            population_size=600,
            mode="vmap",
            minibatch="per_pair",
            pair_batch_size=32,
        ),
        1,
    ),
}


def operations(estimator: Any, steps: int) -> float:
    """Multiplications and additions of the pair layers in a step; thrice that with derivatives."""
    encoder = 3 * PAIRS * HIDDEN**2 + 2 * NODES * HIDDEN**2
    samples = getattr(estimator, "num_samples", 1)
    # Of a roll-out's steps, the first shares its messages, two per pair, among all samples.
    soft = 2 * PAIRS if isinstance(estimator, nestruct.SST) else PAIRS
    first = min(soft, 2 * PAIRS / samples)
    messages = (first + (steps - 1) * soft) / steps * HIDDEN**2
    decoder = (TIMES - 1) * (messages + 2 * NODES * HIDDEN**2)
    if isinstance(estimator, nestruct.NES):
        examples = BATCH if estimator.minibatch == "shared" else estimator.pair_batch_size or 1
        return 2.0 * estimator.population_size * examples * (encoder + decoder)
    return 3 * 2.0 * BATCH * (encoder + samples * decoder)


def rate(device: str, dtype: torch.dtype) -> float:
    """Operations per second in a large product."""
    size = 8192 if device == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    spent = timed(lambda step: a @ a, device, 5)
    return 2 * size**3 / min(spent)


def timed(call: Any, device: str, repeats: int, inner: int = 1) -> list[float]:
    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for step in range(3):
        call(step)
    spent = []
    for repeat in range(repeats):
        wait()
        start = time.perf_counter()
        for step in range(inner):
            call(3 + repeat * inner + step)
        wait()
        spent.append((time.perf_counter() - start) / inner)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = options.device
    torch.set_float32_matmul_precision("high")
    kinds = (torch.float32, torch.bfloat16) if device == "cuda" else (torch.float32,)
    rates = {str(dtype): rate(device, dtype) for dtype in kinds}
    print({name: f"{value / 1e12:.0f} TFLOP/s" for name, value in rates.items()})
    fast = max(rates.values())
    rows = []
    for name, (estimator, steps) in CASES.items():
        if options.only not in name:
            continue
        torch.manual_seed(0)
        model = RelationalVAE(
            NODES, TIMES, num_rollout_steps=steps, kl_weight=2.0, fused=not options.plain
        ).to(device)
        batch = {"x": torch.rand(BATCH, NODES, TIMES, 2, device=device) * 2 - 1}
        estimator.prepare(model, batch) if hasattr(estimator, "prepare") else None
        own = [] if isinstance(estimator, nestruct.NES) else list(estimator.parameters())
        adam = torch.optim.Adam([*model.parameters(), *own], lr=1e-5, fused=device == "cuda")

        def step(number: int, estimator=estimator, model=model, batch=batch, adam=adam) -> None:
            estimator.backward(model, batch, seed=0, step=number)
            adam.step()

        begin = time.perf_counter()
        step(0)
        first = time.perf_counter() - begin
        spent = timed(step, device, options.repeats, 5 if device == "cuda" else 1)
        floor = operations(estimator, steps) / fast
        row = {
            "case": name,
            "median_ms": 1e3 * statistics.median(spent),
            "best_ms": 1e3 * min(spent),
            "floor_ms": 1e3 * floor,
            "first_step_s": first,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
        }
        rows.append(row)
        print(
            f"{name:34s} {row['median_ms']:8.2f} ms (best {row['best_ms']:.2f}), "
            f"floor {row['floor_ms']:.2f} ms, first step {first:.1f} s, "
            f"peak {row['peak_gib'] or 0:.1f} GiB",
            flush=True,
        )
        if options.profile:
            with torch.profiler.profile() as profile:
                step(10**6)
                if device == "cuda":
                    torch.cuda.synchronize()
            print(
                profile.key_averages().table(
                    sort_by=f"self_{device}_time_total", row_limit=30, max_name_column_width=200
                )
            )
        if device == "cuda":
            estimator._graphed = None
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    if options.json:
        about = {
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "torch": torch.__version__,
            "fused": not options.plain,
            "rates": rates,
            "rows": rows,
        }
        options.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
