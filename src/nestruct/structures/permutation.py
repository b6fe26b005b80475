"""Permutations, as matrices."""

import itertools
import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.checks import check_count, check_temperature
from nestruct.structures import rows
from nestruct.structures.base import SizedStructure, check_enumerable
from nestruct.structures.k_best import KBestStructure
from nestruct.structures.relaxations.sinkhorn import sinkhorn
from nestruct.structures.solvers import solve


class Permutation(SizedStructure, KBestStructure):
    """A permutation of ``size`` items; ``scores [..., n, n]``, row i takes column j.

    Its Gibbs law is not tractable (the partition function is a permanent); it has a relaxation.

    Args:
        size: How many items.
        sinkhorn_iterations: Scalings of rows and columns in `relax`. The lower the temperature, the
            more of them it takes until rows sum to 1.

    Example:
        >>> import torch, nestruct
        >>> nestruct.Permutation(2).argmax(torch.tensor([[3.0, 2.0], [2.0, 0.0]]))
        tensor([[0., 1.],
                [1., 0.]])
    """

    counts_solved = True
    equal_sizes = True
    one_along = (-1,)
    nested = False

    def __init__(self, size: int, *, sinkhorn_iterations: int = 50) -> None:
        owner = "Permutation"
        self.sinkhorn_iterations = check_count(owner, "sinkhorn_iterations", sinkhorn_iterations, 1)
        self.size = check_count("Permutation", "size", size, 1)
        self.part_shape = (self.size, self.size)

    def __repr__(self) -> str:
        return f"Permutation({self.size})"

    def argmax(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "*batch items items"]:
        """The best assignment of columns to rows. See `Structure.argmax`."""
        self._check("argmax", scores, context)
        return solve(scores, None, "jonker_volgenant", 0, f"{self!r}.argmax")

    def log_count(self, lengths: None = None) -> Float[Tensor, ""]:
        """``log n!``."""
        self._check_size(lengths, "log_count")
        return torch.tensor(math.lgamma(self.size + 1), dtype=torch.float64)

    def enumerate(self, size: int | None = None) -> Float[Tensor, "members items items"]:
        """Every permutation, in lexicographic order."""
        self._check_size(size)
        check_enumerable(repr(self), float(self.log_count()))
        columns = torch.tensor(list(itertools.permutations(range(self.size))))
        return torch.nn.functional.one_hot(columns, self.size).to(torch.get_default_dtype())

    def contains(self, z: Tensor, **context: Tensor) -> Bool[Tensor, "*batch"]:
        """Whether each ``z`` has exactly one 1 in every row and column."""
        binary = self._check_members(z, context)
        return binary & (z.sum(-1) == 1).all(-1) & (z.sum(-2) == 1).all(-1)

    def relax(
        self, perturbed_scores: Tensor, temperature: float | Tensor, **context: Tensor
    ) -> Float[Tensor, "*batch items items"]:
        """A doubly stochastic matrix that tends to the argmax as the temperature falls to 0.

        Gumbel-Sinkhorn of Mena et al. (2018), where the scores carry Gumbel noise. Columns sum to
        1 to rounding, rows up to what `sinkhorn_iterations` leave.

        Raises:
            InputError: A score is NaN or +inf, or a row or column is forbidden as a whole.
        """
        owner = f"{self!r}.relax"
        check_temperature(owner, temperature)
        self._check("relax", perturbed_scores, context)
        scores = perturbed_scores.detach()
        dead = (scores == -torch.inf).all(-1).any(-1) | (scores == -torch.inf).all(-2).any(-1)
        codes = torch.where(dead, rows.NO_MEMBER, rows.OK)
        fine = (scores < torch.inf).flatten(-2).all(-1)
        codes = rows.check_rows(torch.where(fine, codes, rows.NOT_FINITE), owner)
        answered = (codes == rows.OK)[..., None, None]
        usable = torch.where(answered, perturbed_scores, 0.0)
        z = sinkhorn(usable / temperature, self.sinkhorn_iterations)
        return torch.where(answered, z, torch.nan)
