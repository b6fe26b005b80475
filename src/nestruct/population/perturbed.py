"""A weight W + l r^T of one member of a population, never formed where a layer can do without.

Inside the population's vmap the factors l and r are the member's own, and W is everyone's. So
``x W^T`` is one product for the whole population, and a member adds ``(x . r) l``. Operations
that have no such form get the full matrix of this one weight.
"""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from nestruct.population.recurrent import RECURRENT, CannotVmapError

log = logging.getLogger("nestruct")

_said: set[tuple[str, str]] = set()  # which weight was formed for which operation


class PerturbedWeight(Tensor):
    """One member's weight: acts as ``base + left x right``.

    Outside of the operations listed below it becomes that matrix, and says so once.
    """

    base: Tensor
    left: Tensor
    right: Tensor
    label: str

    @staticmethod
    def make(base: Tensor, left: Tensor, right: Tensor, label: str) -> "PerturbedWeight":
        """A weight of shape ``[outputs, *inputs]``; left has its first axis, right the others."""
        weight: Any = Tensor._make_wrapper_subclass(
            PerturbedWeight,
            base.shape,
            strides=base.stride(),
            dtype=base.dtype,
            device=base.device,
        )
        weight.base, weight.left, weight.right, weight.label = base, left, right, label
        return weight

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes what has a form of its own by that, anything else with the full matrix."""
        kwargs = dict(kwargs or {})
        if "input" in kwargs and not args:  # torch's name of what comes first
            args = (kwargs.pop("input"),)
        if func in _FACTS:
            return func(*tree_map(_base, args), **kwargs)
        rule = _RULES.get(func)
        by_place = [kwargs[name] for name in _BY_PLACE if name in kwargs]
        others = {name: kwargs[name] for name in kwargs if name not in _BY_PLACE}
        if rule is not None and (not kwargs or _takes(rule, (*args, *by_place), others)):
            result = rule(*args, *by_place, **others)
            if result is not NotImplemented:
                return result

        def full(value: Any) -> Any:
            return _full(value, func) if isinstance(value, PerturbedWeight) else value

        return func(*tree_map(full, args), **tree_map(full, kwargs))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        """Refuses what comes past ``__torch_function__``: it would take the centre's weight."""
        raise CannotVmapError(
            f"A weight with directions of rank one reaches {func} in a way that cannot be "
            "followed, such as torch.func.vmap or grad over weights: say mode='loop', or use full "
            "directions."
        )


@contextmanager
def plain_recurrence(wanted: bool) -> Iterator[None]:
    """A context in which torch's recurrent layers are computed in operations that can be vmapped.

    Args:
        wanted: Whether there are any.
    """
    if not wanted:
        yield
        return
    with _PlainRecurrence():
        yield


class _PlainRecurrence(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.data_ptr:  # asked for by flatten_parameters; members' tensors have none
            return 0
        return RECURRENT.get(func, func)(*args, **(kwargs or {}))


def _takes(rule: Callable, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a rule knows all names: torch has others too, such as ``mat2`` and ``out``."""
    try:
        inspect.signature(rule).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _base(value: Any) -> Any:
    return value.base if isinstance(value, PerturbedWeight) else value


def _full(weight: PerturbedWeight, func: Callable) -> Tensor:
    key = weight.label, getattr(func, "__name__", str(func))
    if key not in _said:
        _said.add(key)
        log.info("NES: %s is used by %s, which takes a full matrix for each member.", *key)
    left = weight.left
    return weight.base + left.view(*left.shape, *[1] * weight.right.dim()) * weight.right


class _SharedProduct(torch.autograd.Function):
    """``x W^T``: all members' rows in one product, however they lie in memory.

    torch's own rule for vmap expands W to the members where rows would have to be copied.
    """

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        # Members' weights have no gradients, but a loss may hold a derivative by its inputs.
        (weight,) = ctx.saved_tensors
        return _shared(slope, weight.mT), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 0).contiguous()
        return _SharedProduct.apply(x, weight), 0


def _shared(x: Tensor, weight: Tensor) -> Tensor:
    return _SharedProduct.apply(x, weight)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if isinstance(x, PerturbedWeight) or not isinstance(weight, PerturbedWeight):
        return NotImplemented
    y = torch.addcmul(_shared(x, weight.base), (x @ weight.right)[..., None], weight.left)
    return y if bias is None else y + bias


def _matmul(one: Tensor, other: Tensor) -> Tensor:
    if isinstance(one, PerturbedWeight):
        if isinstance(other, PerturbedWeight) or one.base.dim() != 2:
            return NotImplemented
        inner = one.right @ other
        if other.dim() == 1:
            return torch.addcmul(_shared(other, one.base), one.left, inner)
        base = _shared(other.mT, one.base).mT
        return torch.addcmul(base, one.left[:, None], inner[..., None, :])
    if not isinstance(other, PerturbedWeight) or other.base.dim() != 2:
        return NotImplemented
    base = _shared(one, other.base.T)
    return torch.addcmul(base, (one @ other.left)[..., None], other.right)


def _addmm(bias: Tensor, one: Tensor, other: Tensor, **factors: Any) -> Tensor:
    if factors or isinstance(bias, PerturbedWeight):
        return NotImplemented
    product = _matmul(one, other)
    return product if product is NotImplemented else bias + product


def _transposed(weight: PerturbedWeight, *dims: Any, **named: Any) -> Tensor:
    if weight.base.dim() != 2 or named or (dims and {d % 2 for d in dims} != {0, 1}):
        return NotImplemented
    return PerturbedWeight.make(weight.base.T, weight.right, weight.left, weight.label)


def _same(weight: PerturbedWeight) -> Tensor:
    return weight


def _embedding(
    index: Tensor, weight: Tensor, padding_idx: Any = None, max_norm: Any = None, *rest, **named
) -> Tensor:
    if max_norm is not None or not isinstance(weight, PerturbedWeight):
        return NotImplemented
    return torch.addcmul(
        F.embedding(index, weight.base), weight.left[index][..., None], weight.right
    )


def _item(weight: Any, index: Any) -> Tensor:
    """Rows by their numbers, and slices of rows and columns."""
    if not isinstance(weight, PerturbedWeight) or weight.base.dim() != 2:
        return NotImplemented
    if isinstance(index, Tensor):
        if index.dtype not in (torch.long, torch.int) or isinstance(index, PerturbedWeight):
            return NotImplemented
        return _embedding(index, weight)
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) > 2 or not all(isinstance(part, slice) for part in parts):
        return NotImplemented
    right = weight.right[parts[1]] if len(parts) == 2 else weight.right
    return PerturbedWeight.make(weight.base[index], weight.left[parts[0]], right, weight.label)


def _cut(how: Callable) -> Callable:
    """Split and chunk, of rows."""

    def cut(weight: PerturbedWeight, sizes: Any, dim: int = 0) -> Any:
        if dim != 0:
            return NotImplemented
        pieces = zip(how(weight.base, sizes), how(weight.left, sizes), strict=True)
        return tuple(
            PerturbedWeight.make(b, left, weight.right, weight.label) for b, left in pieces
        )

    return cut


def _convolution(convolve: Callable) -> Callable:
    def run(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if isinstance(x, PerturbedWeight) or not isinstance(weight, PerturbedWeight):
            return NotImplemented
        how = (stride, padding, dilation, groups)
        channels = weight.right.dim()  # counted from the last axis, as x may have no examples
        # One channel for each group, which the group's own outputs take in their shares.
        kernel = weight.right.expand(groups, *weight.right.shape)
        inner = convolve(x, kernel, None, *how)
        if groups > 1:
            inner = inner.repeat_interleave(len(weight.left) // groups, -channels)
        shape = (-1, *[1] * (channels - 1))
        y = torch.addcmul(convolve(x, weight.base, None, *how), weight.left.view(shape), inner)
        return y if bias is None else y + bias.view(shape)

    return run


# Tensor.shape and the like: what depends on no value.
_T: Any = Tensor  # whose properties are descriptors, which its annotations do not tell
_FACTS: set[Any] = {
    getattr(_T, name).__get__
    for name in (
        *("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "requires_grad"),
        *("is_leaf", "is_sparse", "is_nested", "is_quantized", "itemsize"),
    )
}
_FACTS |= {Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.__len__}
_FACTS |= {Tensor.is_floating_point, torch.is_floating_point, torch.numel, Tensor.is_complex}
_FACTS |= {Tensor.is_contiguous, Tensor.data_ptr}

# torch's names of arguments that a rule takes by their places, in this order.
_BY_PLACE = (
    *("input", "mat1", "other", "mat2", "vec"),
    *("chunks", "split_size", "split_size_or_sections"),
)

_RULES: dict[Any, Callable] = {
    F.linear: _linear,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.mm, Tensor.mm, torch.mv, Tensor.mv), _matmul),
    Tensor.__rmatmul__: lambda one, other: _matmul(other, one),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
    **dict.fromkeys((Tensor.t, torch.t, _T.T.__get__, _T.mT.__get__), _transposed),
    **dict.fromkeys((Tensor.transpose, torch.transpose), _transposed),
    **dict.fromkeys((Tensor.detach, torch.detach, _T.data.__get__, Tensor.contiguous), _same),
    F.embedding: _embedding,
    Tensor.__getitem__: _item,
    **dict.fromkeys((Tensor.chunk, torch.chunk), _cut(torch.chunk)),
    **dict.fromkeys((Tensor.split, torch.split), _cut(torch.split)),
    F.conv1d: _convolution(F.conv1d),
    F.conv2d: _convolution(F.conv2d),
    F.conv3d: _convolution(F.conv3d),
    **RECURRENT,
}
