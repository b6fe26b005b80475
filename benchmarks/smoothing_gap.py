"""The distance between g and k over training: ``benchmarks/smoothing_gap.py --json FILE``.

Trains the paper's unstructured VAE with NES (N = 300) at sigma 0.01, 0.1 and 0.5, and measures the
mean of |g - k| on the first thousand test images, with 1000 perturbations, as it goes. Needs
NESTRUCT_DATA; a GPU, or patience.
"""

import argparse
import json
from pathlib import Path

import torch

import nestruct
from nestruct.data import to_device
from nestruct.training import Recipe, build, read_recipe


def follow(sigma: float, steps: int, points: int, device: str) -> list[dict[str, float]]:
    overrides = [f"estimator.sigma={sigma}", f"device={device}", f"training.max_steps={steps}"]
    recipe = Recipe.from_tables(read_recipe("unstructured-nes", overrides))
    experiment = build(recipe)
    splits = experiment.data.splits()
    test = to_device(splits["test"][:1000], torch.device(recipe.device))
    rows: list[dict[str, float]] = []

    def look(record: dict) -> None:
        if record["split"] == "train":
            found = nestruct.smoothing_gap(experiment.model, test, sigma=sigma, seed=1)
            rows.append({"step": record["step"], "gap": found.gap, "error": found.error})
            print(f"sigma {sigma} step {record['step']}: {found.gap:.3f} +- {found.error:.3f}")

    options = vars(recipe.training) | {"log_interval": max(1, steps // points)}
    nestruct.fit(
        experiment.model,
        experiment.estimator,
        experiment.optimizer,
        splits["train"],
        seed=recipe.seed,
        callbacks=[look],
        progress=False,
        **options,
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=117_000)
    parser.add_argument("--points", type=int, default=30)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    result = {
        str(sigma): follow(sigma, options.steps, options.points, options.device)
        for sigma in (0.01, 0.1, 0.5)
    }
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
