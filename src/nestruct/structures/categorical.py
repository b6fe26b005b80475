"""One of K classes."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.noise import Noise
from nestruct.structures import rows
from nestruct.structures.base import GibbsStructure, SizedStructure
from nestruct.structures.draws import Draws
from nestruct.structures.k_best import KBestStructure
from nestruct.structures.relaxations.log_domain import FORBIDDEN
from nestruct.structures.solvers import solve


class Categorical(SizedStructure, GibbsStructure, KBestStructure):
    """One of ``num_classes`` classes, one-hot; ``scores [..., num_classes]`` are logits.

    Perturb-and-MAP with Gumbel noise is exactly its Gibbs law (the paper's appendix C); for larger
    structures it is another one.

    Example:
        >>> import torch, nestruct
        >>> nestruct.Categorical(3).argmax(torch.tensor([0.1, 0.7, 0.2]))
        tensor([0., 1., 0.])
    """

    counts_solved = True
    equal_sizes = True
    one_along = (-1,)
    nested = False
    rank = 1

    def __init__(self, num_classes: int) -> None:
        self.num_classes = check_count("Categorical", "num_classes", num_classes, 1)
        self.part_shape = (self.num_classes,)

    def __repr__(self) -> str:
        return f"Categorical({self.num_classes})"

    def argmax(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "*batch classes"]:
        """The best class, one-hot. See `Structure.argmax`."""
        self._check("argmax", scores, context)
        return solve(scores, None, "top_k", 1, f"{self!r}.argmax")

    def log_count(self, lengths: None = None) -> Float[Tensor, ""]:
        """``log K``."""
        self._check_size(lengths, "log_count")
        return torch.tensor(math.log(self.num_classes), dtype=torch.float64)

    def enumerate(self, size: int | None = None) -> Float[Tensor, "members classes"]:
        """Every class, in order."""
        self._check_size(size)
        return torch.eye(self.num_classes)

    def contains(self, z: Tensor, **context: Tensor) -> Bool[Tensor, "*batch"]:
        """Whether each ``z`` is one-hot."""
        return self._check_members(z, context) & (z.sum(-1) == 1)

    def _log_partition(self, scores: Tensor, **context: Tensor) -> Tensor:
        return scores.logsumexp(-1)

    def entropy(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "*batch"]:
        """The entropy of ``softmax(scores)`` in nats. Differentiable."""
        # In closed form, with few operations: this is on the way of every categorical VAE. The
        # clamp makes 0 log 0 vanish, derivative included; a row without an answer is NaN by itself.
        context = self._check("entropy", scores, context)
        if rows.may_raise(scores):
            self._log_z("entropy", scores, context)
        log_chances = scores.log_softmax(-1).clamp(min=FORBIDDEN)
        return -(log_chances.exp() * log_chances).sum(-1)

    def sample(
        self, scores: Tensor, draws: torch.Generator | Noise, **context: Tensor
    ) -> Float[Tensor, "*batch classes"]:
        """One exact draw per row from ``softmax(scores)``."""
        source = Draws(f"{self!r}.sample", draws)
        scores = source.repeat(scores)
        self._check("sample", scores, context)
        self._log_z("sample", scores, {})
        shifted = scores.detach() - scores.detach().amax(-1, keepdim=True)  # keeps the noise's bits
        return solve(shifted + source.gumbel(scores), None, "top_k", 1, f"{self!r}.sample")
