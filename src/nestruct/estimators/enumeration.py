"""The exact gradient of a small model, by listing every member of its structure.

    gradient of the sum over z of q(z | x) (-log p(x | z))  +  the divergence,

by backpropagation: the paper's UNBIASED for Categorical (Eq. 1 summed instead of sampled), and the
truth that other estimators are checked against. Differentiates encoder and decoder.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.errors import InputError, check_choice
from nestruct.estimators.backpropagation import Backpropagation
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import Enumerable, Gibbs, perturb_and_map_law
from nestruct.structures.dependency_tree import DependencyTree

LAWS = ("gibbs", "perturb_and_map")


def exact_loss(
    model: StructuredModel,
    batch: Any,
    law: Literal["gibbs", "perturb_and_map"],
    members: Tensor | None = None,
) -> Float[Tensor, " batch"]:
    """The expected loss per example under a law over all members. Differentiable.

    Args:
        model: A model whose structure can be listed and is small.
        batch: See `nestruct.select_rows`.
        law: ``gibbs``: ``exp(z . scores - A)``; ``perturb_and_map``: that of
            ``argmax(scores + Gumbel)``, which is what sampling gives. The same for Categorical.
        members: What ``structure.enumerate`` gives, where it is at hand.
    """
    structure = model.structure
    check_choice("law", law, LAWS)
    if not isinstance(structure, Enumerable):
        raise InputError(f"{structure!r} cannot be listed, so there is no exact gradient.")
    if model.lengths(batch) is not None:
        raise InputError("The exact gradient needs sentences of one length: no lengths.")
    scores = model.encode(batch)
    size = scores.shape[-1] - 1 if isinstance(structure, DependencyTree) else None
    if members is None:
        members = structure.enumerate(size).to(scores)
    axes = members.dim() - 1
    if scores.dim() != 1 + axes:
        raise InputError(
            f"The exact gradient needs one structure per example: scores of {structure!r} with "
            f"{1 + axes} axes, not of shape {tuple(scores.shape)}."
        )
    if law == "gibbs":
        if not isinstance(structure, Gibbs):
            raise InputError(f"{structure!r} has no tractable Gibbs law; use 'perturb_and_map'.")
        total = torch.where(members == 1, scores.unsqueeze(-axes - 1), 0.0).flatten(2).sum(-1)
        chances = (total - structure.log_partition(scores)[:, None]).exp()
    else:
        chances = perturb_and_map_law(structure, scores)  # type: ignore[arg-type]
    z = members.unsqueeze(1).expand(len(members), *scores.shape)
    losses = torch.stack([model.loss_at(batch, scores, one) for one in z], -1)
    return torch.where(chances > 0, chances * losses, 0.0).sum(-1)


@dataclass(kw_only=True, eq=False)
class Enumeration(Backpropagation):
    """The exact gradient, as an estimator: the paper's UNBIASED.

    Args:
        law: Which law over structures is enumerated; see `exact_loss`.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.
    """

    law: Literal["gibbs", "perturb_and_map"] = "gibbs"
    graph: Literal["auto", "on", "off"] = "auto"
    num_samples = 1
    _known: tuple[Any, Tensor] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("Enumeration: law", self.law, LAWS)

    def surrogate(self, model: StructuredModel, batch: Any, noise: Noise) -> tuple[Tensor, Tensor]:
        """The mean exact loss: it is its own surrogate. Draws nothing."""
        losses = exact_loss(model, batch, self.law, self._members(model))
        return losses.mean(), losses

    def _members(self, model: StructuredModel) -> Tensor | None:
        """Listed once: a list made on the host could not be copied within a capture."""
        structure, like = model.structure, next(model.parameters())
        if isinstance(structure, DependencyTree) or not isinstance(structure, Enumerable):
            return None  # its list depends on the words of a sentence, or there is none
        if self._known is None or self._known[0] is not structure:
            self._known = structure, structure.enumerate()
        if self._known[1].device != like.device or self._known[1].dtype != like.dtype:
            self._known = structure, self._known[1].to(like)
        return self._known[1]
