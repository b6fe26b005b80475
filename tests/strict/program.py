"""A user's program, as strict type checkers see it: nothing in it may be unknown to them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import nestruct
import nestruct.plots
from nestruct.data import tokenise
from nestruct.estimators import Estimator
from nestruct.models import ParsedSentence, ParserVAE, mlp

Batch = dict[str, Tensor]


def pack(
    worth: NDArray[np.float64], weights: NDArray[np.float64], room: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A solver: plain numpy, one instance."""
    order = np.argsort(-worth / weights)
    chosen = np.zeros_like(worth)
    chosen[order[np.cumsum(weights[order]) <= room]] = 1
    return chosen


class Packer(nestruct.StructuredModel):
    """A model of one's own around that solver."""

    structure = nestruct.BlackBox(pack, shape=(8,), batched=False, backend="numpy")

    def __init__(self) -> None:
        super().__init__()
        self.worth: nn.Module = mlp(3, 16, 1)

    def encode(self, batch: Batch) -> Tensor:
        """Scores."""
        scores: Tensor = self.worth(batch["x"])
        return scores[..., 0]

    def context(self, batch: Batch) -> Batch:
        """What else the solver sees."""
        return {"weights": batch["weights"], "room": batch["weights"].sum(-1) / 3}

    def decode(self, batch: Batch, z: Tensor) -> Tensor:
        """How good z is."""
        return (z * batch["profit"]).sum(-1)


def train(data: Batch) -> float:
    """Training, evaluation, and what a step reports."""
    model = Packer()
    estimators: list[Estimator] = [
        nestruct.StructureNES(),
        nestruct.NES(sigma=0.1, population_size=8),
        nestruct.IMLE(strength=1.0),
    ]
    adam = torch.optim.Adam(model.parameters(), lr=0.03)
    report: nestruct.StepReport = estimators[0].backward(model, data, seed=0, step=0)
    loss: Tensor = report.loss
    result: nestruct.FitResult = nestruct.fit(model, estimators[0], adam, data, max_steps=2)
    best: dict[str, float] | None = result.best
    z: Tensor = model.infer(data)
    found: dict[str, float] = nestruct.evaluate(model, data)
    return float(loss) + found["loss"] + float(z.sum()) + len(best or {})


class Router(nn.Module):
    """A solver as a layer, in a module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 12)
        grid = nestruct.GridPath(3, 4)
        self.path = nestruct.SolverLayer(grid, gradient=nestruct.IMLE(strength=1.0))

    def forward(self, x: Tensor) -> Tensor:
        """The path's cells."""
        z: Tensor = self.path(self.scores(x).unflatten(-1, (3, 4)))
        return z


def losses(scores: Tensor, z: Tensor) -> Tensor:
    """Losses that compare structures."""
    tree = nestruct.ProjectiveTree()
    fenchel_young: Tensor = nestruct.FenchelYoungLoss(tree)(scores, z)
    spo: Tensor = nestruct.SPOPlusLoss(tree)(scores, scores)
    return fenchel_young + spo


def parse(model: ParserVAE, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Words in, trees out."""
    one: ParsedSentence = model.parse(["The", "dog", "barks"])
    several: list[ParsedSentence] = model.parse([tokenise(text) for text in texts])
    heads, labels = model.parse(model.read_file("a.conllu"))
    picture: nestruct.plots.Picture = nestruct.plots.sentences([one, *several])
    picture.save("a.svg")
    numbers: Tensor = heads + labels
    return [sentence.heads for sentence in several][: len(numbers)]


def load(run: str) -> nn.Module:
    """A trained model."""
    model = nestruct.load(run)
    assert isinstance(model, ParserVAE)
    return model
