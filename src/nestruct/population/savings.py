"""Exact savings of a population: what members share is computed once.

`sequential`: a linear layer of a mirrored pair is ``x W + s x E`` with s = +-1, so a shared input
needs ``x W`` once and ``x E`` once per pair. `categorical_losses`: with a Categorical structure a
decoder sees only K distinct inputs, whatever the batch.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from nestruct.members import Population
from nestruct.models import StructuredVAE
from nestruct.models.structured import overrides_nothing
from nestruct.noise import Noise
from nestruct.structures import Categorical
from nestruct.structures.solvers import count_solved

# Layers that act on each example alone and hold nothing but parameters.
_SAVED_LAYERS = {
    nn.Linear,
    nn.LayerNorm,
    nn.Flatten,
    nn.Unflatten,
    nn.Identity,
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid),
}


def categorical_losses(
    model: nn.Module, population: Population, batch: Any, noise: Noise
) -> Tensor | None:
    """``[members, batch]`` of a `StructuredVAE` over one category; None where that is not it."""
    if not isinstance(model, StructuredVAE) or not _has_savings(model, batch):
        return None
    structure: Any = model.structure
    scores = sequential(population, model.encoder, "encoder.", batch)  # type: ignore[arg-type]
    if scores.dim() != 3:  # several categories per example
        return None
    members, examples = scores.shape[:2]
    if isinstance(noise.pair, Tensor):
        gumbel = torch.func.vmap(lambda pair: noise.replace(pair=pair).gumbel(scores[0]))
        draws = gumbel(noise.pair)
    else:
        draws = noise.gumbel(scores[0])
    best, choice = (scores + draws).max(-1)  # what structure.argmax marks
    count_solved(members * examples)
    classes = torch.eye(structure.num_classes, dtype=scores.dtype, device=scores.device)
    parameters = sequential(population, model.decoder, "decoder.", classes)  # type: ignore[arg-type]
    if parameters.shape[2:] != batch.shape[1:]:
        return None  # the model itself refuses it in a sentence
    if model.likelihood == "bernoulli" and model.bound is None:
        # x . logits - softplus(logits): linear in x, so one product serves all examples.
        flat, x = parameters.flatten(2), batch.flatten(1)
        table = flat @ x.T - nn.functional.softplus(flat).sum(-1, keepdim=True)
        log_likelihood = table.gather(1, choice[:, None])[:, 0]
    else:
        index = choice.view(members, examples, *[1] * (parameters.dim() - 2))
        chosen = parameters.gather(1, index.expand(members, examples, *parameters.shape[2:]))
        log_likelihood = model.log_likelihood(chosen, batch)
    kl = model.divergence(scores.flatten(0, 1), batch).view(members, examples)
    return kl - torch.where(best.isfinite(), log_likelihood, torch.nan)


def _has_savings(model: StructuredVAE, batch: Any) -> bool:
    """Whether this is exactly the model that the savings are derived for."""
    if not overrides_nothing(model, StructuredVAE, "log_likelihood"):
        return False
    if callable(model.kl) or callable(model.likelihood):
        return False
    if type(model.encoder) is not nn.Sequential or type(model.decoder) is not nn.Sequential:
        return False
    if type(model.structure) is not Categorical or not isinstance(batch, Tensor):
        return False
    layers = [layer for part in (model.encoder, model.decoder) for layer in part]
    if any(type(layer) not in _SAVED_LAYERS for layer in layers):
        return False
    modules = list(model.modules())
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return False
    shared = len(list(model.named_parameters(remove_duplicate=False)))
    return shared == len(list(model.parameters()))


@torch.no_grad()
def sequential(population: Population, layers: nn.Sequential, prefix: str, x: Tensor) -> Tensor:
    """``[members, ...]``: what every member's layers make of one shared input.

    A linear layer never forms its members' weights.
    """
    mapped = False  # whether x has an axis of members by now
    for name, layer in layers._modules.items():  # named_children leaves out repeated layers
        assert layer is not None
        inner = f"{prefix}{name}."
        names = (*population.directions, *population.factors)
        perturbed = any(key.startswith(inner) for key in names)
        if f"{inner}weight" in population.factors and isinstance(layer, nn.Linear):
            x = _linear_of_rank_one(population, layer, inner, x, mapped)
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
    return x if mapped else x.expand(population.num_members, *x.shape)


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
    factors, bias = (
        population.factors[f"{prefix}weight"],
        population.directions.get(f"{prefix}bias"),
    )
    pairs, halves = population.num_pairs, 2 if population.mirrored else 1
    base = layer(x)
    shape = (population.num_members, *base.shape[mapped:])
    if mapped:
        rows = x.reshape(halves, pairs, -1, x.shape[-1])
        inner = (rows @ factors.right[..., None]).flatten(0, 1)
        base = base.flatten(1, -2)
    else:
        inner = (x.flatten(0, -2) @ factors.right.T).T[..., None].repeat(halves, 1, 1)
        base = base.flatten(0, -2).expand(len(inner), -1, -1)
    own = (factors.left * factors.scale)[:, None]
    if bias is not None:
        inner = torch.cat([inner, torch.ones_like(inner)], -1)
        own = torch.cat([own, bias[:, None]], 1)
    own = torch.cat([own, -own]) if population.mirrored else own
    return torch.baddbmm(base, inner, own).view(shape)  # both terms in one pass
