"""Layers of all members at once: what members share is computed once.

A linear layer of a mirrored pair is ``x W + s x E`` with s = +-1, so a shared input needs ``x W``
once and ``x E`` once per pair; with E of rank one, ``(x . right) left`` is all that members add.
"""

import functools
from importlib.util import find_spec

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nestruct.members import Population

_LARGEST_TABLE = 512  # inputs: beyond it, products with inputs that no one chose cost too much
_FEW_ROWS = 8  # of a member: fewer make a product too small for a library's kernel


@torch.no_grad()
def sequential(
    population: Population,
    layers: nn.Sequential,
    prefix: str,
    x: Tensor,
    index: Int[Tensor, "members rows"] | None = None,
) -> Tensor:
    """``[members, ...]``: what every member's layers make of an input that they share.

    A linear layer never forms its members' weights.

    Args:
        population: The members.
        layers: Layers that act on each row alone.
        prefix: Of their parameters' names.
        x: The rows of all.
        index: Which of them each member sees; all when None.
    """
    mapped = False  # whether x has an axis of members by now
    for name, layer in layers._modules.items():  # named_children leaves out repeated layers
        assert layer is not None
        inner = f"{prefix}{name}."
        names = (*population.directions, *population.factors)
        perturbed = any(key.startswith(inner) for key in names)
        linear = layer if isinstance(layer, nn.Linear) else None
        of_rank_one = linear if f"{inner}weight" in population.factors else None
        if perturbed and not mapped and index is not None:
            if of_rank_one and x.dim() == 2 and len(x) <= _LARGEST_TABLE:
                x, mapped = _from_table(population, of_rank_one, inner, x, index), True
                continue
            x, mapped = x[index], True
        if of_rank_one:
            x = _linear_of_rank_one(population, of_rank_one, inner, x, mapped)
        elif perturbed and isinstance(layer, nn.Linear):
            x = _linear(population, layer, inner, x, mapped)
        elif mapped and isinstance(layer, nn.ReLU):
            x = x.relu_()  # no one else's: fresh memory takes longer to touch than to compute
        elif perturbed:
            dims = (0, 0 if mapped else None)
            call = functools.partial(torch.func.functional_call, layer)
            own = population.below(inner).full().parameters(inner)
            x = torch.func.vmap(call, in_dims=dims)(own, x)
        else:
            x = torch.func.vmap(layer)(x) if mapped else layer(x)
        mapped = mapped or perturbed
    if mapped:
        return x
    return x.expand(population.num_members, *x.shape) if index is None else x[index]


def _linear(
    population: Population, layer: nn.Linear, prefix: str, x: Tensor, mapped: bool
) -> Tensor:
    base = layer(x)
    rows = x.flatten(1, -2) if mapped else x.flatten(0, -2)
    if mapped and population.mirrored:
        rows = torch.cat(rows.chunk(2), 1)  # both members of a pair side by side
    weight, bias = (population.directions.get(prefix + name) for name in ("weight", "bias"))
    move = rows.new_zeros(()) if weight is None else rows @ weight.mT
    if bias is not None:
        move = move + bias[:, None]
    move = move.expand(population.num_pairs, rows.shape[-2], -1)
    if mapped and population.mirrored:
        plus, minus = move.chunk(2, 1)
        first, second = base.flatten(1, -2).chunk(2)
        first.add_(plus)
        second.sub_(minus)
        return base
    return population.mirror(base, move.reshape(population.num_pairs, *x.shape[mapped:-1], -1))


def _linear_of_rank_one(
    population: Population, layer: nn.Linear, prefix: str, x: Tensor, mapped: bool
) -> Tensor:
    """One product with the shared weight, and for each member ``(x . right) left + bias``."""
    right = population.factors[f"{prefix}weight"].right
    halves = 2 if population.mirrored else 1
    base = layer(x)
    shape = (population.num_members, *base.shape[mapped:])
    if mapped:
        inner = member_products(population, x, right)
        base = base.flatten(1, -2)
    else:
        inner = (x.flatten(0, -2) @ right.T).T.repeat(halves, 1)
        base = base.flatten(0, -2)
        if has_kernels(base):  # every row for every member
            index = torch.arange(len(base), device=base.device).expand(inner.shape)
            return _with_own_terms(population, prefix, base, inner, index).view(shape)
        base = base.expand(len(inner), -1, -1)
    return _with_own_terms(population, prefix, base, inner).view(shape)


def _from_table(
    population: Population, layer: nn.Linear, prefix: str, table: Tensor, index: Tensor
) -> Tensor:
    """The same for rows of a table: both products are looked up."""
    right, halves = population.factors[f"{prefix}weight"].right, 2 if population.mirrored else 1
    base = layer(table)
    inner = (right @ table.T).expand(halves, -1, -1)
    inner = inner.gather(2, index.view(halves, len(right), -1)).flatten(0, 1)
    return _with_own_terms(population, prefix, base, inner, index)


def member_products(population: Population, x: Tensor, right: Tensor) -> Tensor:
    """``x . right`` of every row of every member, ``[members, rows]``."""
    rows = x.flatten(1, -2)
    if has_kernels(x):
        from nestruct.population.savings_cuda import row_products

        return row_products(rows, right)
    halves = 2 if population.mirrored else 1
    rows = rows.view(halves, len(right), *rows.shape[1:])
    return (rows @ right[..., None]).flatten(0, 1)[..., 0]


def own_terms(
    population: Population, prefix: str, inner: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sigma times ``x . right``, the left factors and the bias's directions, ``[pairs, out]``."""
    factors = population.factors[f"{prefix}weight"]
    return inner * factors.scale, factors.left, population.directions.get(f"{prefix}bias")


def has_kernels(like: Tensor) -> bool:
    """Whether the kernels of `nestruct.population.savings_cuda` serve a tensor."""
    return like.is_cuda and like.dtype == torch.float32 and find_spec("triton") is not None


def _with_own_terms(
    population: Population, prefix: str, base: Tensor, inner: Tensor, index: Tensor | None = None
) -> Tensor:
    """``base[index] +- (inner left + bias)``, ``[members, rows, out]``; may overwrite base."""
    inner, own, bias = own_terms(population, prefix, inner)
    if has_kernels(base) and population.mirrored:
        from nestruct.population.savings_cuda import with_own_terms

        return with_own_terms(base, index, inner, own, bias)
    base = base if index is None else base[index]
    if inner.shape[1] >= _FEW_ROWS:  # both terms in one product
        both = inner[..., None]
        own = own[:, None]
        if bias is not None:
            both = torch.cat([both, torch.ones_like(both)], -1)
            own = torch.cat([own, bias[:, None]], 1)
        own = torch.cat([own, -own]) if population.mirrored else own
        return torch.baddbmm(base, both, own)
    base = base.contiguous()
    for half, sign in zip(base.split(len(own)), (1, -1), strict=False):
        place = 0 if sign == 1 else len(own)
        move = inner[place : place + len(own), :, None] * own[:, None]
        if bias is not None:
            move += bias[:, None]
        half.add_(move, alpha=sign)
    return base
