"""The negative ELBO per example: reconstruction plus divergence; and the loss bound M.

    loss = -log p(x | z) + KL(q(z | x) || p(z)),    p uniform over the structure's members.

Perturb-and-MAP's own KL has no closed form, so there is a choice; a reported ELBO names it.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.errors import InputError
from nestruct.structures import Countable, Gibbs, Structure
from nestruct.structures.base import SizedStructure
from nestruct.structures.dependency_tree import DependencyTree

# (structure, scores [batch, *parts], z or None, lengths or None) -> [batch]
Divergence = Callable[[Structure, Tensor, Tensor | None, Tensor | None], Tensor]


def gumbel_divergence(
    structure: Structure, scores: Tensor, z: Tensor | None, lengths: Tensor | None
) -> Float[Tensor, " batch"]:
    """KL between the Gumbel noises: the sum over parts of ``u + exp(-u) - 1`` with u the score.

    An upper bound on the KL of the structures, because the structure is a function of the noise
    (data processing); so ``-loss`` is a lower bound on the ELBO with the perturb-and-MAP law, and
    on log p(x). The scoreboard's choice for the paper's graph-layout task. Parts that cannot be
    chosen (padding, self-loops, arcs into the root, scores of -inf) do not count.
    """
    counting = scores > -torch.inf
    possible = structure.counting(scores, lengths)
    if possible is not None:
        counting = counting & possible
    safe = torch.where(counting, scores, 0.0)
    return (safe + torch.expm1(-safe)).flatten(1).sum(-1)


def gibbs_divergence(
    structure: Structure, scores: Tensor, z: Tensor | None, lengths: Tensor | None
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
    each = _log_count(structure, scores, lengths) - structure.entropy(scores, lengths)
    return each.flatten(1).sum(1) if each.dim() > 1 else each  # of several structures per example


def appendix_divergence(
    structure: Structure, scores: Tensor, z: Tensor | None, lengths: Tensor | None
) -> Float[Tensor, "*lead batch"]:
    """The paper's appendix: ``z . scores + log |Z|``. Not a bound on anything; use with care.

    It lacks the log-partition, so adding a constant to all scores changes it without changing the
    law: training can drive it to minus infinity. No released code uses it. At the MAP structure
    when no sample is given.
    """
    if not isinstance(structure, Countable):
        raise InputError(f"divergence 'paper-appendix' needs a count, which {structure!r} lacks.")
    if z is None:
        z = structure.argmax(scores, lengths)
    score = torch.where(z > 0, z * scores, 0.0).flatten(1 - scores.dim()).sum(-1)
    per_example = 1
    if isinstance(structure, SizedStructure):
        per_example = scores.shape[1 : scores.dim() - len(structure.part_shape)].numel()
    return score + per_example * _log_count(structure, scores, lengths)


def no_divergence(
    structure: Structure, scores: Tensor, z: Tensor | None, lengths: Tensor | None
) -> Float[Tensor, " batch"]:
    """Zero: reconstruction only, an upper bound on the ELBO. The public parsing code's choice."""
    return scores.new_zeros(scores.shape[0])


DIVERGENCES: dict[str, Divergence] = {
    "gumbel": gumbel_divergence,
    "gibbs": gibbs_divergence,
    "paper-appendix": appendix_divergence,
    "none": no_divergence,
}


def _log_count(structure: Countable, scores: Tensor, lengths: Tensor | None) -> Tensor | float:
    if lengths is not None:
        return structure.log_count(lengths).to(scores.dtype)
    words = scores.shape[-1] - 1 if isinstance(structure, DependencyTree) else None
    # A number, not a tensor from the host: that could not be copied inside a graph capture.
    return float(structure.log_count(words))  # type: ignore[arg-type]


def bound_log_probability(
    log_probability: Float[Tensor, "..."], bound: float | None
) -> Float[Tensor, "..."]:
    """Clamps each component's log-probability at ``-bound``: the loss bound M of the appendix.

    The reconstruction loss divided by the number of components is then at most M, which is what the
    paper's Theorem 1 assumes of the loss. For training only.
    """
    return log_probability if bound is None else log_probability.clamp(min=-bound)
