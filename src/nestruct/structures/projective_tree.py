"""Dependency trees without crossing arcs."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nestruct.checks import check_temperature
from nestruct.noise import Noise
from nestruct.structures.dependency_tree import DependencyTree
from nestruct.structures.draws import Draws
from nestruct.structures.k_programme import KBestProgramme
from nestruct.structures.recurrence import Recurrence
from nestruct.structures.relaxations import soft_eisner
from nestruct.structures.relaxations.soft_parse import soft_parse


class ProjectiveTree(KBestProgramme, DependencyTree):
    """Dependency trees whose arcs, the root's included, do not cross when drawn above the words.

    Args:
        single_root: Whether exactly one word hangs from the root (Universal Dependencies), or any
            number.

    Example:
        >>> import torch, nestruct
        >>> scores = torch.tensor([[0.0, 1.0, 5.0], [0.0, 0.0, 1.0], [0.0, 4.0, 0.0]])
        >>> nestruct.ProjectiveTree().argmax(scores)  # root -> word 2 -> word 1
        tensor([[0., 0., 1.],
                [0., 0., 0.],
                [0., 1., 0.]])
    """

    _solver = "eisner"
    kbest = DependencyTree.kbest  # Eisner's kernel is so fast that lists by argmax take less time

    def soft_argmax(
        self, perturbed_scores: Tensor, temperature: float | Tensor, **context: Tensor
    ) -> Float[Tensor, "*batch tokens tokens"]:
        """What differentiable perturb-and-parse decodes: Eisner's algorithm with softmax inside.

        A mixture of trees that tends to ``argmax(perturbed_scores)`` as the temperature falls to 0,
        as `relax` does, but with other weights; see `nestruct.structures.relaxations.soft_parse`.
        Differentiable once.
        """
        check_temperature(f"{self!r}.soft_argmax", temperature)
        context = self._check("soft_argmax", perturbed_scores, context)
        lengths = context.get("lengths")
        scores = perturbed_scores / temperature
        size, lead = scores.shape[-1], scores.shape[:-2]
        normal, _ = self._normalise(scores, **context)
        finite = normal.detach().isfinite().flatten(-2).all(-1)
        normal = torch.where(finite[..., None, None], normal, 0.0)
        words = torch.full(lead, size - 1, device=scores.device) if lengths is None else lengths
        z, value = soft_parse(
            normal.reshape(-1, size, size),
            words.reshape(-1).clamp(0, size - 1),
            single_root=self.single_root,
        )
        value = torch.where(finite, value.view(lead), torch.nan)
        answered = self._check_values("soft_argmax", value, scores, context)
        return torch.where(answered[..., None, None], z.view(scores.shape), torch.nan)

    def _problem(
        self, method: str, scores: Tensor, context: Mapping[str, Any]
    ) -> tuple[Recurrence, Tensor, Tensor]:
        lengths, size = self._check(method, scores, context).get("lengths"), scores.shape[-1]
        recurrence = _recurrence(self.single_root, size)
        counted = torch.where(self.counting(scores, lengths), scores, -torch.inf)
        if lengths is None:
            lengths = torch.full((), size - 1, device=scores.device)
        goals = recurrence.goals_at(lengths).expand(scores.shape[:-2])
        return recurrence, goals, counted.flatten(-2)

    def _log_count(self, lengths: Tensor) -> Tensor:
        if self.single_root:  # C(3n - 2, n - 1) / n
            return _log_binomial(3 * lengths - 2, lengths - 1) - lengths.log()
        return _log_binomial(3 * lengths, lengths) - (2 * lengths + 1).log()

    def _legal_heads(
        self, heads: Int[Tensor, "*batch tokens"], lengths: Int[Tensor, "*batch"]
    ) -> Tensor:
        node = torch.arange(heads.shape[-1], device=heads.device)
        words = (node > 0) & (node <= lengths[..., None])
        # The root and padding get the empty arc (0, 0).
        low = torch.where(words, torch.minimum(heads, node), 0)
        high = torch.where(words, torch.maximum(heads, node), 0)
        low_a, high_a, low_b, high_b = (
            low[..., None],
            high[..., None],
            low[..., None, :],
            high[..., None, :],
        )
        crossing = (low_a < low_b) & (low_b < high_a) & (high_a < high_b)
        return super()._legal_heads(heads, lengths) & ~crossing.flatten(-2).any(-1)

    def _log_partition(
        self, scores: Tensor, lengths: Tensor | None = None, **context: Tensor
    ) -> Tensor:
        return soft_eisner.log_projective_trees(scores, lengths, single_root=self.single_root)

    def sample(
        self, scores: Tensor, draws: torch.Generator | Noise, **context: Tensor
    ) -> Float[Tensor, "*batch tokens tokens"]:
        """One exact draw per row from the Gibbs law."""
        source = Draws(f"{self!r}.sample", draws)
        scores = source.repeat(scores)
        context = self._check("sample", scores, context)
        failed = self._log_z("sample", scores, context).isnan()
        normal, _ = self._normalise(scores.detach(), **context)
        z = soft_eisner.sample_projective_trees(
            normal, context.get("lengths"), single_root=self.single_root, draws=source
        )
        return torch.where(failed[..., None, None], torch.nan, z)


@functools.lru_cache(maxsize=32)
def _recurrence(single_root: bool, size: int) -> Recurrence:
    """That of `solvers.eisner`, whose spans are the nodes."""
    shape = (6, size, size)
    inner, arc_right, arc_left, right, left, root = np.arange(6 * size * size).reshape(shape)
    part, first = np.arange(size * size).reshape(size, size), int(single_root)
    levels: list[tuple] = []
    for width in range(1, size - first):
        i = np.arange(first, size - width)
        j, steps = i + width, np.arange(width)
        split, words = i[:, None] + steps, i > 0  # no arc goes to the root
        levels.append((inner[i, j], right[i[:, None], split], left[split + 1, j[:, None]], -1))
        levels.append((arc_right[i, j], inner[i, j][:, None], -1, part[i, j][:, None]))
        later = split + 1
        levels.append((right[i, j], arc_right[i[:, None], later], right[later, j[:, None]], -1))
        i, j, split = i[words], j[words], split[words]
        levels.append((arc_left[i, j], inner[i, j][:, None], -1, part[j, i][:, None]))
        levels.append((left[i, j], left[i[:, None], split], arc_left[split, j[:, None]], -1))
    if not single_root:
        return Recurrence(shape, size * size, levels, right[0])
    for last in range(1, size):
        word = np.arange(1, last + 1)
        levels.append((root[:1, last], left[1, word], right[word, last], part[0, word]))
    return Recurrence(shape, size * size, levels, root[0])


def _log_binomial(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
