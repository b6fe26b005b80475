"""Dependency trees whose arcs may cross."""

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.noise import Noise
from nestruct.structures.dependency_tree import DependencyTree
from nestruct.structures.draws import Draws
from nestruct.structures.relaxations import matrix_tree


class NonProjectiveTree(DependencyTree):
    """All dependency trees: arborescences below the root.

    Args:
        single_root: Whether exactly one word hangs from the root (Universal Dependencies), or any
            number.

    Example:
        >>> import torch, nestruct
        >>> scores = torch.tensor([[0.0, 3.0, 3.0], [0.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
        >>> nestruct.NonProjectiveTree(single_root=False).argmax(scores)  # two root arcs
        tensor([[0., 1., 1.],
                [0., 0., 0.],
                [0., 0., 0.]])
    """

    _solver = "edmonds"

    def _log_count(self, lengths: Tensor) -> Tensor:
        if self.single_root:  # n^(n-1)
            return (lengths - 1) * lengths.log()
        return (lengths - 1) * (lengths + 1).log()

    def _log_partition(
        self, scores: Tensor, lengths: Tensor | None = None, **context: Tensor
    ) -> Tensor:
        return matrix_tree.log_arborescences(scores, lengths, single_root=self.single_root)

    def sample(
        self, scores: Tensor, draws: torch.Generator | Noise, **context: Tensor
    ) -> Float[Tensor, "*batch tokens tokens"]:
        """One exact draw per row from the Gibbs law."""
        source = Draws(f"{self!r}.sample", draws)
        scores = source.repeat(scores)
        context = self._check("sample", scores, context)
        failed = self._log_z("sample", scores, context).isnan()
        normal, _ = self._normalise(scores.detach(), **context)
        z = matrix_tree.sample_arborescences(
            normal, context.get("lengths"), single_root=self.single_root, draws=source
        )
        return torch.where(failed[..., None, None], torch.nan, z)
