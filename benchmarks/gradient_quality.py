"""How good one gradient is, for every estimator at the same number of decodings.

    python benchmarks/gradient_quality.py RUN... [--budget 16] [--batch 32] [--json FILE]

For each run folder (a checkpoint at some stage of training; `untrained:RUN` is its first
parameters) and each estimator that decodes ``budget`` structures per example: the cosine of one
estimate of the encoder's gradient to a reference and, for estimates scaled to the reference's
length along it, variance and bias (the part of the limit across it) in units of the reference; "-"
where that length cannot be told from 0. The reference is the mean of many estimates by REINFORCE
with leave-one-out baselines, which is unbiased for the perturb-and-MAP law; how well it is known
itself is the cosine of its two halves. SST and StructureNES are biased, and Gibbs laws have another
gradient: their bias says how much.
"""

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nestruct
from nestruct.data import select_rows, to_device
from nestruct.training import Recipe, build, read_recipe

_OTHER_BATCHES = 50  # that estimators with a state are warmed up on


def estimators(budget: int) -> dict[str, Any]:
    """Each decodes ``budget`` structures per example and step."""
    return {
        "NES, parameters, sigma 0.01": nestruct.NES(sigma=0.01, population_size=budget),
        "REINFORCE, batch": nestruct.Reinforce(baseline="batch", num_samples=budget),
        "REINFORCE, EMA": nestruct.Reinforce(baseline="ema", num_samples=budget),
        "REINFORCE, multi-sample": nestruct.Reinforce(num_samples=budget),
        "REINFORCE, multi-sample, Gibbs": nestruct.Reinforce(num_samples=budget, law="gibbs"),
        "NVIL": nestruct.NVIL(num_samples=budget),
        "SST, temperature 0.5": nestruct.SST(temperature=0.5, num_samples=budget),
        "ScoreNES": nestruct.ScoreNES(num_pairs=budget // 2),
        "StructureNES": nestruct.StructureNES(num_samples=budget),
    }


def encoder_parameters(model: Any) -> list[nn.Parameter]:
    """What is in front of the solver; all of a model that has nothing else."""
    return list(getattr(model, "encoder", model).parameters())


def estimates(model: Any, estimator: Any, batch: Any, trials: int, first: int) -> Iterator[Tensor]:
    """Independent estimates of the encoder's gradient, flat."""
    model = copy.deepcopy(model)  # running statistics move
    for step in range(first, first + trials):
        estimator.backward(model, batch, seed=7, step=step)
        pieces = [p.grad.flatten() for p in encoder_parameters(model) if p.grad is not None]
        yield torch.cat(pieces).double().cpu()


def mean_gradient(model: Any, estimator: Any, batch: Any, trials: int, first: int) -> Tensor:
    found = estimates(model, estimator, batch, trials, first)
    total = next(found)
    for gradient in found:
        total += gradient
    return total / trials


def warm_up(model: Any, estimator: Any, others: Sequence[Any], steps: int) -> None:
    """Gives moving averages their time, and a baseline's network its training, on other data."""
    kept = isinstance(estimator, nestruct.NVIL | nestruct.AIMLE)
    if not (kept or getattr(estimator, "baseline", "") == "ema"):
        return  # nothing to warm up
    adam = None
    for step in range(steps):
        next(estimates(model, estimator, others[step % len(others)], 1, 10**7 + step))
        if isinstance(estimator, nestruct.NVIL):
            adam = adam or torch.optim.Adam(estimator.parameters(), lr=1e-3)
            adam.step()


def cosine(one: Tensor, other: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(one, other, dim=-1)


def compare(found: Tensor, truth: Tensor, error: float) -> tuple[float, float, float] | None:
    """Variance, squared bias and chance's share of it, of estimates of the truth's length along it.

    In units of the truth's squared length. None where the scale of the estimates, which shaped
    losses leave open, cannot be told from 0.

    Args:
        found: The estimates, one in each row.
        truth: What they should be on average.
        error: The truth's own squared error.
    """
    square = truth @ truth
    along = found @ truth / square
    if not along.mean() > 3 * along.std() / len(along) ** 0.5:
        return None
    scaled = found / along.mean()
    variance = float(scaled.var(0).sum() / square)
    off = float((scaled.mean(0) - truth).square().sum() / square)
    # Both means differ from their limits by chance too.
    return variance, off, variance / len(found) + error


def bias(off: float, chance: float) -> dict[str, float | None]:
    """The bias less what is chance; where that is more than the rest, a bound."""
    rest = max(off - chance, 0.0)
    if rest > chance:
        return {"bias": rest**0.5, "bias_below": None}
    return {"bias": None, "bias_below": off**0.5}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All estimators at one checkpoint."""
    folder = name.removeprefix("untrained:")
    device = ["device=" + options.device]
    recipe = Recipe.from_tables(read_recipe(str(Path(folder) / "config.toml"), device))
    experiment = build(recipe)
    model: Any = experiment.model if name != folder else nestruct.load(folder, device=recipe.device)
    model.train()
    train, size = experiment.data.splits()["train"], options.batch
    batch, *others = (
        to_device(select_rows(train, torch.arange(size) + k * size), torch.device(recipe.device))
        for k in range(1 + _OTHER_BATCHES)
    )
    unbiased = nestruct.Reinforce(num_samples=options.reference_samples)
    halves = [
        mean_gradient(model, unbiased, batch, options.reference // 2, first)
        for first in (10**6, 2 * 10**6)
    ]
    truth = (halves[0] + halves[1]) / 2
    known = float(cosine(*halves))
    error = (halves[0] - halves[1]).square().sum() / 4 / (truth @ truth)  # of the mean of both
    print(f"{name}: the reference's halves have a cosine of {known:.3f}")
    rows = {}
    for label, estimator in estimators(options.budget).items():
        warm_up(model, estimator, others, options.warm_up)
        found = torch.stack(list(estimates(model, estimator, batch, options.trials, 0)))
        row: dict[str, float | None] = {"cosine": float(cosine(found, truth).mean())}
        row |= {"variance": None, "bias": None, "bias_below": None}
        spread = compare(found, truth, float(error))
        if spread is not None:
            row["variance"], off, chance = spread
            row |= bias(off, chance)
        rows[label] = row
        shown = {k: "-" if v is None else f"{v:.3g}" for k, v in row.items()}
        print(
            f"  {label:32} cosine {shown['cosine']:>8}  variance {shown['variance']:>9}  "
            f"bias {shown['bias']:>6} below {shown['bias_below']:>6}",
            flush=True,
        )
    told = name.removesuffix(folder) + Path(folder).name
    return {"checkpoint": told, "reference": known, "estimators": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--budget", type=int, default=16, help="structures decoded per example")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--warm-up", type=int, default=300, help="steps of state before trials")
    parser.add_argument("--reference", type=int, default=400, help="estimates behind the reference")
    parser.add_argument("--reference-samples", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # as the recipes train
    result = [measure(name, options) for name in options.runs]
    if options.json is not None:
        told = vars(options) | {"json": None, "runs": [row["checkpoint"] for row in result]}
        text = json.dumps({"options": told, "rows": result}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
