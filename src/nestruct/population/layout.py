"""Which parameters of a model are perturbed, and where each lies in a flat direction."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.errors import InputError

Filter = nn.Module | Iterable[str] | Callable[[str, nn.Parameter], bool] | None


class Layout:
    """Which parameters are perturbed, and where each lies in a flat direction."""

    def __init__(self, model: nn.Module, chosen: Filter = None) -> None:
        self.parameters = _choose(model, chosen)
        if not self.parameters:
            raise InputError(
                "There is no parameter to estimate: the filter chose none, or all are frozen "
                "(requires_grad is False)."
            )
        first = next(iter(self.parameters.values()))
        for name, parameter in self.parameters.items():
            if parameter.dtype != first.dtype or parameter.device != first.device:
                raise InputError(
                    f"Perturbed parameters must share dtype and device: {name} is "
                    f"{parameter.dtype} on {parameter.device}, others {first.dtype} on "
                    f"{first.device}."
                )
        self.dtype, self.device = first.dtype, first.device
        self.size = sum(parameter.numel() for parameter in self.parameters.values())
        self.fan_ins = [_fan_in(model, name, p) for name, p in self.parameters.items()]

    def split(self, flat: Float[Tensor, "*pairs size"]) -> dict[str, Tensor]:
        """Views of a flat direction (or several) by parameter name."""
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        pieces = flat.split(sizes, -1)
        return {
            name: piece.unflatten(-1, parameter.shape) if parameter.dim() else piece[..., 0]
            for (name, parameter), piece in zip(self.parameters.items(), pieces, strict=True)
        }

    def spread(self, values: list[float]) -> Float[Tensor, " size"]:
        """A flat vector of one number for each parameter tensor, repeated over its entries."""
        make = functools.partial(torch.full, dtype=self.dtype, device=self.device)
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        return torch.cat([make((n,), each) for n, each in zip(sizes, values, strict=True)])

    def addresses(self, modules: list[nn.Module]) -> list[Any]:
        """What a captured step reads in place: which tensors where, and which modules train."""
        found: list[Any] = list(self.parameters)
        for module in modules:
            found.append(module.training)
            for tensors in (module._parameters, module._buffers):
                found += [None if t is None else (t.data_ptr(), t.shape) for t in tensors.values()]
        return found

    def centre(self) -> dict[str, Tensor]:
        """The parameters' present values."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}


def _choose(model: nn.Module, chosen: Filter) -> dict[str, nn.Parameter]:
    everything = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if chosen is None:
        return everything
    if isinstance(chosen, nn.Module):
        wanted = {id(p) for p in chosen.parameters()}
        return {name: p for name, p in everything.items() if id(p) in wanted}
    if callable(chosen):
        return {name: p for name, p in everything.items() if chosen(name, p)}
    names = [chosen] if isinstance(chosen, str) else list(chosen)
    unknown = [name for name in names if name not in everything]
    if unknown:
        raise InputError(
            f"perturb: {unknown[0]!r} is not a trainable parameter of the model; there are "
            f"{', '.join(list(everything)[:8])}{', ...' if len(everything) > 8 else ''}."
        )
    return {name: everything[name] for name in everything if name in names}


def _fan_in(model: nn.Module, name: str, parameter: Tensor) -> int:
    """How many inputs an output of this parameter adds up: 1 for biases, gains and tables."""
    module = model.get_submodule(name.rpartition(".")[0])
    if parameter.dim() < 2 or isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return 1
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return parameter.shape[0] * math.prod(parameter.shape[2:]) // module.groups
    return math.prod(parameter.shape[1:])


def like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """In the parameter's layout, as torch's own ``.grad`` is: fused optimizers rely on it."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
