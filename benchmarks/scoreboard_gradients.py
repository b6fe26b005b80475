"""How good one gradient is, for every method of the scoreboard, where the truth is known.

    python benchmarks/scoreboard_gradients.py [--json results/scoreboard-gradients.json]

The scoreboard's tasks, so small that every structure can be listed, at three stages of training:
cosine to the truth of one estimate of the encoder's gradient, and of their mean, variance and bias
as in `gradient_quality.py`. Methods and options are those of the scoreboard's plans; each decodes
``budget`` structures per example, by its number of samples or as the mean of several estimates. One
that draws nothing decodes once: more would be the same. REINFORCE, which has no bias, trains.

The truth is the gradient of the expected loss under the law that a method samples, summed over all
structures with exact chances: Gibbs', and perturb-and-MAP's for trees and subsets. For paths the
latter are not known. There the derivative is averaged over noise, in a form of little variance,

    dE[L] / dh_e  =  E[density(B - A) (L(best with e) - L(best without e))]

where e is chosen if its own noise is above B - A, the best total without it less the best with it.
That reads the list of paths, calls no solver and shares nothing with the estimators. `halves` is
the cosine of two such averages, `divergence` the length of the divergence's gradient, which all
have exactly. What learns from labels or at the argmax itself aims elsewhere.
"""

import argparse
import copy
import itertools
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gradient_quality import bias, compare, cosine, encoder_parameters, estimates, warm_up
from table_data import Data, to_text
from table_rest import ELSEWHERE, TRAINED, scoreboard_gradient_table
from torch import Tensor

from nestruct.data import batch_size, select_rows
from nestruct.estimators.enumeration import list_members
from nestruct.estimators.registry import ESTIMATORS
from nestruct.models.structured import hard_structures
from nestruct.noise import Noise
from nestruct.structures import KSubset, SpanningTree, perturb_and_map_law
from nestruct.training import Recipe, build, read_recipe
from nestruct.training.recipes.plan import read_plan
from nestruct.training.run.environment import describe_environment


@dataclass(frozen=True)
class Task:
    """A small version of one of the scoreboard's tasks."""

    plan: str
    lr: float  # of Adam in training: the middle one of the plan's search
    steps: tuple[int, int, int]  # of training before each stage
    small: str = ""  # what differs from the plan


TREES = "data.num_nodes=5 data.num_train=2000 model.hidden_size=16 model.fused=false"
SUBSETS = "data.name=patterns model.num_subsets=3 model.num_items=6 model.k=3 "
SUBSETS += "model.hidden_sizes=[16] training.batch_size=32"
TASKS = {
    "Paths": Task("scoreboard-paths", 0.03, (0, 30, 300)),
    "Trees": Task("scoreboard-trees", 3e-3, (0, 100, 1000), TREES),
    "Subsets": Task("scoreboard-subsets", 1e-3, (0, 100, 1000), SUBSETS),
}
CHUNK, WARM_UP = 500, 300  # members or draws at once; most steps of AIMLE's state


def recipes(task: Task, seed: int) -> dict[str, Recipe]:
    """The plan's methods before their search, by the names of the scoreboard; small."""
    plan, found = read_plan(task.plan), {}
    for entry in plan.entries:
        if not entry.setting:
            options = plan.overrides(replace(entry, tiny=tuple(task.small.split())), tiny=True)
            tables = read_recipe(entry.recipe, [*options, "device=cpu", f"seed={seed}"])
            found[tables["title"].partition(", ")[2]] = Recipe.from_tables(tables)
    return found


def at_budget(recipe: Recipe, budget: int, batch: int) -> tuple[Any, int]:
    """The estimator that decodes as many structures, or one and how many of it are averaged."""
    name, options = recipe.estimator.name, dict(recipe.estimator.options)
    made = ESTIMATORS[name](**options)
    if name == "NES":
        size = budget * batch // (made.pair_batch_size or batch)
        options |= {"population_size": size, "chunk_size": size}
    elif name == "ScoreNES":
        options["num_pairs"] = budget // 2
    elif name == "Supervised":
        options["num_draws"] = budget  # of Fenchel-Young: solved, not decoded
    elif name != "PerturbedOptimizer" and law_of(made) != "argmax":
        options["num_samples"] = budget
    return ESTIMATORS[name](**options), budget if name == "PerturbedOptimizer" else 1


def law_of(estimator: Any) -> str:
    """What its structures are drawn from; "labels" where it looks at true ones."""
    name = type(estimator).__name__
    if name == "Supervised":
        return "labels"
    if name == "BlackboxDifferentiation" or getattr(estimator, "noise", "") == "none":
        return "argmax"
    if name == "ExactMarginals" or getattr(estimator, "law", "") == "gibbs":
        return "Gibbs"
    smooths = name == "ScoreNES" and estimator.gumbel == "none"
    if smooths or getattr(estimator, "noise", "") == "gaussian":
        return f"normal, {estimator.sigma:g}"
    return "Gumbel"


def members(model: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
    """All structures of an example; and which member of each of its rows they are made of."""
    rows = list_members(model.structure, scores)
    count = scores[0].numel() // rows[0].numel()
    places = torch.tensor(list(itertools.product(range(len(rows)), repeat=count)))
    return rows[places].view(len(places), *scores.shape[1:]), places


@torch.no_grad()
def all_losses(model: Any, batch: Any, scores: Tensor, every: Tensor) -> Tensor:
    """Less their mean over the members: ``[batch, members]``."""
    with hard_structures():
        wide = (z[:, None].expand(-1, *scores.shape) for z in every.split(CHUNK))
        found = torch.cat([model.loss_at(batch, scores, z) for z in wide]).T
    return found - found.mean(1, keepdim=True)


def truth(model: Any, batch: Any, law: str, draws: int, seed: int) -> tuple[Tensor, float, Data]:
    """The encoder's gradient; how much of its square is error; and what is noted of it."""
    model = copy.deepcopy(model)  # running statistics move
    scores = model.encode(batch)
    every, places = members(model, scores)
    losses = all_losses(model, batch, scores, every)
    divergence, parameters = model.divergence(scores, batch).mean(), encoder_parameters(model)

    def gradient(expected: Tensor) -> Tensor:
        pieces = torch.autograd.grad(expected.mean() + divergence, parameters, retain_graph=True)
        return torch.cat([piece.flatten() for piece in pieces]).double()

    if law == "Gibbs":
        chances = (scores.flatten(1) @ every.flatten(1).T).softmax(-1)
        expected = [(chances * losses).sum(-1)]
    elif law == "Gumbel" and isinstance(model.structure, KSubset | SpanningTree):
        chance = perturb_and_map_law(model.structure, scores).view(len(scores), places.shape[1], -1)
        chances = torch.stack([chance[:, r, p] for r, p in enumerate(places.T)]).prod(0)
        expected = [(chances * losses).sum(-1)]
    else:
        slopes = conditional(scores.detach(), every, losses, law, draws, seed)
        expected = [(slope * scores).sum(-1) for slope in slopes]
    found = torch.stack([gradient(one) for one in expected])
    mean, charged = found.mean(0), gradient((0 * scores).flatten(1).sum(1))
    noted = {"halves": cosine(found[0], found[-1]), "divergence": charged.norm() / mean.norm()}
    error = (found[0] - mean).square().sum() / (mean @ mean)
    return mean, float(error), {name: float(value) for name, value in noted.items()}


@torch.no_grad()
def conditional(
    scores: Tensor, every: Tensor, losses: Tensor, law: str, draws: int, seed: int
) -> list[Tensor]:
    """Two averages, of as many draws each, of dE[L] / dh, with a row for each example."""
    generator, found = torch.Generator().manual_seed(seed), []
    sigma = float(law.partition(", ")[2] or 1)
    for _ in range(2):
        total = torch.zeros_like(scores)
        for start in range(0, draws, CHUNK):
            shape = min(CHUNK, draws - start), *scores.shape
            noise = sigma * torch.randn(shape, generator=generator)
            if law == "Gumbel":
                noise = -torch.empty(shape).exponential_(generator=generator).log()
            totals = (scores + noise) @ every.T
            for part, on in enumerate(every.T > 0):
                (a, first), (b, other) = totals[..., on].max(-1), totals[..., ~on].max(-1)
                t = (b - (a - noise[..., part])) / sigma
                log = -t - (-t).exp() if law == "Gumbel" else -(t**2 + math.log(2 * math.pi)) / 2
                gain = losses[:, on].gather(1, first.T) - losses[:, ~on].gather(1, other.T)
                total[:, part] += (log.exp().T * gain).sum(1) / sigma
        found.append(total / draws)
    return found


def rows_of(train: Any, number: int, size: int, seed: int) -> Any:
    """A minibatch that depends on the two numbers alone."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + number)
    return select_rows(train, torch.randint(batch_size(train), (size,), generator=generator))


def stages(task: Task, seed: int) -> Iterator[tuple[Data, Any, Any, int]]:
    """The model at each stage, and its value; trained by REINFORCE, whose limit has no bias."""
    recipe = recipes(task, seed)["REINFORCE"]
    made = build(recipe)
    model: Any = made.model
    data, batch, done = made.data.splits(), recipe.training.batch_size or 32, 0
    unbiased, _ = at_budget(recipe, 16, batch)
    adam = torch.optim.Adam(model.parameters(), lr=task.lr)
    for stage, steps in zip(TRAINED, task.steps, strict=True):
        model.train()
        for step in range(done, steps):
            rows = rows_of(data["train"], step, batch, seed)
            unbiased.backward(model, rows, seed=seed, step=step)
            adam.step()
        done = steps
        found: Any = copy.deepcopy(model).eval().metrics(data["validation"], Noise(seed=0))
        value = found[recipe.training.metric]
        value, over = value if isinstance(value, tuple) else (value, torch.ones_like(value))
        noted = {"stage": stage, "steps": steps, "worth": float(value.sum() / over.sum())}
        yield noted, model, data["train"], batch


def measure(task: Task, seed: int, options: argparse.Namespace) -> Iterator[Data]:
    """Every method at every stage, for one seed of model and data."""
    for stage, model, train, size in stages(task, seed):
        batch = rows_of(train, 10**6, size, seed)
        others = [rows_of(train, 10**6 + 1 + k, size, seed) for k in range(50)]
        know = partial(truth, model, batch, draws=options.draws, seed=seed)
        truths = {"Gumbel": know("Gumbel")}
        for method, recipe in recipes(task, seed).items():
            start = time.perf_counter()
            estimator, repeats = at_budget(recipe, options.budget, size)
            law = law_of(estimator)
            target = "Gumbel" if law in ELSEWHERE else law
            if target not in truths:
                truths[target] = know(target)
            exact, error, noted = truths[target]
            warm_up(model, estimator, others, min(stage["steps"], WARM_UP))
            report = estimator.backward(copy.deepcopy(model), batch, seed=6)
            draws = law not in ELSEWHERE or method == "Fenchel-Young"
            trials = options.trials if draws else 2
            every = torch.stack(list(estimates(model, estimator, batch, trials * repeats, 0)))
            found = every.view(trials, repeats, -1).mean(1)
            each, spread = cosine(found, exact), compare(found, exact, error)
            row = stage | {"method": method, "law": law, "seed": seed, "trials": trials}
            row |= noted
            row |= zip(("variance", "off", "chance"), spread or [None] * 3, strict=True)
            yield row | {
                "decoded": repeats * float(report.num_decoded or 0) / size,
                "solved": repeats * float(report.num_solved or 0) / size,
                "cosine": float(each.mean()),
                "cosine_error": float(each.std() / trials**0.5),
                "cosine_of_mean": float(cosine(found.mean(0), exact)),
                "to_gumbel": float(cosine(exact, truths["Gumbel"][0])),
                "seconds": round(time.perf_counter() - start, 2),
            }


def pooled(runs: list[Data]) -> Data:
    """What the seeds of one method at one stage say together."""
    keys = ("task", "stage", "steps", "method", "law", "decoded", "solved", "trials")
    found = {key: runs[0][key] for key in keys}
    for key in ("cosine", "cosine_of_mean", "to_gumbel", "worth", "divergence"):
        found[key] = statistics.fmean(run[key] for run in runs)
    cosines = torch.tensor([run["cosine"] for run in runs])
    found["cosine_error"] = float(cosines.std() / len(runs) ** 0.5) if len(runs) > 1 else None
    found |= {"variance": None, "bias": None, "bias_below": None}
    if all(run["variance"] is not None for run in runs):
        mean = {k: statistics.fmean(r[k] for r in runs) for k in ("variance", "off", "chance")}
        found |= {"variance": mean["variance"]} | bias(mean["off"], mean["chance"])
    return found | {"seeds": [run["seed"] for run in runs]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--budget", type=int, default=16, help="structures decoded per example")
    parser.add_argument("--trials", type=int, default=40, help="estimates of each seed")
    parser.add_argument("--draws", type=int, default=2000, help="of noise, twice, for a truth")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options, start, runs = parser.parse_args(), time.perf_counter(), []
    torch.set_num_threads(1)
    facts = describe_environment(torch.device("cpu")) | {"load": os.getloadavg()[0]}
    for name, seed in itertools.product(options.tasks, range(options.seeds)):
        for run in measure(TASKS[name], seed, options):
            runs.append({"task": name} | run)
            print(name, seed, run["stage"], run["method"], run["cosine"], flush=True)
    kinds = dict.fromkeys((run["task"], run["stage"], run["method"]) for run in runs)
    groups = [[r for r in runs if (r["task"], r["stage"], r["method"]) == kind] for kind in kinds]
    data = {
        "title": "One gradient of every method of the scoreboard beside the exact one",
        "protocol": " ".join((__doc__ or "").split("\n\n")[2].split()),
        "environment": facts | {"seconds": round(time.perf_counter() - start)},
        "options": {k: v for k, v in vars(options).items() if k != "json"},
        "tasks": {name: asdict(TASKS[name]) for name in options.tasks},
        "rows": [pooled(group) for group in groups],
        "runs": runs,
    }
    if options.json is not None:
        options.json.write_text(to_text(data), encoding="utf-8")
    for name in options.tasks:
        print(f"\n{name}\n\n{scoreboard_gradient_table(data, name)}")


if __name__ == "__main__":
    main()
