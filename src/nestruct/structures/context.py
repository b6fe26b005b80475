"""What a solver sees besides scores: named tensors, one entry for each example.

A context tensor's first axis is the last leading axis of the scores, the examples. Earlier leading
axes (samples, members of a population) repeat it. The name ``mask`` has one meaning everywhere: a
boolean for each part, False where scores are padding.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from nestruct.errors import InputError

Context = dict[str, Tensor]
RESERVED = ("scores", "draws", "temperature", "k", "noise")


def check_context(
    owner: str,
    context: Mapping[str, Any],
    lead: torch.Size,
    *,
    takes: Collection[str] | None,
    needs: Collection[str] = (),
) -> Context:
    """The context with every tensor expanded to the leading axes of the scores.

    Args:
        owner: Whose call this is, for error messages.
        context: By name; None stands for "not given".
        lead: The leading axes of the scores.
        takes: The names that may come; any when None.
        needs: The names that must come.

    Raises:
        InputError: A name is unknown or missing, or a tensor does not fit the examples.
    """
    given = {name: value for name, value in context.items() if value is not None}
    for name in given:
        if name in RESERVED:
            raise InputError(
                f"{owner}: {name!r} cannot be context, that name is reserved; call it something "
                "else."
            )
        if takes is not None and name not in takes:
            there = f"it takes {', '.join(takes)}" if takes else "it takes none"
            raise InputError(f"{owner}: the context {name!r} is not known here; {there}.")
    for name in needs:
        if name not in given:
            raise InputError(
                f"{owner}: the context {name!r} is missing; give it in model.context(batch), or as "
                f"{name}=... in the call."
            )
    return {name: _expand(owner, name, value, lead) for name, value in given.items()}


def check_mask(owner: str, mask: Any, scores: Tensor, part_axes: int) -> Tensor:
    """The context ``mask``, expanded to the shape of the scores.

    Args:
        owner: Whose call this is, for error messages.
        mask: Shaped as the scores; earlier leading axes than the examples may be left out.
        scores: Any leading axes, then the parts.
        part_axes: How many axes are parts.

    Raises:
        InputError: It is no boolean tensor of that shape.
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(
            f"{owner}: the context 'mask' must be a tensor of booleans, True for parts that count; "
            f"got {kind}."
        )
    least = min(scores.dim(), part_axes + 1)  # the examples have a mask each
    if mask.dim() < least or mask.shape != scores.shape[max(0, scores.dim() - mask.dim()) :]:
        raise InputError(
            f"{owner}: the context 'mask' must have the shape of the scores, "
            f"{tuple(scores.shape[-least:])}, got {tuple(mask.shape)}."
        )
    return mask.to(scores.device).expand(scores.shape)


def check_lengths(owner: str, name: str, lengths: Any, scores: Tensor, lead: torch.Size) -> Tensor:
    """A context that is a length of each example: whole numbers, expanded to the leading axes.

    Args:
        owner: Whose call this is, for error messages.
        name: The name of the context.
        lengths: Shaped as the leading axes or the last of them; or one number for all.
        scores: Any leading axes, then the parts.
        lead: The leading axes.

    Raises:
        InputError: They are no whole numbers, or of another shape.
    """
    lengths = whole_numbers(owner, name, lengths).to(scores.device)
    if lengths.shape != lead[max(0, len(lead) - lengths.dim()) :]:  # a 1 is not stretched
        raise InputError(
            f"{owner}: {name} of shape {tuple(lengths.shape)} do not fit scores of shape "
            f"{tuple(scores.shape)}; give one number for each instance, {tuple(lead)}."
        )
    return lengths.expand(lead)


def whole_numbers(owner: str, name: str, lengths: Any) -> Tensor:
    """Lengths as int64; raises unless they are whole numbers."""
    try:
        lengths = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{owner}: {name} must be whole numbers, got {lengths!r}.") from None
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise InputError(f"{owner}: {name} must be whole numbers, got {lengths.dtype}.")
    return lengths.long()


def _expand(owner: str, name: str, value: Any, lead: torch.Size) -> Tensor:
    if not isinstance(value, Tensor):
        raise InputError(
            f"{owner}: the context {name!r} must be a tensor, got {type(value).__name__}; for "
            "other objects give their numbers and look them up."
        )
    if not lead:  # one instance: the whole tensor is its own
        return value
    if value.dim() == 0 or len(value) != lead[-1]:
        raise InputError(
            f"{owner}: the context {name!r} has the shape {tuple(value.shape)}; its first axis "
            f"must be the {lead[-1]} examples of the scores."
        )
    return value.expand(*lead, *value.shape[1:])
