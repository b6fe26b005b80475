"""How NES evaluates the members of one model: together or one by one, and how many at a time."""

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nestruct.data import select_rows
from nestruct.errors import InputError, first_line
from nestruct.noise import Noise
from nestruct.population import Layout, budget, needs_loop
from nestruct.population.evaluate import CannotVmapError

if TYPE_CHECKING:
    from nestruct.estimators.nes import NES

log = logging.getLogger("nestruct")

_CLEARLY_FASTER = 0.6  # of the other's time


@dataclass
class Plan:
    """What was decided for one model: how members are evaluated, and how many pairs at once."""

    mode: str
    chunk: int
    keep: bool
    size: int  # parameters perturbed: another model needs another plan


def decide(nes: "NES", model: nn.Module, layout: Layout, batch: Any, seed: int) -> Plan:
    """Chooses chunk and mode, once; says in one line what it chose."""
    plan = nes._plan
    if plan is not None and plan.size == layout.size:  # made for a model like this one
        return plan
    room = nes.memory_budget or budget.default_budget(layout.device)
    element = torch.empty(0, dtype=layout.dtype).element_size()
    noise = Noise(seed=seed)
    if nes.chunk_size is not None:
        chunk = max(1, nes.chunk_size // (2 if nes.mirrored else 1))
    else:
        activations = None
        if hasattr(model, "member_bytes") and nes.minibatch == "shared":
            activations = model.member_bytes(batch)  # type: ignore[operator]
        if activations is None:
            rows = nes._pair_rows(batch, noise, layout.device)
            seen = batch if rows is None else select_rows(batch, rows[0])
            activations = budget.activation_bytes(model, seen, noise)
        chunk = budget.pairs_within(room, layout.size, element, activations, nes.mirrored)
    chunk = min(chunk, nes.num_pairs)
    keep = budget.keeps_directions(room, nes.num_pairs, layout.size, element)
    plan = Plan(nes.mode, chunk, keep, layout.size)
    if nes.mode == "auto":
        plan.mode, reason = _choose_mode(nes, model, layout, batch, noise, plan)
        log.info("NES: %s (%s), %d pairs at a time.", plan.mode, reason, plan.chunk)
    return plan


def _choose_mode(
    nes: "NES", model: nn.Module, layout: Layout, batch: Any, noise: Noise, plan: Plan
) -> tuple[str, str]:
    recurrent = needs_loop(model)
    if layout.device.type != "cpu" and not recurrent:
        return "vmap", "on an accelerator"
    pairs = min(4, plan.chunk)
    flat = torch.empty(pairs, layout.size, dtype=layout.dtype, device=layout.device)
    nes._fill(flat, 0, noise)
    rows = nes._pair_rows(batch, noise, layout.device)
    spent = {}
    for mode in ("vmap", "loop"):
        trial = Plan(mode, pairs, False, layout.size)
        losses = torch.zeros(nes.population_size, dtype=torch.float64, device=layout.device)
        try:
            for _ in range(2):  # the first pays for warming up
                start = time.perf_counter()
                nes._evaluate(model, layout, flat, 0, batch, noise, rows, trial, losses)
                spent[mode] = time.perf_counter() - start
        except CannotVmapError:
            return "loop", "it has recurrent layers that cannot be vmapped"
        except InputError:
            raise
        except Exception as error:
            if mode == "loop":
                raise
            return "loop", f"it cannot be vmapped: {first_line(error)}"
        if recurrent:
            return "vmap", "by its own population_losses"
    # Near a tie always the same: a run repeated on the same machine then does the same.
    mode = "loop" if spent["loop"] < _CLEARLY_FASTER * spent["vmap"] else "vmap"
    times = ", ".join(f"{name} {1e3 * s / pairs:.1f} ms" for name, s in spent.items())
    return mode, f"a pair takes {times}"
