"""Grid shortest paths: our methods and PyEPO's on the same data, side by side.

    python benchmarks/grid_path_peers.py study FILE.jsonl [--seeds 10] [--skip METHOD]
    python benchmarks/grid_path_peers.py table FILE.jsonl
    python benchmarks/grid_path_peers.py time [--json FILE] [--repeats 5]

PyEPO must be importable (`pip install pyepo`; tried with 2.2.7). Everything is on one thread.

Protocol of the study. The data are PyEPO's (`nestruct.data.ShortestPaths` has its bits): 5 x 5
grids, 5 features, degrees 1, 2, 4, 6, noise 0 and 0.5, 100 and 1,000 training examples. Every
method trains the same linear model from the same first parameters on the same batches: 300 steps of
32 examples, Adam, a learning rate that falls to zero along a cosine. Every method has six settings:
three learning rates for two sizes of its own scale, or six learning rates where it has none. The
setting with the lowest mean regret on 1,000 validation examples is reported on 1,000 test examples,
after the last step. PyEPO's two-stage row is scikit-learn's linear regression, which has none.

The models of all seeds and learning rates are trained at once, as rows of one batch: the losses of
both libraries are sums over rows, and Adam's steps are those of each entry. Losses have the scale
of a batch of 32, which the strength of the black box method is beside. So that PyEPO can do the
same, its function that solves a batch in a loop is replaced by our batched solver: the same optima.
AIMLE is left out on both sides, as its step depends on the norm of the whole batch.

`time` does none of that: one model, batches of 32; ours as an estimator and as a loss in a loop of
one's own, PyEPO in such a loop, with OR-Tools (GLOP), with a dynamic programme for one instance (a
subclass of its optModel, compiled by numba), and with our batched solver in the place of its loop.
Milliseconds are those of the processor.
"""

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyepo.func
import pyepo.func.utils
import torch
from pyepo.model.bases import shortestPathBase
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
OURS: dict[str, tuple[Made, Sequence[float], Sequence[float]]] = {
    "SPO+": (lambda s: (nestruct.Supervised(loss="spo_plus"), 1.0), (1.0,), MANY),
    "Fenchel-Young": (
        lambda s: (nestruct.Supervised(loss="fenchel_young", sigma=s, num_draws=10), 1.0),
        (0.3, 1.0),
        FEW,
    ),
    "likelihood": (
        lambda s: (nestruct.Supervised(loss="likelihood", sigma=s), 1.0),
        (0.3, 1.0),
        FEW,
    ),
    "two-stage": (lambda s: (nestruct.Supervised(loss="squared_error"), 1.0), (1.0,), MANY),
    "StructureNES": (
        lambda s: (nestruct.StructureNES(num_samples=10, num_covariance=10), s),
        (1.0, 3.0),
        FEW,
    ),
    "ScoreNES": (
        lambda s: (nestruct.ScoreNES(num_pairs=5, sigma=s, gumbel="none"), 1.0),
        (0.3, 1.0),
        FEW,
    ),
    "REINFORCE": (
        lambda s: (nestruct.Reinforce(num_samples=10, law="gibbs"), s),
        (1.0, 3.0),
        FEW,
    ),
    "IMLE": (lambda s: (nestruct.IMLE(num_samples=10), s), (1.0, 3.0), FEW),
    "PerturbedOptimizer": (
        lambda s: (nestruct.PerturbedOptimizer(num_samples=10, sigma=s), 1.0),
        (0.3, 1.0),
        FEW,
    ),
    "BlackboxDifferentiation": (
        lambda s: (nestruct.BlackboxDifferentiation(strength=s), 1.0),
        (0.5, 2.0),
        FEW,
    ),
    "ExactMarginals": (lambda s: (nestruct.ExactMarginals(), s), (1.0, 3.0), FEW),
    "Identity": (
        lambda s: (nestruct.Identity(noise="none", projection="none" if s else "auto"), 1.0),
        (0.0, 1.0),
        FEW,
    ),
}


def regret_of(costs: Tensor, truth: Tensor, z: Tensor) -> Tensor:
    return ((z - truth) * costs).sum(-1).mean()


def solving(layer: Any, criterion: str) -> Callable:
    """A loss of a solution: the regret, or a distance to the best solution."""

    def loss(predicted: Tensor, costs: Tensor, truth: Tensor) -> Tensor:
        z = layer(predicted)
        if criterion == "regret":
            return regret_of(costs, truth, z)
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


def finite_difference(optmodel: Any, sigma: float) -> Callable:
    loss = pyepo.func.perturbationGradient(optmodel, sigma=sigma, two_sides=True)
    return lambda predicted, costs, truth: loss(predicted, costs)


MODEL = shortestPathModel((5, 5))
PYEPO: dict[str, tuple[Made, Sequence[float], Sequence[float]]] = {
    "SPO+": (lambda s: spo_plus(MODEL), (1.0,), MANY),
    "Fenchel-Young": (lambda s: fenchel_young(MODEL, s), (0.3, 1.0), FEW),
    "perturbed optimizer, squared error": (lambda s: perturbed(MODEL, s, "MSE"), (0.3, 1.0), FEW),
    "perturbed optimizer, regret": (lambda s: perturbed(MODEL, s, "regret"), (0.3, 1.0), FEW),
    "black box": (lambda s: blackbox(MODEL, s), (10.0, 20.0), FEW),
    "negative identity": (
        lambda s: solving(pyepo.func.negativeIdentity(MODEL), "regret"),
        (1.0,),
        MANY,
    ),
    "perturbation gradient": (lambda s: finite_difference(MODEL, s), (0.1, 1.0), FEW),
    "I-MLE": (
        lambda s: solving(pyepo.func.implicitMLE(MODEL, n_samples=10, lambd=s), "L1"),
        (1.0, 10.0),
        FEW,
    ),
}


def least_squares(splits: dict[str, dict[str, Tensor]]) -> list[dict[str, Any]]:
    """PyEPO's two-stage row."""
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
        split: model.regret(splits[split])[place].tolist() for split in ("validation", "test")
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
        for library, method in [*rows, ("PyEPO", "two-stage")]:
            told = {"num_train": num_train, "noise": noise, "degree": degree, "seeds": args.seeds}
            line = told | {"library": library, "method": method}
            if key_of(line) in done or method in args.skip:
                continue
            splits = splits or task.splits()
            start = time.process_time()
            if method == "two-stage" and library == "PyEPO":
                found = least_squares(splits)
            else:
                found = search(library, method, task, splits)
            line |= {"settings": found, "cpu_seconds": round(time.process_time() - start, 2)}
            with args.file.open("a") as file:
                file.write(json.dumps(line) + "\n")
            best = chosen(line)
            print(line["library"], method, told, f"{100 * statistics.mean(best['test']):.3f}%")


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


def chosen(line: dict[str, Any]) -> dict[str, Any]:
    """The setting with the lowest mean regret on validation examples."""
    return min(line["settings"], key=lambda setting: statistics.mean(setting["validation"]))


def table(args: argparse.Namespace) -> None:
    lines = [json.loads(line) for line in args.file.read_text().splitlines()]
    columns = sorted({(li["num_train"], li["noise"], li["degree"]) for li in lines})
    rows = list(dict.fromkeys((li["library"], li["method"]) for li in lines))
    test: dict[Any, np.ndarray] = {}
    validation: dict[Any, float] = {}
    for li in lines:
        key = (li["library"], li["method"], (li["num_train"], li["noise"], li["degree"]))
        test[key] = 100 * np.array(chosen(li)["test"])
        validation[key] = statistics.mean(chosen(li)["validation"])
    print("| method |", " | ".join(f"{n:,}, {w:g}, {d}" for n, w, d in columns), "|")
    print("|---|" + "---|" * len(columns))
    for library, method in rows:
        cells = [test.get((library, method, column)) for column in columns]
        told = ["" if c is None else f"{c.mean():.2f}" for c in cells]
        print(f"| {library}, {method} |", " | ".join(told), "|")
    print("\nBest by validation, ours and PyEPO's; difference, and its standard error over seeds:")
    ranks: dict[str, list[float]] = {"nestruct": [], "PyEPO": []}
    for column in columns:
        best = {}
        for library in ranks:
            methods = [m for li, m in rows if li == library and (li, m, column) in test]
            best[library] = min(methods, key=lambda m: validation[library, m, column])
        both = [test[library, best[library], column] for library in ranks]
        gap = both[0] - both[1]
        error = gap.std(ddof=1) / len(gap) ** 0.5
        means = [one.mean() for one in both]
        for library, mean, other in zip(ranks, means, reversed(means), strict=True):
            ranks[library].append(1.5 if mean == other else 1.0 + (mean > other))
        told = [f"{k} {best[k]} {m:.3f}" for k, m in zip(ranks, means, strict=True)]
        verdict = "worse" if gap.mean() > error else ""
        print(column, *told, f"gap {gap.mean():+.3f} +- {error:.3f}", verdict)
    print("mean rank of the best rows:", {k: float(np.mean(v)) for k, v in ranks.items()})


@numba.njit(cache=False)
def cheapest(costs: np.ndarray, height: int, width: int) -> np.ndarray:
    """One path, by a dynamic programme over the cells; edges row by row."""
    reach = np.empty((height, width))
    came = np.empty((height, width), np.int64)
    reach[0, 0] = 0.0
    for i in range(height):
        for j in range(width):
            if i == 0 and j == 0:
                continue
            best, edge = np.inf, -1
            if j > 0:
                part = i * (2 * width - 1) + j - 1
                best, edge = reach[i, j - 1] + costs[part], part
            if i > 0:
                part = (i - 1) * (2 * width - 1) + width - 1 + j
                if reach[i - 1, j] + costs[part] < best:
                    best, edge = reach[i - 1, j] + costs[part], part
            reach[i, j], came[i, j] = best, edge
    z = np.zeros(len(costs))
    i, j = height - 1, width - 1
    while i > 0 or j > 0:
        edge = came[i, j]
        z[edge] = 1.0
        if edge % (2 * width - 1) < width - 1:
            j -= 1
        else:
            i -= 1
    return z


class OneAtATime(shortestPathBase):
    """PyEPO's problem with a compiled dynamic programme for a solver."""

    def _getModel(self) -> tuple[Any, Any]:  # noqa: N802 - the names are PyEPO's
        return None, list(self.arcs)

    def setObj(self, c: Any) -> None:  # noqa: N802
        self._costs = np.asarray(c, dtype=np.float64)

    def _setFullObj(self, c: Any) -> None:  # noqa: N802
        self.setObj(c)

    def solve(self) -> tuple[Any, float]:
        z = cheapest(self._costs, *self.grid)
        return z, float(z @ self._costs)


def steps_of(library: str, method: str, optmodel: Any) -> Iterator[None]:
    """Training steps of one model with batches of 32, one for each ``next``."""
    splits = Task(1000, 0.5, 4, 1).splits()
    batches, model = Batches(splits["train"], Task(1000, 0.5, 4, 1).order(), 1), Models(1, 1)
    adam, _ = model.adam([0.01])
    kept = [batches(step) for step in range(20)]
    estimator, loss = None, None
    if library == "nestruct, estimator":
        estimator = TIMED_ESTIMATORS[method]()
    elif library == "nestruct":
        loss = TIMED_OURS[method]()
    else:
        loss = TIMED_PYEPO[method](optmodel)
    for step in itertools.count():
        batch = kept[step % len(kept)]
        if estimator is not None:
            estimator.backward(model, batch, seed=0, step=step)
        elif loss is not None:
            adam.zero_grad()
            loss(-model.encode(batch), batch["costs"], batch["z"]).backward()
        adam.step()
        yield


def own_spo_plus() -> Callable:
    loss = nestruct.SPOPlusLoss(GRID)
    return lambda predicted, costs, truth: loss(-predicted, -costs, z_true=truth).mean()


def own_fenchel_young() -> Callable:
    loss = nestruct.FenchelYoungLoss(GRID, num_samples=10)
    return lambda predicted, costs, truth: loss(-predicted, truth).mean()


TIMED_ESTIMATORS: dict[str, Callable] = {
    "SPO+": lambda: nestruct.Supervised(loss="spo_plus"),
    "Fenchel-Young": lambda: nestruct.Supervised(loss="fenchel_young", num_draws=10),
}
TIMED_OURS: dict[str, Callable] = {"SPO+": own_spo_plus, "Fenchel-Young": own_fenchel_young}
TIMED_PYEPO: dict[str, Callable] = {
    "SPO+": spo_plus,
    "Fenchel-Young": lambda optmodel: fenchel_young(optmodel, 1.0),
    "perturbed optimizer": lambda optmodel: perturbed(optmodel, 1.0, "regret"),
    "black box": lambda optmodel: blackbox(optmodel, 10.0),
}


def measure(args: argparse.Namespace) -> None:
    loop = pyepo.func.utils._solve_batch
    backends = {"OR-Tools": shortestPathModel((5, 5)), "one at a time": OneAtATime((5, 5))}
    found: dict[str, dict[str, list[float]]] = {}
    runs: dict[tuple[str, str], Any] = {}
    for method in TIMED_PYEPO:
        for library, known in (
            ("nestruct", TIMED_OURS),
            ("nestruct, estimator", TIMED_ESTIMATORS),
        ):
            if method in known:
                runs[method, library] = steps_of(library, method, None)
        for name, optmodel in backends.items():
            runs[method, f"PyEPO, {name}"] = steps_of("PyEPO", method, optmodel)
        runs[method, "PyEPO, our batched solver"] = steps_of("PyEPO", method, MODEL)
    for repeat in range(args.repeats + 1):  # all take turns; the first warms up
        for (method, name), steps in runs.items():
            pyepo.func.utils._solve_batch = solve_at_once if "batched" in name else loop
            count = 5 if "OR-Tools" in name else 50
            start = time.process_time()  # others use this machine too
            for _ in range(count):
                next(steps)
            spent = (time.process_time() - start) / count * 1e3
            if repeat:
                found.setdefault(method, {}).setdefault(name, []).append(round(spent, 4))
    for method, times in found.items():
        print(method, {name: round(statistics.median(ms), 3) for name, ms in times.items()})
    if args.json:
        told = {"machine": platform.processor(), "torch": torch.__version__, "batch": BATCH}
        args.json.write_text(json.dumps(told | {"ms": found}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(required=True)
    for name, function in (("study", study), ("table", table)):
        verb = verbs.add_parser(name)
        verb.set_defaults(run=function)
        verb.add_argument("file", type=Path)
        if name == "study":
            verb.add_argument("--seeds", type=int, default=10)
            verb.add_argument("--skip", nargs="*", default=[], help="methods")
    verb = verbs.add_parser("time")
    verb.set_defaults(run=measure)
    verb.add_argument("--repeats", type=int, default=5)
    verb.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.run(args)


if __name__ == "__main__":
    main()
