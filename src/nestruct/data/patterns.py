"""Noisy copies of a few random patterns: small binary images that need no download."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.noise import derive_seed


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """Each example is one of a few random blots, with pixels flipped at random.

    Args:
        num_patterns: Blots.
        side: Pixels per side.
        flip: How often a pixel is flipped.
        num_train: Examples to train on.
        num_validation: Examples to select by.
        num_test: Examples to report on.
        seed: With the sizes, the identity of the data.

    Example:
        >>> from nestruct.data import Patterns
        >>> Patterns(side=8, num_train=5).splits()["train"].shape
        torch.Size([5, 64])
    """

    num_patterns: int = 10
    side: int = 14
    flip: float = 0.05
    num_train: int = 2000
    num_validation: int = 500
    num_test: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_patterns", "side", "num_train", "num_validation", "num_test"):
            check_count("Patterns", name, getattr(self, name), 1)
        if not 0 <= self.flip <= 0.5:
            raise InputError(f"Patterns: flip must be from 0 to 0.5, got {self.flip!r}.")

    @property
    def num_inputs(self) -> int:
        """Pixels of an example."""
        return self.side**2

    def splits(self) -> dict[str, Tensor]:
        """``train``, ``validation`` and ``test``: 0/1, ``[examples, pixels]``."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed))
        fields = torch.randn(self.num_patterns, 1, self.side, self.side, generator=generator)
        # Smooth noise above its mean makes blots.
        smooth = torch.nn.functional.avg_pool2d(fields, 5, 1, 2, count_include_pad=False)
        blots = (smooth > 0).flatten(1).float()
        sizes = {
            "train": self.num_train,
            "validation": self.num_validation,
            "test": self.num_test,
        }
        splits = {}
        for name, size in sizes.items():
            chosen = blots[torch.randint(self.num_patterns, (size,), generator=generator)]
            flips = torch.rand(chosen.shape, generator=generator) < self.flip
            splits[name] = (chosen - flips.float()).abs()
        return splits

    def drawing(self, batch: Tensor) -> dict[str, Any]:
        """What a report needs to draw examples: rows of 0 and 1."""
        return {"images": [_rows(image, self.side) for image in batch.tolist()]}


def _rows(image: list[float], side: int) -> list[str]:
    digits = "".join(str(int(pixel)) for pixel in image)
    return [digits[start : start + side] for start in range(0, len(digits), side)]
