"""How much of the demo's answer lies in its start: ``benchmarks/demo_start.py [--json FILE]``.

The demo's decoder starts from "an edge pulls its two nodes together". This takes that untrained
decoder, tries all 125 trees for every held-out example, and counts the edges of the best one.
"""

import argparse
import json
from pathlib import Path

import torch

from nestruct import Enumerable
from nestruct.models import RelationalVAE
from nestruct.models.structured import f1
from nestruct.training import Recipe, build, read_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    experiment = build(Recipe.from_tables(read_recipe("graph-layout-5-nes", ["device=cpu"])))
    batch, model = experiment.data.splits()["test"], experiment.model
    assert isinstance(model, RelationalVAE)
    assert isinstance(model.structure, Enumerable)
    trees = model.structure.enumerate()
    with torch.no_grad():
        every = trees[:, None].expand(-1, len(batch["z"]), -1)
        best = trees[model.decode(batch, every).argmax(0)]
    result = {
        "examples": len(batch["z"]),
        "best tree under the untrained decoder": float(f1(best, batch["z"]).mean()),
        **{
            name: float(f1(z, batch["z"]).mean())
            for name, z in experiment.data.baselines(batch).items()
        },
    }
    for name, value in result.items():
        print(f"{name}: {value:.3f}")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
