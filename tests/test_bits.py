"""Five steps of each of eight trainings give the losses that they always gave.

`golden/bits.json` was written by the code of commit 0ebffb4, before estimators had a base. A change
that alters numbers on purpose writes it anew, and says so: ``python tests/test_bits.py``.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import nestruct
from nestruct.data import Grammar, GraphLayout
from nestruct.models import ParserVAE, RelationalVAE

GOLDEN = Path(__file__).parent / "golden" / "bits.json"
POPULATION = {"sigma": 0.05, "population_size": 8, "mode": "vmap"}
# name: model, options of the estimator
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "NES": ("relational", POPULATION),
    "SNES": ("relational", POPULATION),
    "StructureNES": ("relational", {"num_samples": 4, "num_covariance": 6}),
    "ScoreNES": ("relational", {"num_pairs": 2}),
    "NVIL": ("relational", {"hidden_size": 8}),
    "SST": ("relational", {"num_samples": 2}),
    "DPP": ("parser", {}),
    "SparseMAP": ("parser", {}),
}


def relational() -> tuple[nestruct.StructuredModel, Any]:
    data = GraphLayout(num_nodes=5, num_train=12, num_validation=1, num_test=1)
    return RelationalVAE(5, 10, hidden_size=8, pull=0.1), data.splits()["train"]


def parser() -> tuple[nestruct.StructuredModel, Any]:
    data = Grammar(num_train=12, num_dev=1, num_target=1, vector_size=6)
    sizes: dict[str, Any] = {"word_size": 4, "lstm_size": 6, "mlp_size": 5, "decoder_size": 7}
    model = ParserVAE(data.vocabulary, data.vectors, objective="vae", freeze_decoder=False, **sizes)
    return model, data.splits()["train"]


def trained(model: nestruct.StructuredModel, estimator: Any, data: Any) -> list[torch.nn.Parameter]:
    estimator.prepare(model, data, seed=3)
    return [*(p for p in model.parameters() if p.requires_grad), *estimator.parameters()]


def losses(name: str) -> list[float]:
    """The losses of five steps with minibatches of four examples, in double precision."""
    kind, options = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, data = {"relational": relational, "parser": parser}[kind]()
    model.double()
    if kind == "relational":
        data = {key: value.double() for key, value in data.items()}
    estimator = getattr(nestruct, name)(**options)
    adam = torch.optim.Adam(trained(model, estimator, data), lr=0.01)
    found = []
    for step in range(5):
        batch = nestruct.select_rows(data, torch.arange(4) + step)
        found.append(float(estimator.backward(model, batch, seed=3, step=step).loss))
        adam.step()
    return found


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_before(name):
    assert losses(name) == pytest.approx(json.loads(GOLDEN.read_text())[name], rel=1e-5)


def write() -> None:
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps({name: losses(name) for name in CASES}, indent=1) + "\n")


if __name__ == "__main__":
    write()
