"""Small real runs of every row of Table 2, on a generated treebank, for the tests of reports."""

from collections.abc import Mapping
from pathlib import Path

from nestruct.training import Recipe, read_recipe, train

SMALL = {"word_size": 8, "lstm_size": 12, "mlp_size": 12, "decoder_size": 12}
DATA = {"num_train": 60, "num_dev": 20, "num_target": 40}
# The name of a run: its recipe and what it has of its own.
RUNS = {
    "parser-non-projective": "parser-source model.structure=non-projective "
    "training.max_epochs=none training.max_steps=0",
    "dpp-lr5e-3": "table2-dpp optimizer.lr=5e-3",
    "dpp-lr1e-2": "table2-dpp optimizer.lr=1e-2",
    "nes-lr1e-2": "table2-nes",
    "nes-lr1e-2-s1": "table2-nes seed=1",
    "sparsemap-lr1e-2": "table2-sparsemap",
    "structure-nes-lr1e-2": "table2-structure-nes",
    "dpp+trained": "table2-dpp model.freeze_decoder=false",
}


def small_recipe(name: str, *overrides: str) -> Recipe:
    """A recipe of Table 2 with the generated treebank and a small model."""
    tables = read_recipe(name, ["device=cpu", *overrides])
    given = tables["data"]
    tables["data"] = {"name": "grammar", "train_on": given.get("train_on", "source"), **DATA}
    tables["model"] |= SMALL
    if tables["estimator"]["name"] == "NES":
        tables["estimator"] |= {"population_size": 6}
    return Recipe.from_tables(tables)


def small_runs(folder: Path) -> dict[str, Path]:
    """Trains all phases for an epoch or a few; the run folders by name."""
    parser = small_recipe("parser-source", "training.max_epochs=4", "training.batch_size=4")
    train(parser, folder / "parser", progress=False)
    decoder = small_recipe("decoder-source", "training.max_epochs=1", "training.batch_size=8")
    train(decoder, folder / "decoder", init_from=folder / "parser", progress=False)
    for name, words in RUNS.items():
        recipe, *own = words.split()
        few = ["training.batch_size=10", "training.max_epochs=1", "optimizer.lr=1e-2", *own]
        start = folder / ("parser" if "parser" in name else "decoder")
        train(small_recipe(recipe, *few), folder / name, init_from=start, progress=False)
    return {name: folder / name for name in ("parser", "decoder", *RUNS)}


def as_table_2(runs: Mapping[str, Path], folder: Path, source: str, target: str) -> Path:
    """A folder with the same run files, as if the runs had had two of the paper's treebanks."""
    for name, run in runs.items():
        config = (run / "config.toml").read_text()
        line = 'name = "grammar"\n'
        assert config.count(line) == 1
        data = f'name = "treebanks"\nsource = "{source}"\ntarget = "{target}"\n'
        (folder / name).mkdir(parents=True)
        (folder / name / "config.toml").write_text(config.replace(line, data))
        for file in ("metrics.jsonl", "environment.json", "structures.jsonl", "details.json"):
            (folder / name / file).write_bytes((run / file).read_bytes())
    return folder
