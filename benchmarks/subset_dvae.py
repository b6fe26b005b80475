"""The subset VAE on MNIST: its JSON from run files, and the table of it.

python benchmarks/subset_dvae.py        results/subset-dvae-baseline.json, from NESTRUCT_DATA
"""

import json
from collections.abc import Sequence
from statistics import fmean

import torch
from table_data import (
    RESULTS,
    Data,
    archived,
    configurations,
    entry,
    numeric,
    read_json,
    runs_named,
    spread,
    summary,
)

from nestruct.training import Recipe, build, read_recipe
from nestruct.training.recipes.plan import read_plan
from nestruct.wording import count, duration

METRICS = ("loss", "loss_top_k", "loss_simple", "kl")
EPOCH = 500  # steps
MOVED = "long/reinforce-s0"  # begun on the GPU that its files name, and ended on a CPU


def collect() -> Data:
    with archived("subset-dvae") as folders:
        runs = runs_named(folders)
    entries = {
        name: entry(run, METRICS, curve=["loss", "loss_top_k", "decoded"])
        for name, run in runs.items()
    }
    rows: list[Data] = []
    kinds = {name: (run.option("recipe"), run.last_step) for name, run in runs.items()}
    for recipe, steps in dict.fromkeys(kinds.values()):
        names = [name for name, kind in kinds.items() if kind == (recipe, steps)]
        label = read_recipe(recipe)["title"].partition(", ")[2]
        row: Data = {"row": label, "epochs": steps / EPOCH, "runs": names}
        rows.append(row | summary([entries[n] for n in names], METRICS))
    return {
        "title": "Ten of twenty items, twenty times: a VAE on MNIST",
        "archives": ["subset-dvae-runs.tar.xz"],
        "protocol": "Test values at the step that was best on validation by `loss`: nats, one "
        "sample per image. loss: exact samples and KL of the Gibbs law; loss_top_k: the law of "
        "perturb-and-MAP; loss_simple: as loss, with the entropy of SIMPLE's notebook.",
        "rows": rows,
        "no learning": read_json("subset-dvae-baseline"),
        **configurations(runs),
        "runs": entries,
    }


def mean_image() -> float:
    """Nats of a test image where every pixel is on as often as it is in training, whatever else."""
    recipe = read_recipe("subset-exact-marginals", ["device=cpu"])
    splits = build(Recipe.from_tables(recipe)).data.splits()
    train, test = (splits[name].flatten(1).double() for name in ("train", "test"))
    chance = (train.sum(0) + 0.5) / (len(train) + 1)
    likelihood = test * chance.log() + (1 - test) * (1 - chance).log()
    return -float(likelihood.sum(1).mean())


def main_table(data: Data) -> str:
    """The longest runs of every method, the best of each first; and what was not run."""
    lines = []
    for row in sorted(data["rows"], key=lambda row: (-row["epochs"], row["loss"]["mean"])):
        runs = [data["runs"][name] for name in row["runs"]]
        cells = [_nats([run["test"][metric] for run in runs]) for metric in METRICS]
        decoded = fmean(run["decoded"] for run in runs)
        cost = _cost(runs) + ", then cpu" * (MOVED in row["runs"])
        lines.append([row["row"], f"{row['epochs']:g}", *cells, count(decoded), cost])
    lines += [
        [f"no learning: {name}", "", f"{value:.1f}", "", "", "0.0", "", ""]
        for name, value in data["no learning"].items()
    ]
    columns = ["", "epochs", "negative ELBO", "top-k law", "SIMPLE's entropy", "KL"]
    text = numeric([*columns, "decodings", "one run"], lines)
    left = not_run({row["row"] for row in data["rows"] if row["epochs"] >= 100})
    return f"{text}\nNot run yet for 100 epochs: {'; '.join(left)}.\n" if left else text


def not_run(done: set[str]) -> list[str]:
    """The rows of the plan that have no run, by name."""
    plan = read_plan("subset-dvae")
    titles = [read_recipe(e.recipe, plan.overrides(e, tiny=False))["title"] for e in plan.entries]
    return [label for title in titles if (label := title.partition(", ")[2]) not in done]


def _cost(runs: Sequence[Data]) -> str:
    """How long one run took, by device."""
    devices = {run["device"]: "cpu" if run["device"] == "cpu" else "H200" for run in runs}
    spent = {
        name: fmean(run["seconds"] for run in runs if run["device"] == device)
        for device, name in devices.items()
    }
    return "; ".join(f"{duration(seconds)}, {name}" for name, seconds in spent.items())


def _nats(values: Sequence[float]) -> str:
    return spread(values, lambda value: f"{value:.1f}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the same last digit everywhere
    text = json.dumps({"the mean image": round(mean_image(), 4)}, indent=1)
    (RESULTS / "subset-dvae-baseline.json").write_text(text + "\n", encoding="utf-8")
