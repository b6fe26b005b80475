"""Losses of a population: vmapped, or one member after the other."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nestruct.data import batch_size, select_rows
from nestruct.errors import InputError
from nestruct.members import Population
from nestruct.models.compiled import uncompiled
from nestruct.models.hooks import HasCapturable, HasPopulationLosses
from nestruct.noise import Noise, derive_seed, forked_generators
from nestruct.population.perturbed import PerturbedWeight, plain_recurrence
from nestruct.population.recurrent import CannotVmapError
from nestruct.population.savings import categorical_losses
from nestruct.structures import nan_rows


class _Loss(nn.Module):
    """Gives `torch.func.functional_call`, which calls ``forward``, a model's ``loss``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any, noise: Noise) -> Tensor:
        return self.model.loss(batch, noise)  # type: ignore[operator]


class _Sample(_Loss):
    """The same for the structures that a model draws."""

    def forward(self, batch: Any, noise: Noise) -> Tensor:
        return self.model.sample(batch, 1, noise)[0]  # type: ignore[operator]


def evaluate_members(
    model: nn.Module,
    population: Population,
    batch: Any,
    noise: Noise,
    *,
    mode: str,
    num_samples: int = 1,
    member_noise: Tensor | None = None,
    rows: Tensor | None = None,
) -> Float[Tensor, "population batch"]:
    """The loss of every member on every example; NaN where a member's structure has no answer.

    Args:
        model: Any module with ``loss(batch, noise) -> [batch]``; ``population_losses`` is used
            where it has one and examples are shared.
        population: The members.
        batch: The whole minibatch.
        noise: Seed and step; streams 0 .. num_samples - 1 are averaged.
        mode: ``vmap`` or ``loop``.
        num_samples: Draws of the structure per example.
        member_noise: ``[members]``, who draws: the same number draws the same. None: all the same.
        rows: ``[members, examples]``, each member's own examples. None: the whole batch for all.
    """
    streams = [noise.replace(stream=stream) for stream in range(num_samples)]
    with torch.no_grad(), nan_rows():
        if mode == "vmap":
            losses = _with_savings(model, population, batch, streams, member_noise, rows)
            if losses is not None:
                return losses
        if mode == "vmap" and needs_loop(model) and not population.factors:
            raise CannotVmapError("nn.LSTM, nn.GRU and nn.RNN cannot be vmapped: say mode='loop'.")
        run = _vmapped if mode == "vmap" else _looped
        return run(
            _member_loss(model, batch, streams), model, population, noise, member_noise, rows
        )


def sample_members(
    model: nn.Module, population: Population, batch: Any, noise: Noise
) -> Float[Tensor, "population batch ..."]:
    """Every member's perturb-and-MAP structures, one after the other; NaN where it has none.

    Args:
        model: A `StructuredModel`.
        population: Mirrored pairs.
        batch: The examples.
        noise: Each mirrored pair has draws of its own.
    """
    wrapped, places = _Sample(model), tensor_places(model)

    def structures(state: dict[str, Tensor], pair: Any, rows: Any) -> Tensor:
        named = {f"model.{p}": tensor for name, tensor in state.items() for p in places[name]}
        seen = (batch, noise.replace(pair=pair))
        return torch.func.functional_call(wrapped, named, seen, tie_weights=False)

    pairs = torch.arange(population.num_pairs).repeat(2)
    with torch.no_grad(), nan_rows():
        return _looped(structures, model, population, noise, pairs, None)


def needs_loop(model: nn.Module) -> bool:
    """Whether a model holds a layer that cannot be vmapped (nn.LSTM, nn.GRU, nn.RNN)."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def is_training(model: nn.Module) -> bool:
    """Whether any part of a model is in training, where layers may edit buffers or draw."""
    return any(module.training for module in model.modules())


def may_capture(model: nn.Module, graph: str) -> bool:
    """Whether a step may be captured in a CUDA graph.

    Dropout draws from torch's own generator, which a captured step would not reseed. A model whose
    ``capturable`` is false is faster without (`StructuredModel.capturable`); ``on`` insists.
    """
    unwanted = graph != "on" and isinstance(model, HasCapturable) and not model.capturable
    return not unwanted and not has_dropout(model)


def has_dropout(model: nn.Module) -> bool:
    """Whether a model holds a layer that draws from torch's own generator in training."""
    kinds = (nn.modules.dropout._DropoutNd, nn.RReLU)
    return any(isinstance(module, kinds) and module.training for module in model.modules())


def tensor_places(model: nn.Module) -> dict[str, list[str]]:
    """Every place that each parameter and buffer is read from, by its first name.

    A tensor shared by two modules has two places; a module that is used twice has one.
    (functional_call's own tying of weights sets such a module's tensor twice and does not find the
    first one back.)
    """
    first = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
    places: dict[str, list[str]] = {}
    for prefix, module in model.named_modules():
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                place = f"{prefix}.{attribute}" if prefix else attribute
                places.setdefault(first[id(tensor)], []).append(place)
    return places


def _with_savings(
    model: nn.Module,
    population: Population,
    batch: Any,
    streams: list[Noise],
    member_noise: Tensor | None,
    rows: Tensor | None,
) -> Tensor | None:
    """Losses by the model's own ``population_losses``, or by savings of ours; None without."""
    results = []
    for noise in streams:
        if member_noise is not None:
            noise = noise.replace(pair=member_noise)
        if isinstance(model, HasPopulationLosses):
            if rows is not None:
                return None
            losses = model.population_losses(population.full(), batch, noise)
        else:
            losses = categorical_losses(model, population, batch, noise, rows)
        if losses is None or losses is NotImplemented:
            return None
        each = batch_size(batch) if rows is None else rows.shape[1]
        expected = (population.num_members, each)
        if tuple(losses.shape) != expected:
            raise InputError(
                f"population_losses must give [members, batch], {expected}; got "
                f"{tuple(losses.shape)}."
            )
        results.append(losses)
    return torch.stack(results).mean(0)


def _member_loss(model: nn.Module, batch: Any, streams: list[Noise]) -> Callable[..., Tensor]:
    wrapped = _Loss(model)
    places = tensor_places(model)
    examples = batch_size(batch)

    def loss(state: dict[str, Tensor], pair: Any, rows: Any) -> Tensor:
        mine = batch if rows is None else select_rows(batch, rows)
        total: Any = 0.0
        for noise in streams:
            if pair is not None:
                noise = noise.replace(pair=pair)
            if rows is not None:
                noise = noise.replace(example=rows)
            named = {f"model.{p}": tensor for name, tensor in state.items() for p in places[name]}
            losses = torch.func.functional_call(wrapped, named, (mine, noise), tie_weights=False)
            _check_losses(losses, examples if rows is None else len(rows))
            total = total + losses
        return total / len(streams)

    return loss


def _vmapped(loss, model, population, noise, member_noise, rows) -> Tensor:
    state = population.parameters()
    # Members get copies of the buffers: BatchNorm in training edits them.
    if is_training(model):
        members = population.num_members
        for name, buffer in model.named_buffers():
            state[name] = buffer.expand(members, *buffer.shape).clone()
    factors = population.member_factors()

    def member(state: dict[str, Tensor], factors: dict[str, Any], pair: Any, rows: Any) -> Tensor:
        weights = {
            name: PerturbedWeight.make(population.centre[name], left, right, name)
            for name, (left, right) in factors.items()
        }
        return loss(state | weights, pair, rows)

    dims = (
        dict.fromkeys(state, 0),
        dict.fromkeys(factors, 0),
        None if member_noise is None else 0,
        None if rows is None else 0,
    )
    has_cells = any(isinstance(m, nn.RNNBase | nn.RNNCellBase) for m in model.modules())
    with (
        fixed_dropout(model, noise),
        uncompiled(model),
        plain_recurrence(bool(factors) and has_cells),
    ):
        run = torch.func.vmap(member, in_dims=dims, randomness="same")
        return run(state, factors, member_noise, rows)


def _looped(loss, model, population, noise, member_noise, rows) -> Tensor:
    losses = []
    for member in range(population.num_members):
        state = population.member(member)
        if is_training(model):
            state |= {name: buffer.clone() for name, buffer in model.named_buffers()}
        with fixed_dropout(model, noise):
            losses.append(
                loss(
                    state,
                    None if member_noise is None else member_noise[member],
                    None if rows is None else rows[member],
                )
            )
    return torch.stack(losses)


@contextmanager
def fixed_dropout(model: nn.Module, noise: Noise):
    """Gives layers with randomness of their own the same draws for every member and chunk."""
    if not is_training(model) or isinstance(noise.step, Tensor):
        yield
        return
    with forked_generators(next(model.parameters()).device):
        torch.manual_seed(derive_seed(noise.seed, noise.step))
        yield


def changes_buffers_in_place(model: nn.Module) -> bool:
    """True if only torch's normalisation layers hold buffers: they change them in place."""
    return all(isinstance(module, _NormBase) for module in model.modules() if module._buffers)


def update_buffers(model: Any, batch: Any, noise: Noise) -> None:
    """One forward at the centre, so that running statistics follow it."""
    if list(model.buffers()) and is_training(model):
        with torch.no_grad(), nan_rows(), fixed_dropout(model, noise):
            model.loss(batch, noise)


def _check_losses(losses: Any, examples: int) -> None:
    if not isinstance(losses, Tensor) or losses.shape != (examples,):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            f"model.loss must give one loss per example, shape [batch] = ({examples},); got {got}."
        )
