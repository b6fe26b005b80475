"""The negative ELBO per example: reconstruction plus divergence; and the loss bound M.

    loss = -log p(x | z) + KL(q(z | x) || p(z)),    p uniform over the structure's members.

Perturb-and-MAP's own KL has no closed form, so there is a choice; a reported ELBO names it.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_choice
from nestruct.errors import InputError
from nestruct.structures import Countable, Gibbs, Structure

Divergence = Callable[..., Tensor]  # (structure, scores [batch, *parts], **context) -> [batch]


def gumbel_divergence(
    structure: Structure, scores: Tensor, **context: Tensor
) -> Float[Tensor, " batch"]:
    """KL between the Gumbel noises: the sum over parts of ``u + exp(-u) - 1`` with u the score.

    An upper bound on the KL of the structures, because the structure is a function of the noise
    (data processing); so ``-loss`` is a lower bound on the ELBO with the perturb-and-MAP law, and
    on log p(x). The scoreboard's choice for the paper's graph-layout task. Parts that cannot be
    chosen (padding, self-loops, arcs into the root, scores of -inf) do not count.
    """
    counting = scores > -torch.inf
    possible = structure.counting(scores, **context)
    if possible is not None:
        counting = counting & possible
    safe = torch.where(counting, scores, 0.0)
    return (safe + torch.expm1(-safe)).flatten(1).sum(-1)


def gibbs_divergence(
    structure: Structure, scores: Tensor, **context: Tensor
) -> Float[Tensor, " batch"]:
    """KL of the Gibbs law ``exp(z . scores - A)`` to uniform: ``log |Z| - entropy``, exact.

    A true ELBO for exact Gibbs samples, and for Categorical (where perturb-and-MAP is the Gibbs
    law: the paper's unstructured experiments). For other structures with perturb-and-MAP samples it
    is the KL of a neighbouring law.
    """
    if not (isinstance(structure, Gibbs) and isinstance(structure, Countable)):
        raise InputError(
            f"divergence 'gibbs' needs a structure with a tractable Gibbs law; {structure!r} has "
            "none. Use 'gumbel' or 'none'."
        )
    each = log_count(structure, scores, **context) - structure.entropy(scores, **context)
    return each.flatten(1).sum(1) if each.dim() > 1 else each  # of several structures per example


def no_divergence(
    structure: Structure, scores: Tensor, **context: Tensor
) -> Float[Tensor, " batch"]:
    """Zero: reconstruction only, an upper bound on the ELBO. The public parsing code's choice."""
    return scores.new_zeros(scores.shape[0])


DIVERGENCES: dict[str, Divergence] = {
    "gumbel": gumbel_divergence,
    "gibbs": gibbs_divergence,
    "none": no_divergence,
}


def check_divergence(owner: str, name: str) -> None:
    """Raises unless a divergence of that name is known."""
    if name == "paper-appendix":
        raise InputError(
            f"{owner}: the divergence 'paper-appendix' is a model of its own now, "
            "nestruct.models.AppendixVAE (in recipes: model.name = 'categorical-appendix')."
        )
    check_choice(f"{owner}: divergence", name, DIVERGENCES)


def log_count(structure: Any, scores: Tensor, **context: Tensor) -> Tensor | float:
    """Log of the number of members that scores are about: one number, or one per example."""
    size = structure.size_of(scores, **context)
    if isinstance(size, Tensor):
        return structure.log_count(size).to(scores.dtype)
    # A number, not a tensor from the host: that could not be copied inside a graph capture.
    return float(structure.log_count(size))


def bound_log_probability(
    log_probability: Float[Tensor, "..."], bound: float | None
) -> Float[Tensor, "..."]:
    """Clamps each component's log-probability at ``-bound``: the loss bound M of the appendix.

    The reconstruction loss divided by the number of components is then at most M, which is what the
    paper's Theorem 1 assumes of the loss. For training only.
    """
    return log_probability if bound is None else log_probability.clamp(min=-bound)
