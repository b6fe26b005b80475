"""The authors' NES step beside ours, on Table 3's model of 50K parameters: ``published_step.py``.

    python benchmarks/published_step.py same [--device D]             the gradient, same draws
    python benchmarks/published_step.py train RUNS --arm A --seed S   one run, resumed where it was
    python benchmarks/published_step.py compare RUNS [--json FILE]    paired differences over seeds

The authors' step is written again from what their public code does, in plain torch, with torch's
own draws: mirrored Gaussian directions, one Gumbel draw for a minibatch, clamped probabilities, the
categorical KL, losses less their mean over the population's deviation, gradient / (N sigma), Adam.
Both arms have the same first parameters, data and order of minibatches. Needs NESTRUCT_DATA.
"""

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from scipy.stats import t as student
from torch import Tensor

import nestruct
from nestruct.estimators.base import Estimator, Stats
from nestruct.noise import Noise, derive_seed
from nestruct.population import Layout
from nestruct.population.directions import fill_directions
from nestruct.reports import read_run
from nestruct.training import Recipe, build, read_recipe

ARMS = ("authors", "ours")
HIDDEN, MEMBERS, SIGMA = 32, 60, 0.1
BOUND = 100.0  # probabilities are clamped to [exp(-100), 1 - exp(-100)]: to [0, 1] in float32


@dataclass(eq=False)
class PublishedStep(Estimator):
    """The authors' step; nothing of it comes from `nestruct.NES`."""

    kind: ClassVar[str] = "gradient-free"
    num_members: int = MEMBERS
    is_scaled: bool = False

    def estimate(
        self, model: Any, layout: Layout, batch: Tensor, noise: Noise
    ) -> tuple[list[Tensor], Stats]:
        draws = torch.Generator(batch.device).manual_seed(derive_seed(noise.seed, int(noise.step)))
        shape = (self.num_members // 2, layout.size)
        directions = torch.randn(shape, generator=draws, device=batch.device)
        uniform = torch.rand((len(batch), model.num_classes), generator=draws, device=batch.device)
        gumbel = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
        gradient, losses = published_gradient(layout.centre(), directions, batch, gumbel)
        pieces = layout.split(gradient)
        zero = torch.zeros((), device=batch.device)
        stats = {"loss": losses.mean(), "std": losses.std(), "norm": gradient.norm()}
        return list(pieces.values()), stats | {"failed": zero, "usable": zero + len(losses)}


def published_gradient(
    centre: dict[str, Tensor], directions: Tensor, images: Tensor, gumbel: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of one step, flat, and the losses of all members."""
    both = torch.cat([directions, -directions])
    flat = torch.cat([value.flatten() for value in centre.values()])
    members = flat + SIGMA * both
    weights, start = [], 0
    for value in centre.values():
        piece = members[:, start : start + value.numel()]
        weights.append(piece.view(-1, *value.shape))
        start += value.numel()
    w1, b1, w2, b2, w3, b3, w4, b4 = weights
    hidden = (images @ w1.mT + b1[:, None]).relu()
    logits = hidden @ w2.mT + b2[:, None]
    z = torch.nn.functional.one_hot((logits + gumbel).argmax(-1), logits.shape[-1]).to(images)
    output = (z @ w3.mT + b3[:, None]).relu() @ w4.mT + b4[:, None]
    shown = output.sigmoid().clamp(math.exp(-BOUND), 1 - math.exp(-BOUND))
    terms = images * shown.log().clamp(min=-BOUND)
    terms = terms + (1 - images) * (1 - shown).log().clamp(min=-BOUND)
    share = logits.softmax(-1)
    kl = (share * (logits.log_softmax(-1) + math.log(logits.shape[-1]))).sum(-1)
    losses = (kl - terms.sum(-1)).mean(-1)
    utilities = (losses - losses.mean()) / losses.std(correction=0)
    return utilities @ both / (len(both) * SIGMA), losses


def experiment(device: str, seed: int) -> Any:
    """The recipe of Table 3 at 50K parameters."""
    sizes = [f"model.hidden_size={HIDDEN}", f"estimator.population_size={MEMBERS}"]
    tables = read_recipe("table3-nes", [f"device={device}", f"seed={seed}", *sizes])
    return Recipe.from_tables(tables)


def same(device: str) -> None:
    """How far the two gradients are apart where their draws are the same."""
    recipe = experiment(device, 0)
    made = build(recipe)
    model: Any = made.model
    batch = made.data.splits()["train"][:128].to(next(model.parameters()).device)
    layout, noise = Layout(model), Noise(seed=0)
    made.estimator.backward(model, batch, seed=0)
    ours = torch.cat([p.grad.flatten() for p in model.parameters()])
    directions = torch.empty(MEMBERS // 2, layout.size, device=batch.device)
    fill_directions(directions, 0, seed=0, step=0, sigma=1.0, kind="gaussian")
    with torch.no_grad():
        gumbel = noise.gumbel(model.encode(batch))
        theirs, _ = published_gradient(layout.centre(), directions, batch, gumbel)
    # Ours has the scale of nothing in particular: Adam takes the direction.
    theirs = theirs * (ours @ theirs / (theirs @ theirs))
    print(f"relative distance {float((ours - theirs).norm() / ours.norm()):.1e}")


def train(folder: Path, arm: str, seed: int, device: str, epochs: int) -> None:
    """One run of 390 steps an epoch, in a folder of its own."""
    recipe = experiment(device, seed)
    made = build(recipe)
    splits = made.data.splits()
    result = nestruct.fit(
        made.model,
        PublishedStep() if arm == "authors" else made.estimator,
        made.optimizer,
        splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        seed=seed,
        run=folder / f"{arm}-s{seed}",
        resume=True,
        max_steps=390 * epochs,
        batch_size=128,
        eval_interval=1950,
        log_interval=1950,
    )
    assert result.test is not None
    print(f"{arm}, seed {seed}: {-result.test['loss_mode']:.1f} after {result.step} steps")


def compare(folder: Path) -> dict[str, Any]:
    """Means of both arms, and the paired difference with its 95 % interval."""
    found: dict[str, dict[int, float]] = {arm: {} for arm in ARMS}
    commits = set()
    for place in sorted(folder.iterdir()):
        if (place / "config.toml").is_file() and "test" in (run := read_run(place)).records:
            arm = place.name.rpartition("-s")[0]
            found[arm][run.config["seed"]] = -run.records["test"][-1]["loss_mode"]
            commits.add(run.environment.get("commit"))
    seeds = sorted(found["authors"].keys() & found["ours"].keys())
    differences = [found["ours"][seed] - found["authors"][seed] for seed in seeds]
    result: dict[str, Any] = {"seeds": seeds, "commits": sorted(map(str, commits)), "runs": found}
    for arm in ARMS:
        values = [found[arm][seed] for seed in seeds]
        result[arm] = {"mean": statistics.fmean(values), "deviation": statistics.stdev(values)}
    half = student.ppf(0.975, len(seeds) - 1) * statistics.stdev(differences) / len(seeds) ** 0.5
    mean = statistics.fmean(differences)
    result["ours less authors'"] = {"mean": mean, "low": mean - half, "high": mean + half}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("same")
    verb.add_argument("--device", default="cpu")
    verb = verbs.add_parser("train")
    verb.add_argument("runs", type=Path)
    verb.add_argument("--arm", choices=ARMS, required=True)
    verb.add_argument("--seed", type=int, required=True)
    verb.add_argument("--device", default="auto")
    verb.add_argument("--epochs", type=int, default=300)
    verb = verbs.add_parser("compare")
    verb.add_argument("runs", type=Path)
    verb.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.verb == "same":
        same(options.device)
    elif options.verb == "train":
        train(options.runs, options.arm, options.seed, options.device, options.epochs)
    else:
        result = compare(options.runs)
        print(json.dumps(result, indent=1))
        if options.json:
            options.json.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
