"""Short trainings of recipes, for one process or, under torchrun, for several: `python
train_on_ranks.py FOLDER NAME...` leaves a run of each in FOLDER."""

import sys
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist

from nestruct.training import Recipe, read_recipe, train

TINY = (
    "training.max_steps=4",
    "training.eval_interval=2",
    "training.log_interval=2",
    "training.eval_batch_size=7",  # several slices, which ranks share
    # Adam would make a full step of the rounding in a gradient that should be zero.
    *("optimizer.name=SGD", "optimizer.lr=1e-2"),
)
LAYOUT = (
    *("data.num_train=40", "data.num_validation=20", "data.num_test=20", "data.num_nodes=5"),
    *("training.batch_size=11", "model.hidden_size=8", "training.num_starts=2"),
    *("training.start_steps=2", "optimizer.lr=1e-8"),  # losses are large
)
WORDS = ("data.num_train=40", "data.num_dev=12", "data.num_target=12", "training.max_epochs=none")
NEIGHBOURS: tuple[str, ...] = (
    "aimle",
    "blackbox",
    "exact-marginals",
    "identity",
    "imle",
    "perturbed-optimizer",
)
NEIGHBOURS += ("straight-through",)
PATH_METHODS: tuple[str, ...] = (
    "fenchel-young",
    "identity",
    "imle",
    "likelihood",
    "reinforce",
    "score-nes",
)
PATH_METHODS += ("soft-spo-plus", "spo-plus", "structure-nes", "two-stage")
TERRAIN_METHODS: tuple[str, ...] = (
    *("aimle", "blackbox", "fenchel-young", "identity", "imle", "perturbed-optimizer", "reinforce"),
    *("score-nes", "spo-plus", "structure-nes", "two-stage"),
)
LIST_METHODS = ("no-tree", "sst", "structure-nes", "tiny", "true-tree")
PATHS = ("data.num_train=40", "data.num_validation=20", "data.num_test=20")
TERRAIN = (*PATHS, "data.height=4", "data.width=4", "model.hidden_size=4")
LISTS = (*PATHS, "data.max_length=14", "model.hidden_size=8", "training.batch_size=11")
RECIPES: dict[str, tuple[str, ...]] = {
    "graph-layout-tiny": (*LAYOUT, "training.num_starts=1"),
    "graph-layout-5": (*LAYOUT, "training.batch_size=2"),
    "table1-structure-nes": LAYOUT,
    "table1-sst": LAYOUT,
    "table1-reinforce": LAYOUT,
    "table1-nvil": LAYOUT,
    "table1-score-nes": (*LAYOUT, "estimator.num_pairs=2"),
    "table1-nes": (*LAYOUT, "estimator.population_size=6"),
    "categorical-tiny": ("data.num_train=40", "model.revival=2", "training.patience=1"),
    "parser-tiny": WORDS,
    "parser-tiny-decoder": WORDS,
    "parser-tiny-nes": (*WORDS, "estimator.population_size=6"),
    "table2-dpp": ("data.name=grammar", *WORDS),
    "table2-sparsemap": ("data.name=grammar", *WORDS),
    **dict.fromkeys((f"table1-{method}" for method in NEIGHBOURS), LAYOUT),
    **dict.fromkeys((f"grid-path-{method}" for method in PATH_METHODS), PATHS),
    "grid-path-nes": (*PATHS, "estimator.population_size=6"),
    **dict.fromkeys((f"terrain-{method}" for method in TERRAIN_METHODS), TERRAIN),
    "terrain-nes": (*TERRAIN, "estimator.population_size=6"),
    **dict.fromkeys((f"listops-{method}" for method in LIST_METHODS), LISTS),
    "listops-nes": (*LISTS, "estimator.population_size=6", "estimator.chunk_size=6"),
}


IMAGES = ("data.num_train=40", "data.num_validation=20", "data.num_test=20")
PARSERS = ("data.source=gl_treegal", "data.target=gl_treegal", "training.max_epochs=none")
REVIVAL = ("model.revival=2", "model.revival_until=4", "scheduler.start=2")
SUBSET_METHODS = (
    *NEIGHBOURS,
    "exact-marginals-simple",
    "reinforce",
    "score-nes",
    "sst",
    "structure-nes",
)
FROM_FILES: dict[str, tuple[str, ...]] = {
    "table3-nes": (*IMAGES, "estimator.population_size=6"),
    "table3-nes-revival": (*IMAGES, *REVIVAL, "estimator.population_size=6"),
    "table3-sst": IMAGES,
    "table3-reinforce": IMAGES,
    "table3-exact": IMAGES,
    "unstructured-gsm": IMAGES,
    "unstructured-nes": (*IMAGES, "estimator.population_size=6"),
    "unstructured-unbiased": IMAGES,
    "parser-source": PARSERS,
    "decoder-source": PARSERS,
    "table2-score-nes": PARSERS,
    "table2-structure-nes": PARSERS,
    "table2-nes": (*PARSERS, "estimator.population_size=6"),
    "table2-nes-non-projective": (*PARSERS, "estimator.population_size=6"),
    **dict.fromkeys((f"subset-{method}" for method in SUBSET_METHODS), IMAGES),
    "subset-nes": (*IMAGES, "estimator.population_size=6"),
    # Losses of 500 nats, whose differences are rounded; estimators/test_processes.py has float64.
    "subset-score-nes": (*IMAGES, "optimizer.lr=1e-3"),
}
EVERY = RECIPES | FROM_FILES
QUICK = ("graph-layout-5", "categorical-tiny", "parser-tiny")


def main(folder: Path, names: Iterable[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        samples = "num_samples" in Recipe.from_tables(read_recipe(name)).estimator.options
        options = [*TINY, *EVERY[name], *["estimator.num_samples=2"] * samples]
        recipe = Recipe.from_tables(read_recipe(name, options))
        train(recipe, folder / name, progress=False)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(Path(sys.argv[1]), sys.argv[2:])
    dist.destroy_process_group()
