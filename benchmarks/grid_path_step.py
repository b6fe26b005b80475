"""One training step of grid paths: ours and PyEPO's, on the same solver and on theirs.

    python benchmarks/grid_path_step.py time [--json FILE] [--repeats 5]
    python benchmarks/grid_path_step.py agree

PyEPO must be importable, see `grid_path_peers.py`. One linear model of the costs of 5 x 5 grids,
batches of 32, Adam, one thread. Ours as an estimator, and as a loss or a layer in a loop of one's
own; PyEPO in such a loop, with OR-Tools (GLOP), with a dynamic programme for one instance (a
subclass of its optModel, compiled by numba), and with our batched solver in the place of its loop.
I-MLE stands beside the formula of torch-imle, written out for our batched solver. Milliseconds are
those of the processor, not of the clock: others may use the machine too.

`agree` compares losses and gradients of both libraries for the same costs.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyepo.func
import pyepo.func.utils
import torch
from grid_path_peers import (
    BATCH,
    GRID,
    MODEL,
    PARTS,
    Batches,
    Models,
    Task,
    blackbox,
    fenchel_young,
    perturbed,
    solve_at_once,
    solving,
    spo_plus,
    versions,
)
from pyepo.model.bases import shortestPathBase
from pyepo.model.ort import shortestPathModel
from torch import Tensor

import nestruct


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
    elif library == "torch-imle's formula":
        loss = solving(lambda costs: TorchIMLE.apply(-costs, 10, 10.0), "regret")
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


def own_spo_plus(sigma: float = 0.0) -> Callable:
    loss = nestruct.SPOPlusLoss(GRID, sigma)
    return lambda predicted, costs, truth: loss(-predicted, -costs, z_true=truth).mean()


def own_fenchel_young() -> Callable:
    loss = nestruct.FenchelYoungLoss(GRID, num_samples=10)
    return lambda predicted, costs, truth: loss(-predicted, truth).mean()


def own_layer(gradient: Any) -> Callable:
    layer = nestruct.SolverLayer(GRID, gradient)
    samples = getattr(gradient, "num_samples", 1) > 1 and gradient.num_decoded > 1
    return solving(lambda costs: layer(-costs).mean(0) if samples else layer(-costs), "regret")


class TorchIMLE(torch.autograd.Function):
    """The formula of torch-imle: a mean of solutions, and of solutions of moved scores."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, samples: int, beta: float) -> Tensor:
        uniform = torch.rand(samples, *scores.shape)
        perturbed = scores - (-uniform.log()).log()
        z = GRID.argmax(perturbed)
        ctx.save_for_backward(perturbed, z)
        ctx.beta = beta
        return z.mean(0)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        perturbed, z = ctx.saved_tensors
        return z.mean(0) - GRID.argmax(perturbed - ctx.beta * slopes[0]).mean(0), None, None


TIMED_ESTIMATORS: dict[str, Callable] = {
    "SPO+": lambda: nestruct.Supervised(loss="spo_plus"),
    "soft SPO+": lambda: nestruct.Supervised(loss="soft_spo_plus", sigma=0.3),
    "Fenchel-Young": lambda: nestruct.Supervised(loss="fenchel_young", num_draws=10),
}
TIMED_OURS: dict[str, Callable] = {
    "SPO+": own_spo_plus,
    "soft SPO+": lambda: own_spo_plus(0.3),
    "Fenchel-Young": own_fenchel_young,
    "perturbed optimizer": lambda: own_layer(nestruct.PerturbedOptimizer(num_samples=10)),
    "black box": lambda: own_layer(nestruct.BlackboxDifferentiation(strength=10.0)),
    "I-MLE": lambda: own_layer(nestruct.IMLE(strength=10.0, num_samples=10)),
}
TIMED_PYEPO: dict[str, Callable] = {
    "SPO+": spo_plus,
    "Fenchel-Young": lambda optmodel: fenchel_young(optmodel, 1.0),
    "perturbed optimizer": lambda optmodel: perturbed(optmodel, 1.0, "regret"),
    "black box": lambda optmodel: blackbox(optmodel, 10.0),
}


def measure(args: argparse.Namespace) -> None:
    loop, load = pyepo.func.utils._solve_batch, [round(each, 2) for each in os.getloadavg()]
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
    for library in ("nestruct", "torch-imle's formula"):
        runs["I-MLE", library] = steps_of(library, "I-MLE", None)
    for library in ("nestruct", "nestruct, estimator"):
        runs["soft SPO+", library] = steps_of(library, "soft SPO+", None)
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
        told: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "cores": os.cpu_count(),
        }
        told |= versions() | {"load_at_the_start": load, "batch": BATCH, "seconds_are": "of a core"}
        args.json.write_text(json.dumps(told | {"ms": found}, indent=1) + "\n")


def agree(args: argparse.Namespace) -> None:
    """Both libraries at the same costs: where draws differ, by many of them."""
    pyepo.func.utils._solve_batch = solve_at_once
    torch.manual_seed(0)
    costs, true = torch.rand(16, PARTS, requires_grad=True), torch.rand(16, PARTS)
    best, many = GRID.argmax(-true), 20_000
    identity = nestruct.Identity(noise="none", projection="none")
    strong = nestruct.BlackboxDifferentiation(strength=10.0)
    pairs = {
        "SPO+": (own_spo_plus(), spo_plus(MODEL)),
        "black box": (own_layer(strong), blackbox(MODEL, 10.0)),
        "identity": (own_layer(identity), solving(pyepo.func.negativeIdentity(MODEL), "regret")),
        "Fenchel-Young": (
            lambda c, t, z: nestruct.FenchelYoungLoss(GRID, num_samples=many)(-c, z).mean(),
            lambda c, t, z: pyepo.func.perturbedFenchelYoung(MODEL, n_samples=many)(c, z),
        ),
    }
    for name, losses in pairs.items():
        values = [loss(costs, true, best) for loss in losses]
        one, two = (torch.autograd.grad(value, costs)[0] * len(costs) for value in values)
        apart, largest = float((one - two).abs().max()), float(one.abs().max())
        print(name, "losses", *(round(value.item(), 5) for value in values), end=" ")
        print(f"gradients up to {largest:.3f}, apart by {apart:.5f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(required=True)
    verbs.add_parser("agree").set_defaults(run=agree)
    verb = verbs.add_parser("time")
    verb.set_defaults(run=measure)
    verb.add_argument("--repeats", type=int, default=5)
    verb.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.run(args)


if __name__ == "__main__":
    main()
