"""From members' losses to the weights of their directions: utilities instead of raw losses."""

import torch
from jaxtyping import Float
from torch import Tensor


def pair_weights(
    losses: Float[Tensor, " population"],
    *,
    mirrored: bool,
    shaping: str,
    own_examples: bool,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, " pairs"], dict[str, Tensor]]:
    """Each direction's weight in the gradient (Eq. 8), and statistics of the losses.

    A member whose loss is not finite takes its pair along; the rest are averaged as if it had not
    been drawn.

    Args:
        losses: All ``centre + direction`` first, then all ``centre - direction`` when mirrored.
        mirrored: Whether members come in pairs.
        shaping: ``standard_score``, ``centered_rank`` or ``none``.
        own_examples: Whether each pair saw its own examples: then only the difference within a pair
            says something, so shaping acts on each loss less its pair's mean.
        dtype: Of the weights and statistics.
    """
    utilities, _, count, stats = _shape(losses, mirrored, shaping, own_examples, dtype)
    pairs = len(losses) // 2
    weights = utilities[:pairs] - utilities[pairs:] if mirrored else utilities
    return (weights / count).to(dtype), stats


def pair_sums(
    losses: Float[Tensor, " population"], *, mirrored: bool, shaping: str, dtype: torch.dtype
) -> Float[Tensor, " pairs"]:
    """Each direction's weight in what does not depend on its sign, such as its square.

    Raw losses count less their mean over the other pairs: the same expectation with less variance,
    and none from a constant in the loss.

    Args:
        losses: As in `pair_weights`, of members that saw the same examples.
        mirrored: Whether members come in pairs.
        shaping: ``standard_score``, ``centered_rank`` or ``none``.
        dtype: Of the result.
    """
    utilities, centred, count, _ = _shape(losses, mirrored, shaping, False, dtype)
    if shaping == "none":
        draws = count / 2 if mirrored else count
        utilities = centred * draws / (draws - 1).clamp(min=1)
    pairs = len(losses) // 2
    sums = utilities[:pairs] + utilities[pairs:] if mirrored else utilities
    return (sums / count).to(dtype)


def _shape(
    losses: Tensor, mirrored: bool, shaping: str, own_examples: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Utilities and centred losses, zero for lost pairs; members that count; statistics."""
    pairs = len(losses) // 2 if mirrored else len(losses)
    values = losses.double()
    finite = values.isfinite()
    usable = (finite[:pairs] & finite[pairs:]).repeat(2) if mirrored else finite
    survivors = usable.sum()
    count = survivors.clamp(min=1)
    values = torch.where(usable, values, 0.0)
    mean = values.sum() / count
    centred = torch.where(usable, values - mean, 0.0)
    std = (centred.square().sum() / count).sqrt()
    stats = {"loss": mean.to(dtype), "std": std.to(dtype)}
    stats |= {"failed": finite.logical_not().sum(), "usable": survivors}
    if own_examples:
        half = (values[:pairs] - values[pairs:]) / 2
        values = centred = torch.cat([half, -half])
        std = (centred.square().sum() / count).sqrt()
    if shaping == "standard_score":
        # Equal losses: no direction. What rounding leaves of their deviation must not count.
        equal = std <= 1e-12 * values.abs().max()
        utilities = torch.where(equal, 0.0, centred / std)
    elif shaping == "centered_rank":
        utilities = torch.where(usable, _centered_ranks(values, usable), 0.0)
    else:
        utilities = values
    return utilities, centred, count, stats


def _centered_ranks(values: Tensor, usable: Tensor) -> Tensor:
    """Ranks among usable members, from -1/2 to 1/2; equal values share theirs."""
    below = (values[:, None] > values) & usable
    tied = (values[:, None] == values) & usable
    rank = below.sum(1) + (tied.sum(1) - 1) / 2
    return rank / (usable.sum() - 1).clamp(min=1) - 0.5
