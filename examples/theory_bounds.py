"""Descent on a smoothed staircase, beside what theory promises: python theory_bounds.py [PLOT.png]

The loss of 100 parameters depends on one direction among them: ten stairs, 3 sigma wide, from 1
down to 0. It has no gradient anywhere; smoothed, it has an exact one, and descent can be followed.
"""

import sys
from importlib.util import find_spec

import numpy as np

from nestruct import theory

SIGMA, DIM, STAIRS = 0.1, 100, 10
EDGES = 3 * SIGMA * np.arange(STAIRS)
AXIS = np.ones(DIM) / np.sqrt(DIM)


def gradient(parameters: np.ndarray) -> np.ndarray:
    """The smoothed loss is a sum of normal distribution functions, so this is one of densities."""
    bells = np.exp(-(((AXIS @ parameters - EDGES) / SIGMA) ** 2) / 2)
    return bells.sum() / (STAIRS * SIGMA * np.sqrt(2 * np.pi)) * AXIS


def mean_square(num_steps: int, step_size: float) -> float:
    """The mean of |gradient|^2 over a descent that starts on the uppermost edge."""
    parameters, total = EDGES[-1] * AXIS, 0.0
    for _ in range(num_steps):
        slope = gradient(parameters)
        total += slope @ slope
        parameters = parameters - step_size * slope
    return total / num_steps


print("mean |gradient|^2: ours is a bound for our step size, the paper's for the paper's\n")
print(f"{'steps':>6} {'measured':>10} {'our bound':>10}    {'measured':>10} {'Theorem 1':>10}")
rows = []
for num_steps in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000):
    known = {"num_parameters": DIM, "num_steps": num_steps}
    ours = theory.convergence_bound(1.0, SIGMA, num_steps=num_steps)
    papers = theory.paper_convergence_bound(1.0, SIGMA, **known)
    found = mean_square(num_steps, theory.step_size(1.0, SIGMA))
    found_papers = mean_square(num_steps, theory.paper_step_size(1.0, SIGMA, **known))
    rows.append((num_steps, found, ours, found_papers, papers))
    print(f"{num_steps:>6} {found:10.4f} {ours:10.4f}    {found_papers:10.4f} {papers:10.1f}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib.pyplot as plt

    steps, *curves = np.array(rows).T
    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    labels = ("measured, our step", "our bound", "measured, the paper's step", "Theorem 1")
    for curve, label, style in zip(curves, labels, ("C0o-", "C0--", "C1s-", "C1--"), strict=True):
        axes.loglog(steps, curve, style, label=label)
    axes.axhline(theory.gradient_bound(1.0, SIGMA) ** 2, color="0.5", label="no gradient is larger")
    axes.set(xlabel="steps T", ylabel="mean |gradient|² over T steps")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(sys.argv[1], dpi=150)
