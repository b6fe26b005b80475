"""Exactly k of n items."""

import itertools
import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.noise import Noise
from nestruct.structures.base import GibbsStructure, SizedStructure, check_enumerable
from nestruct.structures.context import Context
from nestruct.structures.draws import Draws
from nestruct.structures.k_best import KBestStructure
from nestruct.structures.relaxations import elementary_symmetric
from nestruct.structures.solvers import solve


class KSubset(SizedStructure, GibbsStructure, KBestStructure):
    """Exactly ``k`` of ``num_items`` items; ``scores [..., num_items]``.

    Example:
        >>> import torch, nestruct
        >>> nestruct.KSubset(4, 2).argmax(torch.tensor([0.1, 0.7, 0.2, 0.5]))
        tensor([0., 1., 0., 1.])
    """

    counts_solved = True
    equal_sizes = True
    nested = False

    def __init__(self, num_items: int, k: int) -> None:
        self.num_items = check_count("KSubset", "num_items", num_items, 1)
        self.k = self.rank = check_count("KSubset", "k", k, 0, self.num_items)
        self.part_shape = (self.num_items,)

    def __repr__(self) -> str:
        return f"KSubset({self.num_items}, {self.k})"

    def argmax(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "*batch items"]:
        """The k best items. See `Structure.argmax`."""
        self._check("argmax", scores, context)
        return solve(scores, None, "top_k", self.k, f"{self!r}.argmax")

    def log_count(self, lengths: None = None) -> Float[Tensor, ""]:
        """``log C(n, k)``."""
        self._check_size(lengths, "log_count")
        return torch.tensor(math.log(math.comb(self.num_items, self.k)), dtype=torch.float64)

    def enumerate(self, size: int | None = None) -> Float[Tensor, "members items"]:
        """Every subset, in lexicographic order."""
        self._check_size(size)
        check_enumerable(repr(self), float(self.log_count()))
        subsets = torch.tensor(
            list(itertools.combinations(range(self.num_items), self.k)), dtype=torch.long
        )
        return torch.zeros(len(subsets), self.num_items).scatter_(1, subsets, 1.0)

    def contains(self, z: Tensor, **context: Tensor) -> Bool[Tensor, "*batch"]:
        """Whether each ``z`` marks exactly k items."""
        return self._check_members(z, context) & (z.sum(-1) == self.k)

    def _log_partition(self, scores: Tensor, **context: Tensor) -> Tensor:
        return elementary_symmetric.log_subsets(scores, self.k)

    def _marginals(self, method: str, scores: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        normal, offset = self._normalise(scores)
        found, value = elementary_symmetric.subset_marginals(normal, self.k)
        answered = self._check_values(method, value.detach(), scores, context)
        return (
            torch.where(answered[..., None], found, torch.nan),
            torch.where(answered, value + offset, torch.nan),
        )

    def sample(
        self, scores: Tensor, draws: torch.Generator | Noise, **context: Tensor
    ) -> Float[Tensor, "*batch items"]:
        """One exact draw per row from the Gibbs law (perturb-and-MAP is Plackett-Luce instead)."""
        source = Draws(f"{self!r}.sample", draws)
        scores = source.repeat(scores)
        checked = self._check("sample", scores, context)
        normal = self._normalise(scores.detach())[0]
        z, value = elementary_symmetric.sample_subsets(normal, self.k, source)
        answered = self._check_values("sample", value, scores, checked)
        return torch.where(answered[..., None], z, torch.nan)
