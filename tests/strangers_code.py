"""Modules outside of the package, as users have them: written to a folder, and forgotten later."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTS = '''
"""Parts of recipes that somebody wrote; `imported.txt` says that they were imported."""

import os
from pathlib import Path

import torch
import nestruct

Path(__file__).with_name("imported.txt").write_text("yes")


class Bits:
    """Random bits.

    Args:
        num_train: How many.
    """

    num_inputs = 4

    def __init__(self, num_train: int = 12):
        self.num_train = num_train

    def splits(self):
        draw = torch.Generator().manual_seed(0)
        return {
            name: (torch.rand(self.num_train, 4, generator=draw) < 0.5).float()
            for name in ("train", "validation", "test")
        }


class Vae(nestruct.StructuredVAE):
    """A small VAE."""

    def __init__(self, num_inputs, *, structure: nestruct.Structure, hidden: int = 3):
        mlp = nestruct.models.mlp
        size = structure.part_shape[0]
        super().__init__(mlp(num_inputs, hidden, size), mlp(size, hidden, num_inputs), structure)


class MyNES(nestruct.NES):
    """NES by another name."""


def first(scores):
    return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])


one_of_three = nestruct.BlackBox(first, (3,))


def one_of(n: int = 3) -> nestruct.Structure:
    """Any number of classes."""
    return nestruct.Categorical(n)


def bits_of(num_train: int = 6):
    return Bits(num_train)


def vae_of(num_inputs, structure, hidden: int = 2):
    return Vae(num_inputs, structure=structure, hidden=hidden)


def nes_of(sigma: float):
    return MyNES(sigma=sigma, population_size=4)


def nothing(**options):
    return None


def broken(size: int = 1):
    return [][size]
'''


@contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """What is imported from a folder, or put on Python's path, is gone afterwards."""
    path = sys.path[:]
    try:
        yield
    finally:
        sys.path[:] = path
        forget(folder)


def forget(folder: Path) -> None:
    """Lets modules be imported anew, as by another process."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


def write_package(folder: Path, name: str, entries: dict[str, dict[str, str]]) -> None:
    """A package as pip leaves it: its module is PARTS, its entry points are given by group."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(PARTS)
    about = folder / f"{name}-1.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items())])
        for group, points in entries.items()
    ]
    (about / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
