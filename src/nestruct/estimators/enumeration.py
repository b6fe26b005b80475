"""The exact gradient of a small model, by listing every member of its structure.

    gradient of the sum over z of q(z | x) (-log p(x | z))  +  the divergence,

by backpropagation: the paper's UNBIASED for Categorical (Eq. 1 summed instead of sampled), and the
truth that other estimators are checked against. Differentiates encoder and decoder.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.errors import InputError
from nestruct.estimators.base import Stateless, StepReport
from nestruct.models import StructuredModel
from nestruct.structures import Enumerable, Gibbs, perturb_and_map_law
from nestruct.structures.dependency_tree import DependencyTree

LAWS = ("gibbs", "perturb_and_map")


def exact_loss(
    model: StructuredModel, batch: Any, law: Literal["gibbs", "perturb_and_map"]
) -> Float[Tensor, " batch"]:
    """The expected loss per example under a law over all members. Differentiable.

    Args:
        model: A model whose structure can be listed and is small.
        batch: See `nestruct.select_rows`.
        law: ``gibbs``: ``exp(z . scores - A)``; ``perturb_and_map``: that of
            ``argmax(scores + Gumbel)``, which is what sampling gives. The same for Categorical.
    """
    structure = model.structure
    if law not in LAWS:
        raise InputError(f"law must be one of {LAWS}, got {law!r}.")
    if not isinstance(structure, Enumerable):
        raise InputError(f"{structure!r} cannot be listed, so there is no exact gradient.")
    if model.lengths(batch) is not None:
        raise InputError("The exact gradient needs sentences of one length: no lengths.")
    scores = model.encode(batch)
    size = scores.shape[-1] - 1 if isinstance(structure, DependencyTree) else None
    members = structure.enumerate(size).to(scores)
    axes = members.dim() - 1
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


@dataclass(kw_only=True)
class Enumeration(Stateless):
    """The exact gradient, as an estimator: the paper's UNBIASED.

    Args:
        law: Which law over structures is enumerated; see `exact_loss`.
    """

    law: Literal["gibbs", "perturb_and_map"] = "gibbs"

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise InputError(f"Enumeration: law must be one of {LAWS}, got {self.law!r}.")

    def backward(
        self, model: StructuredModel, batch: Any, *, seed: int = 0, step: int = 0
    ) -> StepReport:
        """Sets ``.grad`` of every parameter that requires one; draws nothing."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        losses = exact_loss(model, batch, self.law)
        gradients = torch.autograd.grad(losses.mean(), parameters, materialize_grads=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
        none = torch.zeros((), device=losses.device)
        return StepReport(losses.detach().mean(), none, norm, torch.tensor(1), none.long())
