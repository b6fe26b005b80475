"""What layers take, beside the same formulas written plainly, and PyEPO, on the same solvers.

    python benchmarks/layer_speed.py [--rounds 200] [--json FILE]

One call is the way there and back: a layer at scores ``[batch, parts]`` that need a gradient, and a
linear loss. Three comparisons, each of whose sides take turns in one run, on the CPU, one thread:

- I-MLE: ours against torch-imle's formula as a plain autograd function of our own writing, without
  the checks, on the same batched solver. The gradients must be the same to rounding.
- PerturbedOptimizer, ten samples: ours against PyEPO's, on the same Python function, which is
  called once per instance. Both means must agree in distribution: sums over parts are compared.
- What the batched solver adds: ours against ours on that function. That is no merit of the layer.

PyEPO is not among the requirements: `pip install --target DIR --no-deps pyepo` and what it imports,
DIR in PYTHONPATH. Where it is missing its row is left out. A ratio is the median over rounds of
ours over theirs in the same round, with its quartiles. Times are of the processor, one thread,
which other programs disturb less than the clock on the wall.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

import nestruct

STRENGTH, SAMPLES, CHOSEN = 2.0, 10, 5
Solve = Callable[[Tensor], Tensor]


class PlainIMLE(torch.autograd.Function):
    """z(h + eps), and the difference to z(h - lambda g + eps) over lambda; one or more samples."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, solve: Callable[[Tensor], Tensor], samples: int
    ) -> Tensor:
        lead = (samples,) if samples > 1 else ()
        eps = -torch.empty(*lead, *scores.shape).exponential_().log()
        ctx.perturbed, ctx.solve, ctx.samples = scores + eps, solve, samples
        ctx.z = solve(ctx.perturbed)
        return ctx.z.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        g = slopes[0] * ctx.samples
        found = (ctx.z - ctx.solve(ctx.perturbed - STRENGTH * g)) / (STRENGTH * ctx.samples)
        return found.sum(0) if ctx.samples > 1 else found, None, None


def there_and_back(layer: Callable[[Tensor], Tensor], scores: Tensor, costs: Tensor) -> Tensor:
    """The gradient of a linear loss, averaged over samples where there are any."""
    leaf = scores.detach().requires_grad_()
    z = layer(leaf)
    loss = (z * costs).sum() / (len(z) if z.dim() > costs.dim() else 1)
    loss.backward()
    assert leaf.grad is not None
    return leaf.grad


def pick(scores: np.ndarray) -> np.ndarray:
    """The best five of one instance, as anyone would write it."""
    z = np.zeros_like(scores)
    z[np.argpartition(-scores, CHOSEN)[:CHOSEN]] = 1
    return z


def path(scores: np.ndarray) -> np.ndarray:
    """The best path of one 5 x 5 grid, east and south, by edges, in plain Python."""
    side = 5
    value, east_of, south_of, edge = np.full((side, side), -np.inf), {}, {}, 0
    for row in range(side):  # edges as PyEPO numbers them: the row's own, then those below it
        for column in range(side - 1):
            east_of[row, column], edge = edge, edge + 1
        if row < side - 1:
            for column in range(side):
                south_of[row, column], edge = edge, edge + 1
    came = {}
    value[0, 0] = 0
    for row in range(side):
        for column in range(side):
            ways = []
            if column:
                taken = east_of[row, column - 1]
                ways.append((value[row, column - 1] + scores[taken], taken, (row, column - 1)))
            if row:
                taken = south_of[row - 1, column]
                ways.append((value[row - 1, column] + scores[taken], taken, (row - 1, column)))
            if ways:
                best = max(ways)
                value[row, column], came[row, column] = best[0], best[1:]
    z, cell = np.zeros_like(scores), (side - 1, side - 1)
    while cell != (0, 0):
        taken, cell = came[cell]
        z[taken] = 1
    return z


STRUCTURES: dict[str, tuple[Any, Any, int]] = {
    "5 of 20": (nestruct.KSubset(20, CHOSEN), pick, 20),
    "5 x 5 grid": (nestruct.GridPath(5, 5, scores="edges"), path, 40),
}


def pyepo_layer(solve: Callable[[np.ndarray], np.ndarray], parts: int) -> Any:
    """PyEPO's perturbed optimizer around a function of one instance; it calls `solve()` on each."""
    from pyepo import EPO
    from pyepo.func import perturbedOpt
    from pyepo.model.opt import optModel

    class Model(optModel):
        modelSense = EPO.MAXIMIZE  # noqa: N815 (theirs)

        def _getModel(self) -> tuple[Any, Any]:  # noqa: N802 (theirs)
            return None, list(range(parts))

        def setObj(self, c: Any) -> None:  # noqa: N802 (theirs)
            self.costs = np.asarray(c)

        def solve(self) -> tuple[np.ndarray, float]:
            z = solve(self.costs)
            return z, float(z @ self.costs)

    return perturbedOpt(Model(), n_samples=SAMPLES, sigma=1.0, processes=1)


def compare(
    name: str, sides: dict[str, Callable[[Tensor], Tensor]], batch: int, parts: int, rounds: int
) -> dict[str, Any]:
    """Medians of both sides' milliseconds, and the ratio of the first to the second."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(batch, parts, generator=generator)
    costs = torch.randn(batch, parts, generator=generator)
    for layer in sides.values():
        for _ in range(3):
            there_and_back(layer, scores, costs)
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 else list(sides)[::-1]
        for side in order:
            torch.manual_seed(number)
            start = time.process_time()
            there_and_back(sides[side], scores, costs)
            seconds[side].append(time.process_time() - start)
    ours, theirs = seconds.values()
    low, middle, high = statistics.quantiles(
        [a / b for a, b in zip(ours, theirs, strict=True)], n=4
    )
    row: dict[str, Any] = {
        "comparison": name,
        "batch": batch,
        "milliseconds": {s: round(1000 * statistics.median(t), 4) for s, t in seconds.items()},
        "ratio": round(middle, 4),
        "quartiles": [round(low, 4), round(high, 4)],
    }
    told = ", ".join(f"{s} {t:.3f} ms" for s, t in row["milliseconds"].items())
    print(
        f"{name}, batch {batch}: {told}; ratio {middle:.3f} ({low:.3f} to {high:.3f})", flush=True
    )
    return row


def check_imle(ours: Any, plain: Any, parts: int) -> None:
    """With the same draws both have the same gradient, or their times say nothing."""
    scores, costs = torch.randn(2, 8, parts, generator=torch.Generator().manual_seed(1))
    found = []
    for layer in (ours, plain):
        torch.manual_seed(0)
        found.append(there_and_back(layer, scores, costs))
    torch.testing.assert_close(*found)
    assert (found[0] != 0).any()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    load, rows = os.getloadavg(), []
    for structure_name, (structure, solve, parts) in STRUCTURES.items():
        for samples in (1, SAMPLES):
            imle = nestruct.IMLE(strength=STRENGTH, num_samples=samples)
            ours = nestruct.SolverLayer(structure, imle)

            def plain(scores: Tensor, solver=structure.argmax, samples=samples) -> Tensor:
                return PlainIMLE.apply(scores, solver, samples)

            check_imle(ours, plain, parts)
            for batch in (32, 1024):
                name = f"I-MLE, {structure_name}, {samples} samples"
                both: dict[str, Any] = {"ours": ours, "plain": plain}
                rows.append(compare(name, both, batch, parts, options.rounds))
        gradient = nestruct.PerturbedOptimizer(num_samples=SAMPLES)
        one_by_one = nestruct.SolverLayer(
            nestruct.BlackBox(solve, parts, batched=False, backend="numpy"), gradient
        )
        batched = nestruct.SolverLayer(structure, gradient)
        few = max(20, options.rounds // 10)
        name = f"perturbed optimizer, {structure_name}, {SAMPLES} samples"
        try:
            theirs = pyepo_layer(solve, parts)
        except ImportError:
            print("PyEPO: not installed")
        else:
            torch.manual_seed(0)
            test = torch.randn(200, parts)
            apart = (theirs(test) - one_by_one(test)).mean(0).abs().max()
            assert apart < 0.1, f"the means differ by {apart:.3f}"
            rows.append(compare(name, {"ours": one_by_one, "PyEPO": theirs}, 32, parts, few))
        both = {"batched solver": batched, "one call per instance": one_by_one}
        rows.append(compare(f"{name}, ours both", both, 32, parts, few))
    if options.json:
        packages = ("torch", "numpy", "numba", "pyepo")
        commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True)
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit.strip(),
            "cores": os.cpu_count(),
            "load_at_the_start": [round(each, 2) for each in load],
            "rounds": options.rounds,
            "versions": {each: _version(each) for each in packages},
            "rows": rows,
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
