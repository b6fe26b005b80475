"""The distance between g and k over training: ``smoothing_gap.py --sigma S --json FILE``.

Trains the paper's unstructured VAE with NES (N = 300) at one sigma, and measures the mean of
|g - k| on the first thousand test images, with 1000 perturbations, as it goes. The paper's figure
has sigma 0.01, 0.1 and 0.5: three of these side by side. Needs NESTRUCT_DATA; a GPU, or patience.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

import nestruct
from nestruct.data import to_device
from nestruct.training import Recipe, build, read_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sigma", type=float, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=117_000, help="117,000 are 300 epochs")
    parser.add_argument("--points", type=int, default=60, help="measurements on the way")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    tables = read_recipe(
        "unstructured-nes",
        [
            f"estimator.sigma={options.sigma}",
            f"device={options.device}",
            f"training.max_steps={options.steps}",
            f"training.log_interval={max(1, options.steps // options.points)}",
        ],
    )
    recipe = Recipe.from_tables(tables)
    experiment = build(recipe)
    splits = experiment.data.splits()
    device = next(experiment.model.parameters()).device
    test = to_device(splits["test"][:1000], device)
    steps_per_epoch = len(splits["train"]) // (recipe.training.batch_size or 1)
    rows: list[dict[str, float]] = []
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    result = {"sigma": options.sigma, "device": name, "recipe": tables, "rows": rows}

    def look(record: dict[str, Any]) -> None:
        if record["split"] != "train":
            return
        found = nestruct.smoothing_gap(experiment.model, test, sigma=options.sigma, seed=1)
        epoch = record["step"] / steps_per_epoch
        rows.append({"epoch": epoch, "gap": found.gap, "error": found.error})
        print(f"sigma {options.sigma} epoch {epoch:.0f}: {found.gap:.3f} +- {found.error:.3f}")
        fresh = options.json.with_suffix(".new")
        fresh.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        os.replace(fresh, options.json)

    nestruct.fit(
        experiment.model,
        experiment.estimator,
        experiment.optimizer,
        splits["train"],
        seed=recipe.seed,
        callbacks=[look],
        progress=False,
        **vars(recipe.training),
    )


if __name__ == "__main__":
    main()
