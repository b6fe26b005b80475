"""Exact savings of a population: what members share is computed once.

With a Categorical structure a decoder sees only K distinct inputs, whatever the batch; see
`nestruct.population.layers` for the rest.
"""

from typing import Any

import torch
from torch import Tensor, nn

from nestruct.members import Population
from nestruct.models import StructuredVAE
from nestruct.models.structured import overrides_nothing
from nestruct.noise import Noise
from nestruct.population.layers import has_kernels, member_products, own_terms, sequential
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
    model: nn.Module, population: Population, batch: Any, noise: Noise, rows: Tensor | None = None
) -> Tensor | None:
    """``[members, batch]`` of a `StructuredVAE` over one category; None where that is not it.

    Args:
        model: Any model.
        population: The members.
        batch: All examples.
        noise: What the structure's noise is drawn from.
        rows: Each member's own examples; all examples when None.
    """
    if not isinstance(model, StructuredVAE) or not _has_savings(model, batch):
        return None
    if rows is not None:
        return _of_own_examples(model, population, batch, noise, rows)
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


def _of_own_examples(
    model: StructuredVAE, population: Population, batch: Tensor, noise: Noise, rows: Tensor
) -> Tensor | None:
    """``[members, examples]`` where directions are of rank one; None where that is not it."""
    structure: Any = model.structure
    if not population.factors:
        return None
    scores = sequential(population, model.encoder, "encoder.", batch, rows)  # type: ignore[arg-type]
    if scores.dim() != 3:
        return None
    if isinstance(noise.pair, Tensor):
        own = lambda pair, row: noise.replace(pair=pair, example=row).gumbel(scores[0])  # noqa: E731
        draws = torch.func.vmap(own)(noise.pair, rows)
    else:  # the same for all that see an example
        draws = noise.gumbel(scores.new_empty(len(batch), scores.shape[-1]))[rows]
    best, choice = (scores + draws).max(-1)
    count_solved(choice.numel())
    classes = torch.eye(structure.num_classes, dtype=scores.dtype, device=scores.device)
    log_likelihood = _log_likelihood(model, population, batch, rows, classes, choice)
    if log_likelihood is None:
        return None
    kl = model.divergence(scores.flatten(0, 1), batch).view(rows.shape)
    return kl - torch.where(best.isfinite(), log_likelihood, torch.nan)


def _log_likelihood(
    model: StructuredVAE,
    population: Population,
    batch: Tensor,
    rows: Tensor,
    classes: Tensor,
    choice: Tensor,
) -> Tensor | None:
    """``[members, examples]``; on a GPU logits are never written to memory."""
    decoder: Any = model.decoder
    last, prefix = decoder[-1], f"decoder.{list(decoder._modules)[-1]}."
    is_plain = model.likelihood == "bernoulli" and model.bound is None
    fits = isinstance(last, nn.Linear) and f"{prefix}weight" in population.factors
    if is_plain and fits and len(decoder) > 1 and batch.dim() == 2 and has_kernels(batch):
        from nestruct.population.savings_cuda import bernoulli

        hidden = sequential(population, decoder[:-1], "decoder.", classes, choice)
        inner = member_products(population, hidden, population.factors[f"{prefix}weight"].right)
        return bernoulli(hidden, last, *own_terms(population, prefix, inner), batch, rows)
    parameters = sequential(population, decoder, "decoder.", classes, choice)
    if parameters.shape[2:] != batch.shape[1:]:
        return None  # the model itself refuses it in a sentence
    x = batch[rows].flatten(0, 1)
    return model.log_likelihood(parameters.flatten(0, 1), x).view(rows.shape)


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
