"""Steps of every estimator, for one process or, under torchrun, for several: `python on_ranks.py
FILE` writes what they gave to FILE, and the numbers of their collectives."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
import toys
from torch import Tensor, nn

import nestruct
from nestruct.estimators.registry import ESTIMATORS
from nestruct.models import RelationalVAE
from nestruct.structures import SpanningTree

NUM_EXAMPLES = 7  # which neither two nor three divide
POPULATION: dict[str, Any] = {"sigma": 0.1, "population_size": 14, "mode": "vmap"}
SMALL: dict[str, dict[str, Any]] = {
    "NES": POPULATION,
    "SNES": POPULATION,
    "NVIL": {"hidden_size": 8},
}


class Labelled(nestruct.StructuredModel):
    """Categories that are told, by a network with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))

    def loss(self, batch, noise):
        classes = batch[:, :4].argmax(-1)
        return nn.functional.cross_entropy(self.encoder(batch), classes, reduction="none")


class Normalised(nestruct.StructuredModel):
    """Batch normalisation in encoder and decoder, of rows and of channels; NaN for one example."""

    def __init__(self, failing: int = -1) -> None:
        super().__init__()
        self.structure = SpanningTree(4)
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6))
        self.decoder = nn.Sequential(nn.Conv1d(1, 3, 3), nn.BatchNorm1d(3), nn.Flatten())
        self.out = nn.Linear(12, 6)
        self.failing = failing

    def encode(self, batch):
        return self.encoder(batch["x"])

    def decode(self, batch, z):
        hidden = self.decoder(z.reshape(-1, 1, 6))
        x = self.out(hidden).view(*z.shape[:-1], 6)
        loss = (x - batch["x"]).square().sum(-1)
        return torch.where(batch["place"] == self.failing, torch.nan, -loss)


def examples(count: int = NUM_EXAMPLES) -> dict[str, Tensor]:
    return {"x": toys.bits(count, 6, seed=3) + 100, "place": torch.arange(count)}


def relational() -> tuple[nn.Module, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(NUM_EXAMPLES, 4, 5, 2, generator=generator, dtype=torch.float64)
    return RelationalVAE(4, 5, hidden_size=6, num_rollout_steps=2), {"x": x}


def problem(name: str) -> tuple[nn.Module, Any]:
    """A model that an estimator can train, and its batch."""
    if name == "DPP":
        return toys.Sentences(nestruct.ProjectiveTree()), toys.sentences(2, 3, 1, 3, 2, 4, 1)
    if name == "Supervised":
        return Labelled(), toys.bits(NUM_EXAMPLES, 6, seed=3)
    return Normalised(), examples()


def estimator(name: str, **options: Any) -> Any:
    return ESTIMATORS[name](**(SMALL.get(name, {}) | options))


Case = tuple[Callable[[], Any], Callable[[], tuple[nn.Module, Any]]]
CASES: dict[str, Case] = {
    name: (partial(estimator, name), partial(problem, name)) for name in ESTIMATORS
}
CASES["NES, per pair"] = (
    partial(estimator, "NES", gumbel="per_member", minibatch="per_pair", pair_batch_size=2),
    partial(problem, "NES"),
)
CASES["SNES, tensor"] = (partial(estimator, "SNES", adapt="tensor"), partial(problem, "SNES"))
for baseline in ("batch", "ema"):
    CASES[f"Reinforce, {baseline}"] = (
        partial(estimator, "Reinforce", baseline=baseline, num_samples=1),
        partial(problem, "Reinforce"),
    )
CASES["Reinforce, a Markov chain"] = (
    partial(estimator, "Reinforce", law="gibbs", sampler="mcmc", num_mcmc_steps=5),
    partial(problem, "Reinforce"),
)
CASES["NVIL, as published"] = (
    partial(estimator, "NVIL", averages="residuals"),
    partial(problem, "NVIL"),
)
CASES["StructureNES, gibbs"] = (
    partial(estimator, "StructureNES", covariance="gibbs"),
    partial(problem, "StructureNES"),
)
CASES["AIMLE, central"] = (
    partial(estimator, "AIMLE", differences="central", num_samples=2),
    partial(problem, "AIMLE"),
)
for name in ("NES", "StructureNES", "NVIL"):
    CASES[f"{name}, relational"] = (partial(estimator, name), relational)
for name in ("SST", "StructureNES", "Reinforce", "Reinforce, batch", "NVIL", "AIMLE"):
    make = CASES[name][0]
    CASES[f"{name}, one fails"] = (make, lambda: (Normalised(failing=5), examples()))
    CASES[f"{name}, two examples"] = (make, lambda: (Normalised(), examples(2)))


def two_steps(name: str) -> dict[str, Tensor]:
    """Gradients, statistics and parameters of two steps."""
    make, make_problem = CASES[name]
    torch.manual_seed(0)
    model, batch = make_problem()
    model, method = model.double(), make()
    method.prepare(model, batch, seed=1)
    optimizer = torch.optim.SGD([*model.parameters(), *method.parameters()], lr=1e-6)
    found: dict[str, Tensor] = {}
    normalised: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.register_forward_hook(lambda module, *_: normalised.append(module))
    for step in range(2):
        report = method.backward(model, batch, seed=1, step=step)
        own = [p.grad.flatten() for p in method.parameters()]
        found[f"gradient {step}"] = torch.cat([toys.gradient(model), *own])
        statistics = (report.loss, report.loss_std, report.grad_norm)
        found[f"statistics {step}"] = torch.stack([value.double() for value in statistics])
        counts = (report.num_failed, report.num_decoded, report.num_solved, report.num_evaluations)
        known = [int(value) for value in counts if value is not None]
        found[f"counts {step}"] = torch.tensor(known)
        optimizer.step()
    for key, value in method.state_dict().items():
        if isinstance(value, Tensor):
            found[f"estimator's {key}"] = value.double()
    found["normalised"] = torch.tensor(len(normalised))
    found["state"] = torch.cat([value.double().flatten() for value in model.state_dict().values()])
    return found


def main(file: str) -> None:
    dist.init_process_group("gloo")
    calls: list[int] = []
    all_reduce = dist.all_reduce

    def counted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        calls.append(tensor.numel() * tensor.element_size())
        return all_reduce(tensor, *args, **options)

    dist.all_reduce = counted  # what crosses the wire is counted where it does
    found: dict[str, Tensor] = {}
    for name in CASES:
        calls.clear()
        found |= {f"{name}: {key}": value for key, value in two_steps(name).items()}
        found[f"{name}: calls"] = torch.tensor(len(calls))
        found[f"{name}: largest"] = torch.tensor(max(calls))
    safetensors.torch.save_file(found, f"{file}-{dist.get_rank()}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
