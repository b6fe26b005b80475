"""Grid shortest paths: our methods and PyEPO's on the same data, side by side.

    python benchmarks/grid_path_peers.py FILE.jsonl [--seeds 10] [--skip METHOD...]

PyEPO must be importable (`pip install pyepo`; tried with 2.2.7). Everything is on one thread, and
each line of FILE is one method on one setting of the data: the same command continues.
`grid_path.py` makes the published JSON and tables of such a file.

Protocol. The data are PyEPO's (`nestruct.data.ShortestPaths` has its bits): 5 x 5 grids, 5
features, degrees 1, 2, 4, 6, noise 0 and 0.5, 100 and 1,000 training examples. Every method trains
the same linear model from the same first parameters on the same batches: 300 steps of 32 examples,
Adam, a learning rate that falls to zero along a cosine. Every method has six settings: three
learning rates for two sizes of its own scale, or six learning rates where it has none. The setting
with the lowest mean regret on 1,000 validation examples is reported on 1,000 test examples, after
the last step. Least squares in closed form, scikit-learn's, has no settings; it is PyEPO's
two-stage method, and anyone's.

The models of all seeds and learning rates are trained at once, as rows of one batch: the losses of
both libraries are sums over rows, and Adam's steps are those of each entry. Losses have the scale
of a batch of 32, which the strength of the black box method is beside. So that PyEPO can do the
same, its function that solves a batch in a loop is replaced by our batched solver: the same optima.
Its methods with a pool of solutions have all 70 paths in it, which no refreshing of a pool beats.

Left out: AIMLE on both sides, as its step depends on the norm of the whole batch; PyEPO's
multiplicative noise, which needs costs that are positive whatever the model; its cone-aligned
method, which needs a solver with constraints; its Frank-Wolfe methods, whose thousand solver calls
a step would take a day.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyepo.data.dataset
import pyepo.func
import pyepo.func.utils
import torch
from pyepo.model.ort import shortestPathModel
from sklearn.linear_model import LinearRegression
from torch import Tensor, nn

import nestruct
from nestruct.data import ShortestPaths

SETTINGS = list(itertools.product((100, 1000), (0.0, 0.5), (1, 2, 4, 6)))
STEPS, BATCH = 300, 32
FEW, MANY = (0.01, 0.03, 0.1), (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # learning rates
GRID = ShortestPaths().structure
PARTS = GRID.grid.num_edges


@dataclass(frozen=True)
class Task:
    """The data of one setting: each split's tensors have the seeds first."""

    num_train: int
    noise: float
    degree: int
    seeds: int

    def splits(self) -> dict[str, dict[str, Tensor]]:
        every = [
            ShortestPaths(
                degree=self.degree, noise_width=self.noise, num_train=self.num_train, seed=seed
            ).splits()
            for seed in range(self.seeds)
        ]
        return {
            split: {key: torch.stack([each[split][key] for each in every]) for key in parts}
            for split, parts in every[0].items()
        }

    def order(self) -> Tensor:
        """``[steps, seeds, batch]``: which examples a step sees, each once in an epoch."""
        epochs = -(-STEPS // (self.num_train // BATCH))
        rows = []
        for seed in range(self.seeds):
            draws = torch.Generator().manual_seed(seed)
            each = [torch.randperm(self.num_train, generator=draws) for _ in range(epochs)]
            used = torch.stack(each)[:, : self.num_train // BATCH * BATCH]
            rows.append(used.reshape(-1, BATCH)[:STEPS])
        return torch.stack(rows, 1)


class Models(nestruct.StructuredModel):
    """Linear models of costs, one for each learning rate and seed, whose rows are one batch."""

    def __init__(self, rates: int, seeds: int, score_scale: float = 1.0) -> None:
        super().__init__()
        self.structure, self.score_scale = GRID, score_scale
        first = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            first.append(nn.Linear(5, PARTS))
        weight = torch.stack([one.weight.detach() for one in first])
        bias = torch.stack([one.bias.detach() for one in first])
        self.weights = nn.ParameterList([nn.Parameter(weight.clone()) for _ in range(rates)])
        self.biases = nn.ParameterList([nn.Parameter(bias.clone()) for _ in range(rates)])

    def costs(self, x: Tensor) -> Tensor:
        """``[rates, seeds, examples, edges]`` of ``x [seeds, examples, features]``."""
        weight, bias = torch.stack(list(self.weights)), torch.stack(list(self.biases))
        return torch.einsum("sbf,rsef->rsbe", x, weight) + bias[:, :, None]

    def encode(self, batch: Any) -> Tensor:
        return -self.score_scale * self.costs(batch["features"][0]).flatten(0, 2)

    def decode(self, batch: Any, z: Tensor) -> Tensor:
        return ((batch["z"] - z) * batch["costs"]).sum(-1)

    def true_scores(self, batch: Any) -> Tensor:
        return -self.score_scale * batch["costs"]

    def adam(self, rates: Sequence[float]) -> Any:
        groups = [
            {"params": [weight, bias], "lr": rate}
            for weight, bias, rate in zip(self.weights, self.biases, rates, strict=True)
        ]
        adam = torch.optim.Adam(groups)
        return adam, torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)

    @torch.no_grad()
    def regret(self, batch: dict[str, Tensor]) -> Tensor:
        """Normalised, ``[rates, seeds]``."""
        z, costs = GRID.argmax(-self.costs(batch["x"])), batch["costs"]
        best = (batch["z"] * costs).sum((-1, -2), dtype=torch.float64)
        return ((z - batch["z"]) * costs).sum((-1, -2), dtype=torch.float64) / best


class Batches:
    """Folds the rows of a step for our estimators: ``batch`` has as many rows as scores."""

    def __init__(self, train: dict[str, Tensor], order: Tensor, rates: int) -> None:
        self.train, self.order, self.rates = train, order, rates

    def __call__(self, step: int) -> dict[str, Tensor]:
        index = self.order[step]
        seeds = torch.arange(len(index))[:, None]
        found = {name: values[seeds, index] for name, values in self.train.items()}
        many = {
            name: found[name].expand(self.rates, *found[name].shape).flatten(0, 2)
            for name in ("costs", "z")
        }
        rows = len(many["costs"])
        return many | {"features": found["x"].expand(rows, *found["x"].shape)}


def ours(model: Models, estimator: Any, batches: Batches, rates: Sequence[float]) -> None:
    adam, schedule = model.adam(rates)
    for step in range(STEPS):
        estimator.backward(model, batches(step), seed=0, step=step)
        adam.step()
        schedule.step()


def theirs(model: Models, loss: Callable, batches: Batches, rates: Sequence[float]) -> None:
    adam, schedule = model.adam(rates)
    for step in range(STEPS):
        batch = batches(step)
        value = loss(-model.encode(batch), batch["costs"], batch["z"])
        value = value * (len(batch["z"]) / BATCH)  # a mean over the rows of one model
        adam.zero_grad()
        value.backward()
        adam.step()
        schedule.step()


# By method: what it is made of for each size of its own scale, and its learning rates. Ours: an
# estimator, and what scores are multiplied by.
Made = Callable[[float], Any]


def estimator(name: str, scale: str, **more: Any) -> Made:
    return lambda size: (getattr(nestruct, name)(**more, **{scale: size}), 1.0)


def supervised(loss: str, **more: Any) -> Made:
    return estimator("Supervised", "sigma", loss=loss, **more)


OURS: dict[str, tuple[Made, Sequence[float], Sequence[float]]] = {
    "SPO+": (supervised("spo_plus"), (1.0,), MANY),
    "soft SPO+": (supervised("soft_spo_plus"), (0.3, 1.0), FEW),
    "Fenchel-Young": (supervised("fenchel_young", num_draws=10), (0.3, 1.0), FEW),
    "likelihood": (supervised("likelihood"), (0.3, 1.0), FEW),
    "squared error": (supervised("squared_error"), (1.0,), MANY),
    "StructureNES": (
        lambda s: (nestruct.StructureNES(num_samples=10, num_covariance=10), s),
        (1.0, 3.0),
        FEW,
    ),
    "ScoreNES": (estimator("ScoreNES", "sigma", num_pairs=5, gumbel="none"), (0.3, 1.0), FEW),
    "REINFORCE": (
        lambda s: (nestruct.Reinforce(num_samples=10, law="gibbs"), s),
        (1.0, 3.0),
        FEW,
    ),
    "IMLE": (lambda s: (nestruct.IMLE(num_samples=10), s), (1.0, 3.0), FEW),
    "PerturbedOptimizer": (
        estimator("PerturbedOptimizer", "sigma", num_samples=10),
        (0.3, 1.0),
        FEW,
    ),
    "BlackboxDifferentiation": (estimator("BlackboxDifferentiation", "strength"), (0.5, 2.0), FEW),
    "ExactMarginals": (lambda s: (nestruct.ExactMarginals(), s), (1.0, 3.0), FEW),
    "Identity": (
        lambda s: (nestruct.Identity(noise="none", projection="none" if s else "auto"), 1.0),
        (0.0, 1.0),
        FEW,
    ),
}


def solving(layer: Any, criterion: str) -> Callable:
    """A loss of a solution: the regret, or a distance to the best solution."""

    def loss(predicted: Tensor, costs: Tensor, truth: Tensor) -> Tensor:
        z = layer(predicted)
        if criterion == "regret":
            return ((z - truth) * costs).sum(-1).mean()
        if criterion == "L1":
            return (z - truth).abs().mean()
        return (z - truth).square().mean()

    return loss


def spo_plus(optmodel: Any) -> Callable:
    loss = pyepo.func.SPOPlus(optmodel)
    return lambda predicted, costs, truth: loss(
        predicted, costs, truth, (costs * truth).sum(-1, keepdim=True)
    )


def fenchel_young(optmodel: Any, sigma: float) -> Callable:
    loss = pyepo.func.perturbedFenchelYoung(optmodel, n_samples=10, sigma=sigma)
    return lambda predicted, costs, truth: loss(predicted, truth)


def perturbed(optmodel: Any, sigma: float, criterion: str) -> Callable:
    return solving(pyepo.func.perturbedOpt(optmodel, n_samples=10, sigma=sigma), criterion)


def blackbox(optmodel: Any, strength: float) -> Callable:
    return solving(pyepo.func.blackboxOpt(optmodel, lambd=strength), "regret")


def identity(optmodel: Any) -> Callable:
    return solving(pyepo.func.negativeIdentity(optmodel), "regret")


def finite_difference(optmodel: Any, sigma: float) -> Callable:
    loss = pyepo.func.perturbationGradient(optmodel, sigma=sigma, two_sides=True)
    return lambda predicted, costs, truth: loss(predicted, costs)


MODEL = shortestPathModel((5, 5))


def pooled(name: str) -> Callable:
    """One of PyEPO's losses over a pool of solutions: all paths there are."""
    few = np.random.RandomState(0).rand(2, PARTS)
    dataset = pyepo.data.dataset.optDataset(MODEL, few, few)
    loss = getattr(pyepo.func, name)(MODEL, solve_ratio=0.0, dataset=dataset)
    loss.solpool = GRID.enumerate().float()
    labelled = name in ("noiseContrastiveEstimation", "contrastiveMAP")
    return lambda predicted, costs, truth: loss(predicted, truth if labelled else costs)


PYEPO: dict[str, tuple[Made, Sequence[float], Sequence[float]]] = {
    "SPO+": (lambda s: spo_plus(MODEL), (1.0,), MANY),
    "Fenchel-Young": (lambda s: fenchel_young(MODEL, s), (0.3, 1.0), FEW),
    "perturbed optimizer, squared error": (lambda s: perturbed(MODEL, s, "MSE"), (0.3, 1.0), FEW),
    "perturbed optimizer, regret": (lambda s: perturbed(MODEL, s, "regret"), (0.3, 1.0), FEW),
    "black box": (lambda s: blackbox(MODEL, s), (10.0, 20.0), FEW),
    "negative identity": (lambda s: identity(MODEL), (1.0,), MANY),
    "perturbation gradient": (lambda s: finite_difference(MODEL, s), (0.1, 1.0), FEW),
    "contrastive MAP": (lambda s: pooled("contrastiveMAP"), (1.0,), MANY),
    "noise contrastive": (lambda s: pooled("noiseContrastiveEstimation"), (1.0,), MANY),
    "ranking by pairs": (lambda s: pooled("pairwiseLearningToRank"), (1.0,), MANY),
    "ranking by lists": (lambda s: pooled("listwiseLearningToRank"), (1.0,), MANY),
    "ranking by points": (lambda s: pooled("pointwiseLearningToRank"), (1.0,), MANY),
    "I-MLE": (
        lambda s: solving(pyepo.func.implicitMLE(MODEL, n_samples=10, lambd=s), "L1"),
        (1.0, 10.0),
        FEW,
    ),
}


def least_squares(splits: dict[str, dict[str, Tensor]]) -> list[dict[str, Any]]:
    """In closed form; PyEPO's two-stage method, and anyone's."""
    train, seeds = splits["train"], len(splits["train"]["x"])
    model = Models(1, seeds)
    for seed in range(seeds):
        found = LinearRegression().fit(train["x"][seed].double(), train["costs"][seed].double())
        with torch.no_grad():
            model.weights[0][seed] = torch.from_numpy(found.coef_)
            model.biases[0][seed] = torch.from_numpy(found.intercept_)
    return [results(model, splits, 0, scale=None, lr=None)]


def results(model: Models, splits: Any, place: int, **setting: Any) -> dict[str, Any]:
    return setting | {
        split: [round(each, 8) for each in model.regret(splits[split])[place].tolist()]
        for split in ("validation", "test")
    }


def solve_at_once(cp: Any, optmodel: Any, processes: int, pool: Any) -> tuple[Tensor, Tensor]:
    """In the place of PyEPO's loop over the instances of a batch."""
    costs = torch.as_tensor(cp)
    z = GRID.argmax(-costs)
    return z, (z * costs).sum(-1)


def study(args: argparse.Namespace) -> None:
    pyepo.func.utils._solve_batch = solve_at_once
    done = set()
    if args.file.exists():
        done = {key_of(json.loads(line)) for line in args.file.read_text().splitlines()}
    rows = [("nestruct", method) for method in OURS] + [("PyEPO", method) for method in PYEPO]
    for num_train, noise, degree in SETTINGS:
        task = Task(num_train, noise, degree, args.seeds)
        splits = None
        for library, method in [("both", "least squares"), *rows]:
            told = {"num_train": num_train, "noise": noise, "degree": degree, "seeds": args.seeds}
            line = told | {"library": library, "method": method}
            if key_of(line) in done or method in args.skip:
                continue
            splits = splits or task.splits()
            start = time.process_time()
            if library == "both":
                found = least_squares(splits)
            else:
                found = search(library, method, task, splits)
            line |= versions() | {
                "settings": found,
                "cpu_seconds": round(time.process_time() - start, 2),
            }
            with args.file.open("a") as file:
                file.write(json.dumps(line) + "\n")
            best = min(statistics.mean(setting["validation"]) for setting in found)
            print(library, method, told, f"validation {100 * best:.3f}%", flush=True)


def search(library: str, method: str, task: Task, splits: Any) -> list[dict[str, Any]]:
    make, scales, rates = (OURS if library == "nestruct" else PYEPO)[method]
    found = []
    for scale in scales:
        made = make(scale)
        if library == "nestruct":
            estimator, score_scale = made
            model = Models(len(rates), task.seeds, score_scale)
            batches = Batches(splits["train"], task.order(), len(rates))
            ours(model, estimator, batches, rates)
        else:
            torch.manual_seed(0)
            model = Models(len(rates), task.seeds)
            batches = Batches(splits["train"], task.order(), len(rates))
            theirs(model, made, batches, rates)
        own = scale if len(scales) > 1 else None
        found += [results(model, splits, k, scale=own, lr=lr) for k, lr in enumerate(rates)]
    return found


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    names = ("library", "method", "num_train", "noise", "degree", "seeds")
    return tuple(line[name] for name in names)


def versions() -> dict[str, str]:
    """Of our code, and of the libraries."""
    commit = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(commit, capture_output=True, text=True, cwd=Path(__file__).parent)
    names = ("pyepo", "torch", "scikit-learn")
    return {"commit": found.stdout.strip()} | {name: version(name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--skip", nargs="*", default=[], help="methods")
    args = parser.parse_args()
    torch.set_num_threads(1)
    study(args)


if __name__ == "__main__":
    main()
