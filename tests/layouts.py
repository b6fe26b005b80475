"""Small real runs on graph layouts, for the tests of reports."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from nestruct.training import Recipe, read_recipe, train

SMALL = (
    *("data.num_nodes=10", "data.num_train=40", "data.num_validation=20", "data.num_test=20"),
    *("model.hidden_size=8", "training.max_steps=4", "training.eval_interval=2"),
    *("training.batch_size=8", "device=cpu"),
)
# The name of a run: what it has of its own.
RUNS = {
    "structure-0": "",
    "structure-1": "seed=1",
    "structure-subset": "model.structure=k-subset",
    "sst": "estimator.name=SST estimator.temperature=0.5",
    "ema": "estimator.name=Reinforce estimator.baseline=ema estimator.num_samples=1",
    "nes": "estimator.name=NES estimator.sigma=0.01 estimator.population_size=4 "
    "estimator.minibatch=per_pair estimator.pair_batch_size=2",
}
PUBLISHED_SIZES = {"num_train = 40": 50000, "num_validation = 20": 10000, "num_test = 20": 10000}


def small_runs(folder: Path, names: Iterable[str] = tuple(RUNS)) -> dict[str, Path]:
    """Trains for four steps on ten nodes; the run folders by name."""
    for name in names:
        overrides = [*SMALL, *RUNS[name].split()]
        recipe = Recipe.from_tables(read_recipe("graph-layout-5", overrides))
        train(recipe, folder / name, progress=False)
    return {name: folder / name for name in names}


def with_published_sizes(runs: Mapping[str, Path], folder: Path) -> Path:
    """A folder with the same run files, as if the runs had had all of the paper's data."""
    for name, run in runs.items():
        config = (run / "config.toml").read_text()
        for line, size in PUBLISHED_SIZES.items():
            assert config.count(f"\n{line}\n") == 1
            config = config.replace(f"\n{line}\n", f"\n{line.split()[0]} = {size}\n")
        (folder / name).mkdir(parents=True)
        (folder / name / "config.toml").write_text(config)
        for file in ("metrics.jsonl", "environment.json", "structures.jsonl"):
            (folder / name / file).write_bytes((run / file).read_bytes())
    return folder
