"""The exact gradient of a small model, by listing every member of its structure.

    gradient of the sum over z of q(z | x) (-log p(x | z))  +  the divergence,

by backpropagation: the paper's UNBIASED for Categorical (Eq. 1 summed instead of sampled), and the
truth that other estimators are checked against. Differentiates encoder and decoder.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_choice
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import Enumerable, Gibbs, perturb_and_map_law

Law = Literal["gibbs", "perturb_and_map"]


def exact_loss(
    model: StructuredModel,
    batch: Any,
    law: Law,
    members: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, " batch"]:
    """The expected loss per example under a law over all members. Differentiable.

    Args:
        model: A model whose structure can be listed and is small.
        batch: See `nestruct.select_rows`.
        law: ``gibbs``: ``exp(z . scores - A)``; ``perturb_and_map``: that of
            ``argmax(scores + Gumbel)``, which is what sampling gives. The same for Categorical.
        members: A function of the scores that gives all members; the structure's own when None.
    """
    structure = model.structure
    check_choice("law", law, get_args(Law))
    if not isinstance(structure, Enumerable):
        raise InputError(f"{structure!r} cannot be listed, so there is no exact gradient.")
    if model.context(batch):
        raise InputError(
            "The exact gradient lists the members once for all examples, so it takes no context "
            f"({', '.join(model.context(batch))})."
        )
    scores = model.encode(batch)
    every = list_members(structure, scores) if members is None else members(scores)
    axes = every.dim() - 1
    if scores.dim() != 1 + axes:
        raise InputError(
            f"The exact gradient needs one structure per example: scores of {structure!r} with "
            f"{1 + axes} axes, not of shape {tuple(scores.shape)}."
        )
    if law == "gibbs":
        if not isinstance(structure, Gibbs):
            raise InputError(f"{structure!r} has no tractable Gibbs law; use 'perturb_and_map'.")
        total = torch.where(every == 1, scores.unsqueeze(-axes - 1), 0.0).flatten(2).sum(-1)
        chances = (total - structure.log_partition(scores)[:, None]).exp()
    else:
        chances = perturb_and_map_law(structure, scores)  # type: ignore[arg-type]
    z = every.unsqueeze(1).expand(len(every), *scores.shape)
    losses = torch.stack([model.loss_at(batch, scores, one) for one in z], -1)
    possible = chances > 0
    # Where no member is possible, there is no loss: NaN leaves the example out of the mean.
    chances = torch.where(possible, chances, 0.0)
    expected = torch.where(possible, chances * losses, 0.0).sum(-1)
    return torch.where(possible.any(-1), expected, torch.nan)


def list_members(structure: Any, scores: Tensor) -> Tensor:
    """All members of the space of these scores, in their dtype and on their device."""
    return structure.enumerate(structure.size_of(scores)).to(scores)


@dataclass(kw_only=True, eq=False)
class Enumeration(Backpropagation):
    """The exact gradient, as an estimator: the paper's UNBIASED.

    Args:
        law: Which law over structures is enumerated; see `exact_loss`.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.
    """

    kind: ClassVar[str] = "exact"

    law: Law = "gibbs"
    graph: Literal["auto", "on", "off"] = "auto"
    _known: tuple[Any, Tensor] | None = field(default=None, init=False, repr=False)

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The exact losses. Draws nothing."""
        return Terms(exact_loss(model, batch, self.law, partial(self._members, model.structure)))

    def _num_decoded(self, model: StructuredModel, examples: int) -> int:
        """Every member of the structure, for every example."""
        return 0 if self._known is None else examples * len(self._known[1])

    def _members(self, structure: Any, scores: Tensor) -> Tensor:
        """Listed once: a list made on the host could not be copied within a capture."""
        known = self._known
        if known is None or known[0] is not structure or known[1].shape[1:] != scores.shape[1:]:
            known = structure, list_members(structure, scores)
        self._known = structure, known[1].to(scores)
        return self._known[1]
