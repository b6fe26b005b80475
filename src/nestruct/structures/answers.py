"""What a user's function returned: a tensor of the right shape and of numbers, or a sentence."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from nestruct.errors import InputError


def as_numbers(owner: str, result: Any, wanted: str) -> Tensor:
    """The result as a tensor of booleans, whole numbers or floats.

    Args:
        owner: Whose function this is, for error messages.
        result: What the function returned.
        wanted: What it is to return, in words.
    """
    if result is None:
        raise InputError(f"{owner}: the function returned nothing; it must return {wanted}.")
    if isinstance(result, Tensor):
        if result.is_complex():
            raise _wrong_kind(owner, wanted, str(result.dtype))
        return result.detach()
    try:
        array = np.asarray(result)
    except (TypeError, ValueError) as error:
        raise _wrong_kind(owner, wanted, f"{type(result).__name__} ({error})") from None
    if array.dtype.kind not in "biufO" or (array.dtype == object and not _all_real(array)):
        kind = type(result).__name__
        raise _wrong_kind(owner, wanted, f"{kind} of {array.dtype}" if array.ndim else kind)
    dtype = bool if array.dtype == bool else np.float64
    return torch.from_numpy(array.astype(dtype, order="C"))


def are_alike(results: Sequence[Any], shape: tuple[int, ...]) -> bool:
    """Whether all are arrays of numpy's, of numbers, of one type and this shape."""
    first = results[0]
    if not isinstance(first, np.ndarray) or first.dtype.kind not in "biuf":
        return False
    kind = first.dtype
    return all(type(r) is np.ndarray and r.shape == shape and r.dtype == kind for r in results)


def check_shape(owner: str, z: Tensor, expected: tuple[int, ...], hint: str) -> Tensor:
    """Raises unless ``z`` has the shape that is expected; returns it."""
    if tuple(z.shape) != expected:
        raise InputError(
            f"{owner}: the function must return the shape {expected}, got {tuple(z.shape)}{hint}."
        )
    return z


def are_legal(z: Tensor, binary: bool) -> Bool[Tensor, " rows"]:
    """Which rows are 0 and 1, or finite numbers; one with NaN says that there is no answer."""
    flat = z.reshape(len(z), -1)
    fine = ((flat == 0) | (flat == 1)) if binary else flat.isfinite()
    return fine.all(-1) | (flat != flat).any(-1)


def _all_real(array: np.ndarray) -> bool:
    return all(isinstance(value, numbers.Real | np.bool_) for value in array.flat)


def _wrong_kind(owner: str, wanted: str, got: str) -> InputError:
    return InputError(f"{owner}: the function must return an array of {wanted}, got {got}.")
