"""How many of its categories a trained categorical VAE uses: ``categories_used.py RUN...``.

For each run folder that still has its checkpoint, one line of JSON: the categories that are the
most likely one for at least one in a thousand test images, and exp(entropy) of how the images are
shared among them. Needs NESTRUCT_DATA.
"""

import json
import sys
from pathlib import Path

import torch

import nestruct
from nestruct.training import Recipe, build, read_recipe

_COUNTS = 0.001  # of the images: less is noise


def main() -> None:
    images = {}
    for folder in map(Path, sys.argv[1:]):
        if not (folder / "config.toml").is_file():
            continue
        recipe = Recipe.from_tables(read_recipe(str(folder / "config.toml"), ["device=cpu"]))
        dataset = recipe.data.options["dataset"]
        if dataset not in images:
            images[dataset] = build(recipe).data.splits()["test"]
        model = nestruct.load(folder).cpu()
        assert isinstance(model, nestruct.StructuredModel)
        z = model.infer(images[dataset])
        share = z.double().mean(0)
        used = int((share >= _COUNTS).sum())
        perplexity = float(torch.special.entr(share).sum().exp())
        print(
            json.dumps({"run": folder.as_posix(), "used": used, "perplexity": round(perplexity, 3)})
        )


if __name__ == "__main__":
    main()
