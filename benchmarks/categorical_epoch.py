"""Seconds per epoch of the categorical VAE's recipes, each alone: ``categorical_epoch.py``.

    python benchmarks/categorical_epoch.py [--device D] [--threads 2] [--loop] [--json FILE]

Trains a recipe with `nestruct.fit` for an epoch of FashionMNIST (390 steps of 128 images) after a
few steps to warm up. Everything counts, from drawing a minibatch to the optimizer's step.
With ``--loop``, beside it the same epoch with a plain loop over members, timed for a few steps and
scaled up. Needs NESTRUCT_DATA.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

import nestruct
from nestruct.training import Recipe, build, read_recipe

EPOCH = 390
WARM_UP, LOOP_STEPS = 5, 5
SIZES = {16: 60, 32: 60, 64: 90, 128: 100, 256: 100, 512: 100}
CASES = {
    **{
        f"Table 3, NES, hidden {h}, N = {n}": (
            "table3-nes",
            f"model.hidden_size={h}",
            f"estimator.population_size={n}",
        )
        for h, n in SIZES.items()
    },
    "Table 3, SST, hidden 512": ("table3-sst", "model.hidden_size=512"),
    "NES, hidden 300, N = 300": ("unstructured-nes",),
    "UNBIASED, hidden 300": ("unstructured-unbiased",),
    "Gumbel-softmax, hidden 300": ("unstructured-gsm",),
}


def seconds_per_step(case: tuple[str, ...], device: str, steps: int, *changes: str) -> float:
    """After a few steps to warm up."""
    recipe = Recipe.from_tables(read_recipe(case[0], [f"device={device}", *case[1:], *changes]))
    experiment = build(recipe)
    times: dict[int, float] = {}

    def look(record: dict[str, Any]) -> None:
        times[record["step"]] = time.perf_counter()  # a record is made after waiting for the device

    nestruct.fit(
        experiment.model,
        experiment.estimator,
        experiment.optimizer,
        experiment.data.splits()["train"],
        max_steps=WARM_UP + steps,
        log_interval=WARM_UP,
        batch_size=recipe.training.batch_size,
        callbacks=[look],
        progress=False,
    )
    return (times[WARM_UP + steps] - times[WARM_UP]) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loop", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    on_gpu = options.device != "cpu" and torch.cuda.is_available()
    name = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU"
    result: dict[str, Any] = {
        "device": name,
        "threads": options.threads,
        "torch": torch.__version__,
    }
    rows = result["rows"] = []
    for title, case in CASES.items():
        row = {"case": title, "epoch": EPOCH * seconds_per_step(case, options.device, EPOCH)}
        if options.loop and "NES" in title:
            each = seconds_per_step(case, options.device, LOOP_STEPS, "estimator.mode=loop")
            row["loop"] = EPOCH * each
        rows.append(row)
        beside = f", plain loop {row['loop']:.0f} s" if "loop" in row else ""
        print(f"{title}: {row['epoch']:.2f} s an epoch{beside}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
