"""How near one estimate of rank-1 NES is to the gradient, from 10^2 to 10^6 members, on a CPU.

    python benchmarks/estimate_cosine.py [--images 10000] [--members 100 ... 1000000] [--json FILE]

Table 3's model of 100 thousand parameters on FashionMNIST (`NESTRUCT_DATA`), members of one example
each. Beside each cosine to the mean of such estimates stands what the formula says,

    1 / sqrt(1 + d V / (P |G|^2))    for P pairs and d parameters,

where V is the mean square of pairs' slopes, (f+ - f-) / (2 sigma). V, the mean and its length |G|
come from draws of their own. The mean is the gradient of a smoothed loss; the cosine to the exact
gradient (`Enumeration`) is shown too.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nestruct
from nestruct.data import Images
from nestruct.models import CategoricalVAE
from nestruct.noise import Noise
from nestruct.population import Layout

HIDDEN, SLOPES, CHUNK = 64, 50_000, 4_000  # units, pairs behind V, members at once
REFERENCES = 3  # estimates of the largest population, behind the mean
# How many steps of NES with as many members a stage is after, and its sigma.
TRAINING, TRAINERS = 300, 4_000
STAGES = {"at the start": (0, 0.1), f"after {TRAINING} steps": (TRAINING, 0.1)}
STAGES |= {f"after {TRAINING} steps, sigma 0.03": (TRAINING, 0.03)}


def estimator(sigma: float, population: int, shaping: str = "clipped") -> nestruct.NES:
    return nestruct.NES(
        sigma=sigma,
        population_size=population,
        directions="rank1",
        minibatch="per_pair",
        pair_batch_size=1,
        gumbel="per_pair",
        shaping=shaping,  # type: ignore[arg-type]
        mode="vmap",
        chunk_size=min(CHUNK, population),
    )


def trained(images: Tensor, steps: int) -> CategoricalVAE:
    """The model after some steps of rank-1 NES with sigma 0.1."""
    torch.manual_seed(0)
    model, nes = CategoricalVAE(images.shape[1], hidden_size=HIDDEN), estimator(0.1, TRAINERS)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        nes.backward(model, images, seed=0, step=step)
        adam.step()
    return model


def gradient(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()


def mean_square_slope(nes: nestruct.NES, model: CategoricalVAE, images: Tensor) -> Tensor:
    """V, and its standard error."""
    layout = Layout(model)
    law, noise, found = nes.law(layout), Noise(seed=1), []
    for start in range(0, SLOPES, CHUNK // 2):
        flat = torch.empty(min(CHUNK // 2, SLOPES - start), law.width)
        law.fill(flat, start, noise)
        one, other = nes._evaluate(model, layout, flat, start, images, noise, "vmap")
        found.append(((one - other) / (2 * nes.sigma)).square())
    squares = torch.cat(found)
    return torch.stack([squares.mean(), squares.std() / len(squares) ** 0.5])


def estimates(nes: nestruct.NES, model: Any, images: Tensor, seed: int, trials: int) -> Tensor:
    found = []
    for step in range(trials):
        nes.backward(model, images, seed=seed, step=step)
        found.append(gradient(model))
    return torch.stack(found)


def measure(options: argparse.Namespace, images: Tensor) -> Iterator[dict[str, Any]]:
    models = {steps: trained(images, steps) for steps, _ in STAGES.values()}
    for stage, (steps, sigma) in STAGES.items():
        model = models[steps]
        nestruct.Enumeration().backward(model, images, seed=0, step=0)
        exact, loss = gradient(model), model.metrics(images, Noise(seed=0))["loss"].mean()
        nes = estimator(sigma, max(options.members), "none")
        slope, error = mean_square_slope(nes, model, images).tolist()
        many = estimates(nes, model, images, 3, REFERENCES)
        mean, products = many.mean(0), many @ many.T
        square = float((products.sum() - products.trace()) / (REFERENCES * (REFERENCES - 1)))
        if square <= 0:
            raise SystemExit("The largest population is too small to tell the mean: take more.")
        limit = float(mean @ exact / (square**0.5 * exact.norm()))
        facts = {
            "loss": float(loss),
            "parameters": len(exact),
            "V": slope,
            "V_error": error,
            "mean_square": square,
        }
        facts |= {"exact_square": float(exact @ exact), "cosine_of_mean_to_exact": limit}
        print(f"\n{stage}: " + ", ".join(f"{k} {v:.4g}" for k, v in facts.items()), flush=True)
        for population in options.members:
            predicted = (1 + len(exact) * slope / (population // 2 * square)) ** -0.5
            row = {"stage": stage, "steps": steps, "sigma": sigma, "population": population}
            row |= facts | {"predicted": predicted}
            trials = max(2, min(20, 100_000 // population))
            for shaping in ("none", "clipped"):
                start = time.perf_counter()
                found = estimates(estimator(sigma, population, shaping), model, images, 2, trials)
                seconds = (time.perf_counter() - start) / trials
                length = found.norm(dim=1)
                to_mean = found @ mean / (length * square**0.5)
                to_exact = found @ exact / (length * exact.norm())
                row[shaping] = {"cosine": float(to_mean.mean()), "std": float(to_mean.std())}
                row[shaping] |= {"to_exact": float(to_exact.mean()), "trials": trials}
                row[shaping] |= {"seconds": seconds}
            plain, clipped = row["none"], row["clipped"]
            print(
                f"  N = {population:9,}: cosine {plain['cosine']:.4f} +- {plain['std']:.4f}, "
                f"formula {predicted:.4f}, clipped {clipped['cosine']:.4f}; to the exact gradient "
                f"{plain['to_exact']:.4f}, {clipped['to_exact']:.4f}; {plain['seconds']:.2f} s",
                flush=True,
            )
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cosine of one estimate against N.")
    parser.add_argument("--images", type=int, default=10_000)
    members = [100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
    parser.add_argument("--members", type=int, nargs="+", default=members)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    facts: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    facts |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    facts |= {"load": os.getloadavg()[0], "images": options.images, "pairs behind V": SLOPES}
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    images = Images(dataset="fashion-mnist", num_train=options.images).splits()["train"]
    rows = []
    for row in measure(options, images.float()):
        rows.append(row)
        if options.json:  # again after each: a machine may be lent for minutes
            found = {"environment": facts, "rows": rows}
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
