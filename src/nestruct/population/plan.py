"""How a population is evaluated: vmapped or looped, and how many pairs at once."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nestruct.checks import check_choice, check_count, check_value
from nestruct.errors import InputError, first_line
from nestruct.models.hooks import HasMemberBytes
from nestruct.noise import Noise
from nestruct.population import budget
from nestruct.population.evaluate import CannotVmapError, needs_loop
from nestruct.population.layout import Layout

_CLEARLY_FASTER = 0.6  # of the other's time
_OWN_TERMS = 3  # times a layer's output: the shared product, the member's own terms, their sum


@dataclass
class EvaluationPlan:
    """What was decided for one model."""

    mode: str
    chunk: int  # pairs at a time
    keep: bool  # whether all directions stay in memory until the gradient is computed
    size: int  # parameters perturbed: another model needs another plan

    def __post_init__(self) -> None:
        check_choice("EvaluationPlan: mode", self.mode, ("auto", "vmap", "loop"))
        check_value("EvaluationPlan: keep", self.keep, bool)
        for name in ("chunk", "size"):  # with chunks of 0 pairs a step would never end
            check_count("EvaluationPlan", name, getattr(self, name), 1)


def fit_memory(
    model: nn.Module,
    layout: Layout,
    seen: Any,
    noise: Noise,
    *,
    width: int,
    factored: bool,
    is_shared: bool,
    num_pairs: int,
    mirrored: bool,
    chunk_size: int | None,
    memory_budget: int | None,
) -> EvaluationPlan:
    """A plan whose chunks fit into memory.

    Args:
        model: What is evaluated.
        layout: The parameters that are perturbed.
        seen: The examples that one member sees.
        noise: Any, for one evaluation at the centre.
        width: How many numbers are drawn for a direction.
        factored: Whether members never form their weights.
        is_shared: Whether all members see these examples: a model may then know what it takes.
        num_pairs: Directions.
        mirrored: Whether each stands for two members.
        chunk_size: Members at once, where they are told.
        memory_budget: Bytes; a quarter of what is free when None.
    """
    room = memory_budget or budget.default_budget(layout.device)
    element = torch.empty(0, dtype=layout.dtype).element_size()
    if chunk_size is not None:
        chunk = max(1, chunk_size // (2 if mirrored else 1))
    else:
        activations = None
        if is_shared and isinstance(model, HasMemberBytes):
            activations = model.member_bytes(seen)
        if activations is None:
            activations = budget.activation_bytes(model, seen, noise)
        if factored:
            activations *= _OWN_TERMS
        size = width if factored else layout.size
        chunk = budget.pairs_within(room, size, element, activations, mirrored)
    keep = budget.keeps_directions(room, num_pairs, width, element)
    return EvaluationPlan("auto", min(chunk, num_pairs), keep, layout.size)


def choose_mode(
    model: nn.Module,
    device: torch.device,
    pairs: int,
    trial: Callable[[str], None],
    factored: bool,
) -> tuple[str, str]:
    """``vmap`` or ``loop``, and why: where both are possible, the faster one.

    Args:
        model: What is evaluated.
        device: Where.
        pairs: How many of them ``trial(mode)`` evaluates.
        trial: Evaluates a few pairs in a mode.
        factored: Whether directions are of rank one: recurrent layers are then vmapped too.
    """
    recurrent = needs_loop(model)
    if device.type != "cpu" and not recurrent:
        return "vmap", "on an accelerator"
    spent = {}
    for mode in ("vmap", "loop"):
        try:
            for _ in range(2):  # the first pays for warming up
                start = time.perf_counter()
                trial(mode)
                spent[mode] = time.perf_counter() - start
        except CannotVmapError as error:
            if factored:
                return "loop", f"it cannot be vmapped: {first_line(error)}"
            return "loop", "it has recurrent layers that cannot be vmapped"
        except InputError:
            raise
        except Exception as error:
            if mode == "loop":
                raise
            return "loop", f"it cannot be vmapped: {first_line(error)}"
        if recurrent and not factored:
            return "vmap", "by its own population_losses"
    # Near a tie always the same: a run repeated on the same machine then does the same.
    mode = "loop" if spent["loop"] < _CLEARLY_FASTER * spent["vmap"] else "vmap"
    times = ", ".join(f"{name} {1e3 * s / pairs:.1f} ms" for name, s in spent.items())
    return mode, f"a pair takes {times}"
