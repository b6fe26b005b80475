"""Estimators side by side: run as it stands, or see docs/notebooks/compare_estimators.md."""

# %% [markdown]
# # Estimators, side by side
#
# The same model and the same data, four sources of gradients, three seeds each. The task: a network
# reads twelve items and picks three; it is told only how much its choice is worth. It takes half a
# minute on one core.

# %%
from pathlib import Path

import torch

import nestruct
from nestruct import plots

ITEMS, PICKED = 12, 3


class Picker(nestruct.StructuredModel):
    """Features of items -> a score for each -> the best three -> what they are worth."""

    def __init__(self):
        super().__init__()
        self.structure = nestruct.KSubset(ITEMS, PICKED)
        self.score = nestruct.models.mlp(4, 16, 1)

    def encode(self, batch):
        return self.score(batch["x"])[..., 0]

    def decode(self, batch, z):
        return (z * batch["worth"]).sum(-1)

    def metrics(self, batch, noise):
        z = self.infer(batch)
        best = self.structure.argmax(batch["worth"])
        got, most = ((batch["worth"] * each).sum(-1) for each in (z, best))
        return {"regret": (most - got) / most}


generator = torch.Generator().manual_seed(0)
x = torch.randn(1200, ITEMS, 4, generator=generator)
data = {"x": x, "worth": torch.sigmoid(2 * x[..., 0] * x[..., 1])}
train, held_out = (nestruct.select_rows(data, rows) for rows in torch.arange(1200).split(1000))

# %% [markdown]
# Estimators are called alike, so a comparison is a loop. Each run has a folder of its own.

# %%
estimators = {
    "StructureNES": lambda: nestruct.StructureNES(num_samples=8, num_covariance=0),
    "ScoreNES": lambda: nestruct.ScoreNES(sigma=1.0, num_pairs=8),
    "IMLE": lambda: nestruct.IMLE(),
    "NES": lambda: nestruct.NES(sigma=0.1, population_size=32),
}
regret = {}
for name, make in estimators.items():
    regret[name] = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = Picker()
        adam = torch.optim.Adam(model.parameters(), lr=0.01)
        result = nestruct.fit(
            model,
            make(),
            adam,
            train,
            validation=held_out,
            run=f"runs/{name}-{seed}",
            seed=seed,
            max_steps=150,
            batch_size=50,
            eval_interval=15,
            metric="regret",
            progress=False,
        )
        regret[name].append(100 * float(result.best["regret"]))
    print(f"{name}: {sum(regret[name]) / 3:.1f} % less than the best choice is worth")

# %% [markdown]
# What guessing costs is the measure of all that: three items at random.

# %%
guesses = torch.rand(200, ITEMS, generator=generator)
at_random = Picker().structure.argmax(guesses)
best = Picker().structure.argmax(held_out["worth"])
got, most = ((held_out["worth"] * z).sum(-1) for z in (at_random, best))
chance = 100 * float(((most - got) / most).mean())
assert min(sum(values) / 3 for values in regret.values()) < chance / 2
plots.scores(regret, label="regret on held-out data (%)", baselines={"at random": chance})

# %% [markdown]
# A dot is a seed. The curves have the same runs against what they decoded: a step of one method
# costs more than a step of another.

# %%
plots.curves(sorted(Path("runs").iterdir()), "regret", against="evaluations")

# %% [markdown]
# One small task ranks nothing. [Which estimator](../choosing.md) says what each asks of a model;
# [the scoreboard](../scoreboard.md) compares them on several tasks at equal budgets. `nestruct
# report runs -o page.html` makes a page of runs like these.
