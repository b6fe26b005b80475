"""Small models that tests share."""

import pytest
import torch
from torch import nn

import nestruct
from nestruct.cli import main
from nestruct.models import mlp
from nestruct.models.appendix import appendix_divergence


class Formula(nn.Module):
    """A loss given as a function of the parameters alone; every example gets the same."""

    def __init__(self, function, *sizes: int) -> None:
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(0)
        shapes = sizes or (3,)
        self.theta = nn.ParameterList(
            torch.randn(size, generator=generator, dtype=torch.float64) for size in shapes
        )

    def loss(self, batch, noise):
        return self.function(*self.theta) + 0 * batch.flatten(1).sum(1)


class Costs(nestruct.StructuredModel):
    """Scores are the parameters, a row for each example; the loss is a function of z."""

    def __init__(self, structure, cost, rows: int = 2, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.structure, self.cost = structure, cost
        size = (rows, *structure.part_shape)
        self.scores = nn.Parameter(torch.randn(size, generator=generator, dtype=torch.float64))
        self.batch = torch.arange(rows)

    def encode(self, batch):
        return self.scores[batch]

    def decode(self, batch, z):
        return -self.cost(z)


class Appendix(nestruct.StructuredVAE):
    """A loss whose divergence depends on the structure: that of the paper's appendix."""

    def loss_at(self, batch, scores, z):
        return appendix_divergence(self.structure, scores, z) - self.decode(batch, z)


def random_costs(structure, rows: int = 2, seed: int = 1) -> Costs:
    """Every member has a loss of its own, drawn for each example."""
    members = structure.enumerate().double()
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, len(members), generator=generator, dtype=torch.float64)

    def cost(z):
        found = (z[..., None, :] == members).all(-1)  # [..., batch, members]
        return torch.where(z.isnan().any(-1), torch.nan, (found * table).sum(-1))

    return Costs(structure, cost, rows, seed)


def appendix_vae():
    """`vae` with the loss of the paper's appendix."""
    return vae(kind=Appendix)


def vae(
    structure=None,
    inputs: int = 6,
    hidden: int = 5,
    seed: int = 0,
    kind: type = nestruct.StructuredVAE,
    **options,
):
    """A small VAE over bits, in float64; scores are flat parts."""
    structure = nestruct.Categorical(4) if structure is None else structure
    parts = structure.part_shape[0]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(mlp(inputs, hidden, parts), mlp(parts, hidden, inputs), structure, **options)
    return model.double()


def bits(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) < 0.5).double()


def gradient(model: nn.Module) -> torch.Tensor:
    """The ``.grad`` of all parameters, flat; zeros where there is none."""
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]
    )


class Sentences(nestruct.StructuredModel):
    """Sentences ``{"x": [batch, words, 3], "words": [batch]}``; any smooth loss of soft trees."""

    def __init__(self, structure, seed: int = 0) -> None:
        super().__init__()
        self.structure = structure
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.heads, self.dependents = nn.Linear(3, 4), nn.Linear(3, 4)
            self.decoder = nn.Linear(3, 3)
        self.double()

    def context(self, batch):
        return {"lengths": batch["words"]}

    def encode(self, batch):
        x = nn.functional.pad(batch["x"], (0, 0, 1, 0))  # the root
        return self.heads(x) @ self.dependents(x).mT

    def decode(self, batch, z):
        x = nn.functional.pad(batch["x"], (0, 0, 1, 0))
        return -(z.mT @ self.decoder(x) - x).square().sum((-1, -2))


def sentences(*lengths: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), max(lengths), 3, generator=generator, dtype=torch.float64)
    return {"x": x, "words": torch.tensor(lengths)}


def run_command(*words: object) -> int:
    """``nestruct WORDS...`` in this process; its exit status."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return 0 if stop.value.code is None else int(stop.value.code)


def assert_mean(trials: torch.Tensor, expected: torch.Tensor) -> None:
    """Asserts that independent estimates, one per row, are right on average.

    Each entry within 5 standard errors, all together within what chance explains, and not only
    because the errors are large.
    """
    error = trials.std(0) / len(trials) ** 0.5
    off = (trials.mean(0) - expected) / error.clamp(min=1e-12)
    assert off.abs().max() < 5
    assert off.square().mean() < 1.6  # 1 if all is well
    assert torch.nn.functional.cosine_similarity(trials.mean(0), expected, dim=0) > 0.8
