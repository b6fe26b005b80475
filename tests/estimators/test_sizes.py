"""Instances of different sizes: neither what padding holds nor how much there is matters."""

import pytest
import torch
from torch import nn
from torch.nn.functional import pad
from toys import gradient

import nestruct
from nestruct import (
    AIMLE,
    IMLE,
    NES,
    BlackboxDifferentiation,
    Identity,
    Noise,
    PerturbedOptimizer,
    Reinforce,
    ScoreNES,
    SparseMAP,
    StructureNES,
)
from nestruct.objective import gumbel_divergence

SIZES = (3, 1, 4)


def fill(worth, weights, room, mask):
    """Item after item while it fits and is worth it; all rows at once."""
    z, left = torch.zeros_like(worth), room.clone()
    for item in range(worth.shape[-1]):
        fits = (worth[:, item] > 0) & (weights[:, item] <= left) & mask[:, item]
        z[:, item] = fits.to(worth)
        left = left - z[:, item] * weights[:, item]
    return z


def fill_one(worth, weights, room):
    everything = torch.ones_like(worth, dtype=torch.bool)
    return fill(worth[None], weights[None], room[None], everything[None])[0]


class Items(nestruct.StructuredModel):
    """A linear score per item; the loss is quadratic in what is packed, plus the Gumbel KL."""

    def __init__(self, structure, forbid: bool = False) -> None:
        super().__init__()
        self.structure, self.forbid = structure, forbid
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 1).double()

    def context(self, batch):
        return {name: batch[name] for name in ("weights", "room", "mask")}

    def encode(self, batch):
        scores = self.layer(batch["x"])[..., 0]
        return scores.masked_fill(~batch["mask"], -torch.inf) if self.forbid else scores

    def decode(self, batch, z):
        value = (z * batch["profit"]).sum(-1)
        return value - value.square()

    def divergence(self, scores, batch):
        return 0.1 * gumbel_divergence(self.structure, scores, **self.context(batch))


def example(extra: int = 0, garbage: float = 7.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64)
    weights, profit = torch.rand(2, 3, 4, generator=generator, dtype=torch.float64)
    mask = torch.arange(4) < torch.tensor(SIZES)[:, None]
    batch = {"x": x, "weights": weights, "profit": profit, "mask": mask}
    for name, tensor in batch.items():
        shape = mask[..., None] if tensor.dim() == 3 else mask
        if name != "mask":
            tensor = torch.where(shape, tensor, garbage)
        after = (0, 0) * (tensor.dim() - 2) + (0, extra)
        batch[name] = pad(tensor, after, value=0 if name == "mask" else garbage)
    return batch | {"room": torch.tensor([1.0, 0.7, 1.2], dtype=torch.float64)}


BATCHED = nestruct.BlackBox(fill, (None,))
APART = nestruct.BlackBox(fill_one, (None,), batched=False)
NUMBERS = nestruct.BlackBox(fill, (None,), binary=False)
ESTIMATORS = {
    "NES": lambda: NES(sigma=0.3, population_size=12, mode="vmap"),
    "NES in a loop": lambda: NES(sigma=0.3, population_size=12, mode="loop", chunk_size=4),
    "NES per pair": lambda: NES(
        sigma=0.3, population_size=12, mode="vmap", minibatch="per_pair", pair_batch_size=2
    ),
    "ScoreNES": lambda: ScoreNES(num_pairs=4),
    "StructureNES": lambda: StructureNES(num_samples=6, num_covariance=5),
    "Reinforce": lambda: Reinforce(num_samples=4),
    "IMLE": lambda: IMLE(num_samples=4),
    "IMLE strength": lambda: IMLE(num_samples=4, strength=3.0),
    "Identity": lambda: Identity(num_samples=4),
    "AIMLE": lambda: AIMLE(num_samples=4),
    "BlackboxDifferentiation": lambda: BlackboxDifferentiation(),
    "PerturbedOptimizer": lambda: PerturbedOptimizer(num_samples=4),
    "Reinforce batch": lambda: Reinforce(num_samples=2, baseline="batch"),
    "SparseMAP": lambda: SparseMAP(max_iterations=4),
}


def step(model, make, batch) -> torch.Tensor:
    report = make().backward(model, batch, seed=3)
    assert int(report.num_failed) == 0
    assert report.loss.isfinite()
    return gradient(model)


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
def test_gradients_are_those_without_padding(make):
    expected = step(Items(BATCHED), make, example(garbage=0.0))
    assert (expected != 0).any()
    for structure in (BATCHED, APART):
        for extra, garbage, forbid in ((0, 7.0, False), (3, -20.0, False), (2, 7.0, True)):
            found = step(Items(structure, forbid), make, example(extra, garbage))
            torch.testing.assert_close(found, expected)


OF_NUMBERS = [
    *("ScoreNES", "StructureNES", "Reinforce", "IMLE", "Identity"),
    *("AIMLE", "BlackboxDifferentiation", "PerturbedOptimizer"),
]


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_numbers_too(name):
    expected = step(Items(NUMBERS), ESTIMATORS[name], example(garbage=0.0))
    torch.testing.assert_close(step(Items(NUMBERS), ESTIMATORS[name], example(3)), expected)


@pytest.mark.parametrize("structure", [BATCHED, APART], ids=["batched", "apart"])
def test_losses_and_draws_are_those_of_each_instance_alone(structure):
    model, batch = Items(structure), example(2)
    losses = model.loss(batch, Noise(seed=0))
    z = model.sample(batch, 30, Noise(seed=0))
    assert not z[..., ~batch["mask"]].any()
    for row, size in enumerate(SIZES):
        alone = {name: value[row : row + 1] for name, value in batch.items()}
        alone = {n: v if n == "room" else v[:, :size] for n, v in alone.items()}
        noise = Noise(seed=0, example=torch.tensor([row]))
        torch.testing.assert_close(model.loss(alone, noise)[0], losses[row])
        assert torch.equal(model.sample(alone, 30, noise)[:, 0], z[:, row, :size])
        assert torch.equal(model.infer(alone)[0], model.infer(batch)[row, :size])


class VAE(nestruct.StructuredVAE):
    def context(self, batch):
        return {"mask": batch["mask"]}


class PerPart(nn.Module):
    """Encodes, or with ``z`` decodes, through the vectors of each example's parts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3, dtype=torch.float64))

    def forward(self, first, batch=None):
        if batch is None:
            return (first["parts"] @ self.weight @ first["x"][..., None])[..., 0]
        return (first[..., None] * batch["parts"]).sum(-2) @ self.weight


def vae_and_batches() -> tuple[VAE, dict, dict]:
    """A VAE of vectors that are not padded, and a batch without padding and with it."""
    box = nestruct.BlackBox(lambda s: s > 0, (None,))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    batch = {"x": x, "parts": example(0, 0.0)["x"], "mask": example()["mask"]}
    wide = batch | {"parts": example(3, 9.0)["x"], "mask": example(3)["mask"]}
    return VAE(PerPart(), PerPart(), box, likelihood="gaussian"), batch, wide


def test_a_learned_baseline_reads_what_is_not_padded():
    model, batch, wide = vae_and_batches()
    make = nestruct.NVIL
    torch.testing.assert_close(step(model, make, wide), step(model, make, batch))


def test_the_divergence_of_a_vae_leaves_padding_out():
    vae, batch, wide = vae_and_batches()
    x, box = batch["x"], vae.structure
    losses = vae.loss(batch, Noise(seed=0))
    torch.testing.assert_close(vae.loss(wide, Noise(seed=0)), losses)
    without = VAE(vae.encoder, vae.decoder, box, likelihood="gaussian", divergence="none")
    alone = batch["parts"][1, :1] @ x[1]  # the example of one part
    divergence = (losses - without.loss(batch, Noise(seed=0)))[1]
    torch.testing.assert_close(divergence, (alone + alone.neg().exp() - 1)[0])


def test_true_structures_may_hold_anything_in_padding():
    model, batch = Items(BATCHED), example(2)
    truth = model.infer(batch)
    known = batch | {"z": torch.where(batch["mask"], truth, -100.0)}  # as labels are often padded
    found = nestruct.evaluate(model, known)
    assert found["f1_map"] == 1
    assert 0 < found["f1_sample"] < 1
    smaller = example(0) | {"z": truth[:, :4]}
    assert nestruct.evaluate(model, smaller) == pytest.approx(found, abs=1e-12)
