"""Sums over the monotone paths of a grid, and exact samples: by antidiagonals, in the log domain.

The recurrence is that of ``solvers/monotone_path.py`` with a log of a sum of exponentials in place
of max: additions of positive numbers only, so it is right at any score scale.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from nestruct.structures.draws import Draws
from nestruct.structures.relaxations import log_domain
from nestruct.structures.relaxations.log_domain import FORBIDDEN


class Layout(NamedTuple):
    """Which parts enter the cells of each antidiagonal, and where paths begin and end."""

    west: Tensor  # [steps, height], one past the last part where there is none
    north: Tensor
    start_step: Tensor  # [*batch]
    start_row: Tensor
    goal_step: Tensor
    goal_row: Tensor
    start_part: Tensor | None  # the start's own part, if a cell is one


def log_paths(scores: Float[Tensor, "*batch parts"], layout: Layout) -> Float[Tensor, "*batch"]:
    """Log of the sum over all paths of the exponentiated sum of their scores."""
    states = torch.stack(_states(scores, layout)[0], -2)
    place = layout.goal_step * states.shape[-1] + layout.goal_row
    return states.flatten(-2).gather(-1, place[..., None])[..., 0]


def sample_paths(
    scores: Float[Tensor, "*batch parts"], layout: Layout, draws: Draws
) -> Float[Tensor, "*batch parts"]:
    """One exact draw per row: back from the goal, move by move."""
    states, into_west, into_north = _states(scores, layout)
    uniform = draws.uniform(into_west[..., 0])  # one for each step
    row, marked = layout.goal_row, []
    for step in range(len(states) - 1, 0, -1):
        active = (step <= layout.goal_step) & (step > layout.start_step)
        place = row[..., None]
        west = states[step - 1].gather(-1, place) + into_west[..., step, :].gather(-1, place)
        north = _above(states[step - 1]).gather(-1, place)
        north = north + into_north[..., step, :].gather(-1, place)
        up = (uniform[..., step] < torch.sigmoid(north - west)[..., 0]) & active
        part = torch.where(up, layout.north[step][row], layout.west[step][row])
        marked.append(torch.where(active, part, scores.shape[-1]))
        row = torch.where(up, row - 1, row).clamp(min=0)
    if layout.start_part is not None:
        marked.append(layout.start_part)
    z = torch.zeros_like(pad(scores, (0, 1)))
    return (z.scatter(-1, torch.stack(marked, -1), 1.0) if marked else z)[..., :-1]


def _states(scores: Tensor, layout: Layout) -> tuple[list[Tensor], Tensor, Tensor]:
    """For each antidiagonal the sums of all paths that end there, by row; and what moves pay."""
    padded = pad(scores, (0, 1), value=FORBIDDEN)
    into_west, into_north = padded[..., layout.west], padded[..., layout.north]
    first = scores.new_zeros(*scores.shape[:-1], 1)
    if layout.start_part is not None:
        first = scores.gather(-1, layout.start_part[..., None])
    rows = torch.arange(into_west.shape[-1], device=scores.device)
    state, states = torch.full_like(into_west[..., 0, :], FORBIDDEN), []
    for step in range(into_west.shape[-2]):
        by_west = state + into_west[..., step, :]
        by_north = _above(state) + into_north[..., step, :]
        here = (layout.start_step == step)[..., None] & (rows == layout.start_row[..., None])
        # The clamp keeps impossible cells where they are: they would grow at every step.
        both = log_domain.add(by_west, by_north).clamp(min=FORBIDDEN)
        state = torch.where(here, first, both)
        states.append(state)
    return states, into_west, into_north


def _above(state: Tensor) -> Tensor:
    return pad(state[..., :-1], (1, 0), value=FORBIDDEN)
