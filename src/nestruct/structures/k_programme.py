"""The k best members and max-marginals of spaces that have a recurrence, in one pass over it."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.structures import rows
from nestruct.structures.base import Structure
from nestruct.structures.recurrence import Recurrence
from nestruct.structures.relaxations import k_derivations
from nestruct.structures.relaxations.log_domain import FORBIDDEN


class KBestProgramme(Structure):
    """Gives a structure `kbest` and `max_marginals` by its recurrence.

    A subclass gives `_problem`. Its recurrence may have more parts than a member has; they come
    last.
    """

    _no_goal: ClassVar[int] = rows.BAD_LENGTH  # what is wrong with a row whose goal is -1

    @abstractmethod
    def _problem(
        self, method: str, scores: Tensor, context: Mapping[str, Any]
    ) -> tuple[Recurrence, Tensor, Tensor]:
        """The recurrence, the goal of each row, and flat scores: -inf for what does not count."""

    def kbest(
        self, scores: Tensor, k: int, **context: Tensor
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """The k best members of each row, best first. See `KBest.kbest`. Values differentiable."""
        k = check_count(f"{self!r}.kbest", "k", k, 1)
        recurrence, goals, flat = self._problem("kbest", scores, context)
        z, totals = k_derivations.k_best(recurrence, flat.detach(), goals, k)
        answered = self._answered("kbest", totals[0], goals)
        values = torch.where(z == 1, flat, 0.0).sum(-1, dtype=torch.float64)
        values = torch.where(totals > -torch.inf, values, -torch.inf).to(scores.dtype)
        z = torch.where(answered[..., None], self._own(z, scores), torch.nan)
        return z.reshape(k, *scores.shape), torch.where(answered, values, torch.nan)

    def max_marginals(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "..."]:
        """The best total of a member with each part; -inf where none is. Not differentiable."""
        recurrence, goals, flat = self._problem("max_marginals", scores, context)
        found, best = k_derivations.max_marginals(recurrence, flat.detach(), goals)
        answered = self._answered("max_marginals", best, goals)[..., None]
        return torch.where(answered, self._own(found, scores), torch.nan).reshape(scores.shape)

    def _own(self, flat: Tensor, scores: Tensor) -> Tensor:
        return flat[..., : math.prod(scores.shape[scores.dim() - self.part_axes :])]

    @torch.no_grad()
    def _answered(self, method: str, value: Tensor, goals: Tensor) -> Bool[Tensor, "*batch"]:
        codes = torch.where(value > FORBIDDEN / 2, rows.OK, rows.NO_MEMBER)
        codes = torch.where(value.isnan(), rows.NOT_FINITE, codes)
        codes = torch.where(goals >= 0, codes, self._no_goal)
        return rows.check_rows(codes, f"{self!r}.{method}") == rows.OK
