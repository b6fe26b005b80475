"""From members' losses to the weights of their directions: utilities instead of raw losses."""

import torch
from jaxtyping import Float
from torch import Tensor

_ROUNDING = 1e-12  # of a loss: smaller differences are none
_CLIP = 3.0  # deviations that a pair difference may count at most
_NORMAL = 1.4826  # a normal law's deviation over the median of its absolute values


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
        shaping: ``standard_score``, ``centered_rank``, ``clipped`` or ``none``.
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
        shaping: ``standard_score``, ``centered_rank``, ``clipped`` or ``none``.
        dtype: Of the result.
    """
    utilities, centred, count, _ = _shape(losses, mirrored, shaping, False, dtype, sums=True)
    if shaping == "none":
        draws = count / 2 if mirrored else count
        utilities = centred * draws / (draws - 1).clamp(min=1)
    pairs = len(losses) // 2
    sums = utilities[:pairs] + utilities[pairs:] if mirrored else utilities
    return (sums / count).to(dtype)


def _shape(
    losses: Tensor,
    mirrored: bool,
    shaping: str,
    own_examples: bool,
    dtype: torch.dtype,
    sums: bool = False,
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
    raw, centred = values, torch.where(usable, values - mean, 0.0)
    std = (centred.square().sum() / count).sqrt()
    stats = {"loss": mean.to(dtype), "std": std.to(dtype)}
    stats |= {"failed": finite.logical_not().sum(), "usable": survivors}
    if own_examples:
        half = (values[:pairs] - values[pairs:]) / 2
        values = centred = torch.cat([half, -half])
        std = (centred.square().sum() / count).sqrt()
    if shaping == "standard_score":
        # Equal losses: no direction. What rounding leaves of their deviation must not count.
        equal = std <= _ROUNDING * raw.abs().max()
        utilities = torch.where(equal, 0.0, centred / std)
    elif shaping == "clipped":
        utilities = _clipped(values, raw, usable, mirrored and not sums)
    elif shaping == "centered_rank":
        utilities = torch.where(usable, _centered_ranks(values, usable), 0.0)
    else:
        utilities = values
    return utilities, centred, count, stats


def _centered_ranks(values: Tensor, usable: Tensor) -> Tensor:
    """Ranks among usable members, from -1/2 to 1/2; equal values share theirs."""
    ordered = torch.where(usable, values, torch.inf).sort().values
    below = torch.searchsorted(ordered, values)
    tied = torch.searchsorted(ordered, values, right=True) - below
    rank = below + (tied - 1) / 2
    return rank / (usable.sum() - 1).clamp(min=1) - 0.5


def _clipped(values: Tensor, raw: Tensor, usable: Tensor, mirrored: bool) -> Tensor:
    """Halves of pair differences (alone: distances to the median), cut off, of mean square 1.

    The deviation that they are cut off at comes from their median, which wild values do not move.
    Of differences that are zero, up to the rounding of the losses ``raw``, it knows nothing, so
    those of others count.
    """
    pairs = len(values) // 2
    if mirrored:
        half = (values[:pairs] - values[pairs:]) / 2
        values = torch.cat([half, -half])
    else:
        values = values - _median(values, usable)
    size = values.abs()
    values = torch.where(size > _ROUNDING * raw.abs(), values, 0.0)
    limit = _CLIP * _NORMAL * _median(size, usable & (values != 0))
    values = torch.where(usable, values.clamp(-limit, limit), 0.0)
    square = values.square().sum() / usable.sum().clamp(min=1)
    return torch.where(square > 0, values / square.sqrt(), 0.0)


def _median(values: Tensor, counts: Tensor) -> Tensor:
    """The lower median of those values that count; 0 without any. Legal in a graph capture."""
    ordered = torch.where(counts, values, torch.inf).sort().values
    middle = ((counts.sum() - 1) // 2).clamp(min=0)
    median = ordered.gather(0, middle[None])[0]
    return torch.where(median.isfinite(), median, 0.0)
