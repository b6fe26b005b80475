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
from nestruct.data import batch_size
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.estimators.base import Stats
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.population import Layout
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
    # Every list that was made, by structure and kind of scores: captured steps read them.
    _known: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)
    _num_listed: int = field(default=0, init=False, repr=False)  # in the step that is computed

    def estimate(
        self, model: StructuredModel, layout: Layout, batch: Any, noise: Noise
    ) -> tuple[list[Tensor], Stats]:
        """The exact gradient; every member of the structure is decoded for every example."""
        gradients, stats = super().estimate(model, layout, batch, noise)
        decoded = self._num_listed * batch_size(batch)
        return gradients, stats | {"decoded": torch.full((), decoded, device=layout.device)}

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The exact losses. Draws nothing."""
        return Terms(exact_loss(model, batch, self.law, partial(self._members, model.structure)))

    def _kept(self) -> Any:
        return dict(self._known)

    def _members(self, structure: Any, scores: Tensor) -> Tensor:
        """Listed once: a list made on the host could not be copied within a capture."""
        key = (structure, scores.shape[1:], scores.dtype, scores.device)
        if key not in self._known:
            self._known[key] = list_members(structure, scores)
        self._num_listed = len(self._known[key])
        return self._known[key]
