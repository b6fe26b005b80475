"""Short trainings of a small VAE, which tests of training share; some of them crash."""

import json

import torch
import toys

import nestruct
from nestruct.models import mlp
from nestruct.training.run import read_checkpoint
from nestruct.training.run.packing import pack

PATTERNS = toys.bits(4, 6, seed=3)  # to be found by the four categories
DATA, HELD_OUT = PATTERNS.repeat(10, 1), PATTERNS.repeat(5, 1)


class CrashError(Exception):
    pass


def crash_at(step: int):
    def callback(record):
        if record["step"] >= step:
            raise CrashError

    return callback


class Momentum(nestruct.estimators.Estimator):
    """An estimator with state of every kind: a running mean, a counter, a parameter of its own."""

    kind = "exact"

    def __init__(self) -> None:
        self.mean = torch.zeros((), dtype=torch.float64)
        self.calls = 0
        self.offset = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def parameters(self):
        return [self.offset]

    def state_dict(self):
        return {"mean": self.mean, "calls": self.calls, "offset": self.offset.data}

    def load_state_dict(self, state):
        self.mean, self.calls = state["mean"], state["calls"]
        self.offset.data.copy_(state["offset"])

    def estimate(self, model, layout, batch, noise):
        self.calls += 1
        exact, stats = nestruct.Enumeration().estimate(model, layout, batch, noise)
        self.mean = 0.9 * self.mean + 0.1 * stats["loss"]
        factor = 1 + 0.01 * self.mean + self.offset.detach()
        return [*(gradient * factor for gradient in exact), self.mean * 1e-2], stats


def nes(**options):
    return nestruct.NES(sigma=0.1, population_size=6, mode="vmap", **options)


def adam(model, **options):
    return torch.optim.Adam(model.parameters(), **options)


def train(make=nes, *, scheduler=None, lr=0.02, **options):
    model, estimator = toys.vae(), make()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    options = {"max_steps": 12, "batch_size": 8, "eval_interval": 4, "progress": False} | options
    options.setdefault("validation", HELD_OUT)
    result = nestruct.fit(
        model,
        estimator,
        optimizer,
        DATA,
        scheduler=None if scheduler is None else scheduler(optimizer),
        **options,
    )
    return model, result


def metrics(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("timing")
    return lines


def assert_same_run(one, two):
    assert metrics(one) == metrics(two)
    assert (one / "structures.jsonl").read_text() == (two / "structures.jsonl").read_text()
    names = {path.name for path in (one / "checkpoints").iterdir()} & {"last", "best"}
    for name in names:
        a, b = (read_checkpoint(run / "checkpoints" / name) for run in (one, two))
        assert a.step == b.step
        assert a.model.keys() == b.model.keys()
        for key in a.model:
            assert torch.equal(a.model[key], b.model[key]), key
        assert a.estimator.keys() == b.estimator.keys()
        states = [pack(one.estimator, "the estimator")[1] for one in (a, b)]
        torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)
        assert str(a.optimizer) == str(b.optimizer)


class Normed(nestruct.StructuredVAE):
    """With batch normalisation, whose statistics move in training mode."""

    def __init__(self, **options):
        torch.manual_seed(0)
        encoder = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4)
        )
        super().__init__(encoder, mlp(4, 5, 6), nestruct.Categorical(4), **options)


def train_normed(**options):
    model = Normed()
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    options = {"max_steps": 10, "eval_interval": 2, "progress": False} | options
    data, held_out = DATA.float(), HELD_OUT.float()
    return model, nestruct.fit(model, nes(), adam, data, validation=held_out, **options)
