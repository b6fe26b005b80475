"""Small instances of every registered data set and model: a new one is covered by the defaults.

Where those are too large for a test, a line here has other options.
"""

from typing import Any, NamedTuple

import torch

from nestruct.data.registry import DATASETS
from nestruct.models.registry import MODELS

SMALL_DATA: dict[str, dict[str, Any]] = {
    "grammar": {"num_train": 12, "num_dev": 6, "num_target": 6, "vector_size": 6},
    "graph-layout": {
        "num_nodes": 4,
        "num_times": 5,
        "num_train": 12,
        "num_validation": 6,
        "num_test": 6,
    },
    "shortest-path": {
        "height": 3,
        "width": 3,
        "num_train": 12,
        "num_validation": 6,
        "num_test": 6,
    },
    "terrain": {
        "height": 4,
        "width": 4,
        "num_train": 12,
        "num_validation": 6,
        "num_test": 6,
    },
    "listops": {
        "min_length": 4,
        "max_length": 9,
        "num_train": 12,
        "num_validation": 6,
        "num_test": 6,
    },
    "patterns": {"side": 5, "num_train": 12, "num_validation": 6, "num_test": 6},
}
# Those that are read from files: only where NESTRUCT_DATA has them.
FROM_FILES: dict[str, dict[str, Any]] = {
    "images": {"num_train": 12, "num_validation": 6, "num_test": 6},
    "treebanks": {"source": "gl_treegal", "target": "gl_ctg"},
}
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "categorical": {"hidden_size": 5},
    "listops": {"hidden_size": 6, "num_rounds": 3},
    "parser": {
        "word_size": 4,
        "lstm_size": 6,
        "mlp_size": 5,
        "decoder_size": 7,
        "objective": "vae",
        "freeze_decoder": False,
    },
    "relational": {"hidden_size": 5, "num_rollout_steps": 4, "variance": 0.1},
    "subsets": {"num_subsets": 3, "num_items": 4, "k": 2, "hidden_sizes": (5,)},
    "terrain": {"hidden_size": 5, "loss": "regret"},
}


def data_set(name: str) -> Any:
    return DATASETS[name](**(SMALL_DATA | FROM_FILES).get(name, {}))


def data_for(name: str) -> str:
    """The first data set, of those without files, that has all that a model is given by one."""
    names = [each for each in DATASETS if each not in FROM_FILES]
    return next(n for n in names if all(hasattr(data_set(n), g) for g in MODELS[name].given))


class Built(NamedTuple):
    model: Any
    batch: Any  # 12 examples
    data: Any


def build(name: str, seed: int = 0) -> Built:
    """A model, in double precision, and the training split of data that fit."""
    data, entry = data_set(data_for(name)), MODELS[name]
    given = {each: getattr(data, each) for each in entry.given}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = entry.make(**given, **SMALL_MODELS.get(name, {})).double()
    batch = data.splits()["train"]
    if isinstance(batch, torch.Tensor):
        batch = batch.double()
    elif isinstance(batch, dict):
        batch = {key: value.double() for key, value in batch.items()}
    return Built(model, batch, data)
