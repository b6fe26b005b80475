"""Paths through a grid: shortest paths on maps, and those that only go east and south."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.checks import check_choice, check_count
from nestruct.errors import InputError
from nestruct.noise import Noise
from nestruct.structures import rows
from nestruct.structures.base import (
    MAX_ENUMERATED,
    GibbsStructure,
    SizedStructure,
    check_enumerable,
)
from nestruct.structures.context import Context
from nestruct.structures.draws import Draws
from nestruct.structures.k_paths import k_shortest, monotone_recurrence
from nestruct.structures.k_programme import KBestProgramme
from nestruct.structures.recurrence import Recurrence
from nestruct.structures.relaxations import path_sums
from nestruct.structures.relaxations.log_domain import FORBIDDEN
from nestruct.structures.solvers import solve
from nestruct.structures.solvers.grid_tables import MOVES, Grid
from nestruct.structures.solvers.monotone_path import between, edge_ends, skewed

_MAX_LISTED_CELLS = 25


class GridPath(SizedStructure):
    """A path through a grid from one corner to the other, or from start to goal.

    With monotone moves (to the east and south) there is all that a Gibbs law gives, and k-best
    lists. With four or eight moves the solver is Dijkstra's: scores are minus the costs, so a
    **positive score counts as 0** (a path could otherwise gain by walking in circles). Keep scores
    negative, as in ``-softplus(x)``, perturbation included.

    Args:
        height: Rows of cells.
        width: Columns of cells.
        moves: To the east and south only, in four directions, or in eight.
        scores: Of cells, ``[..., height, width]``: a path marks all its cells, both ends included.
            Or of edges, ``[..., edges]``, in PyEPO's order: row by row, first the edges to the east
            of its cells, then those to the next row (south; with eight moves then those to the
            south-east and south-west). An edge can be walked both ways, unless moves are monotone.

    Context ``start`` and ``goal``, numbers of cells (``row * width + column``), one per example,
    stand for the corners. Monotone, only what lies between them counts.

    With four or eight moves members over cells are the paths without shortcuts: cells that are
    neighbours follow one another. A best path can always be chosen so. Members over edges are the
    paths that meet no cell twice.

    Example:
        >>> import torch, nestruct
        >>> costs = torch.tensor([[1.0, 9.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 1.0]])
        >>> nestruct.GridPath(3, 3).argmax(-costs)
        tensor([[1., 0., 0.],
                [1., 0., 0.],
                [1., 1., 1.]])
        >>> nestruct.GridPath(3, 3, moves="eight").argmax(-costs, goal=torch.tensor(2))
        tensor([[1., 0., 1.],
                [1., 0., 1.],
                [0., 1., 0.]])
    """

    counts_solved = True
    context_names = ("start", "goal")
    nested = False
    forced_by_scores = False
    _solver = "shortest_path"

    def __new__(cls, *args: Any, moves: str = "monotone", **options: Any) -> "GridPath":
        """A `MonotonePath` where moves are monotone: methods tell what a space has."""
        return object.__new__(MonotonePath if cls is GridPath and moves == "monotone" else cls)

    def __getnewargs_ex__(self) -> tuple[tuple, dict[str, str]]:
        """What a copy is made with: without its moves it would be a `MonotonePath`."""
        return (self.height, self.width), {"moves": self.grid.moves}

    def __init__(
        self,
        height: int,
        width: int,
        *,
        moves: Literal["monotone", "four", "eight"] = "monotone",
        scores: Literal["cells", "edges"] = "cells",
    ) -> None:
        self.height = check_count("GridPath", "height", height, 1, 1 << 15)
        self.width = check_count("GridPath", "width", width, 1, 1 << 15)
        check_choice("GridPath: moves", moves, MOVES)
        check_choice("GridPath: scores", scores, ("cells", "edges"))
        self.grid = Grid(self.height, self.width, moves, scores == "edges")
        cells = (self.height, self.width)
        self.part_shape = (self.grid.num_edges,) if self.grid.edges else cells

    def __repr__(self) -> str:
        kind = "edges" if self.grid.edges else "cells"
        return f"GridPath({self.height}, {self.width}, moves={self.grid.moves!r}, scores={kind!r})"

    def argmax(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "..."]:
        """The best path. See `Structure.argmax`."""
        context = self._check("argmax", scores, context)
        flat = self._flat(scores)
        if context:
            start, goal, fits = self._ends(flat, context)
            ends = torch.where(fits, start * self.grid.num_cells + goal, -1)
        else:  # corner to corner, which small batches need not work out each time
            ends = torch.full((), self.grid.num_cells - 1, device=flat.device)
        z = solve(flat, ends, self._solver, self.grid.code, f"{self!r}.argmax")
        return z.view(scores.shape)

    def enumerate(self, size: Any = None) -> Float[Tensor, "..."]:
        """Every path of a small grid; ``size``: start and goal, the corners when left out."""
        start, goal = self._pairs("enumerate", size).tolist()
        z = torch.tensor(list(self._members(start, goal)), dtype=torch.get_default_dtype())
        return z.view(len(z), *self.part_shape)

    def contains(self, z: Tensor, **context: Tensor) -> Bool[Tensor, "*batch"]:
        """Whether each ``z`` marks a path."""
        legal = self._check_members(z, context)
        flat = self._flat(z == 1)
        start, goal, fits = self._ends(flat, self._check("contains", z.double(), context))
        rows.check_rows(torch.where(fits, rows.OK, rows.BAD_ENDS), f"{self!r}.contains")
        return legal & self._is_path(flat, start, goal) & fits

    def kbest(
        self, scores: Tensor, k: int, **context: Tensor
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """The k best paths of each row, best first. See `KBest.kbest`. Values differentiable.

        With four or eight moves, in the values too a positive score counts as 0.
        """
        owner = f"{self!r}.kbest"
        k = check_count(owner, "k", k, 1)
        given, flat = self._check("kbest", scores, context), self._flat(scores)
        start, goal, fits = self._ends(flat, given)
        z, totals = k_shortest(flat, torch.where(fits, start, -1), goal, self.grid, k, owner)
        values = torch.where(z, flat.clamp(max=0.0), 0.0).sum(-1, dtype=torch.float64)
        values = torch.where(totals == -torch.inf, totals, values).to(scores.dtype)
        members = torch.where(totals.isnan()[..., None], torch.nan, z.to(scores.dtype))
        values = torch.where(totals.isnan(), torch.nan, values)
        return members.view(k, *scores.shape), values

    def size_of(self, scores: Tensor, **context: Tensor) -> Any:
        """None, or start and goal, ``[..., 2]``."""
        if not context:
            return None
        return torch.stack(self._ends(self._flat(scores), context)[:2], -1)

    def _flat(self, scores: Tensor) -> Tensor:
        return scores.reshape(*scores.shape[: scores.dim() - self.part_axes], self.grid.num_parts)

    def _ends(self, flat: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Start and goal of each row, moved into the grid; and whether they were in it."""
        ends, fits, last = [], torch.ones((), dtype=torch.bool, device=flat.device), self.grid[:2]
        for name, corner in (("start", 0), ("goal", math.prod(last) - 1)):
            given = context.get(name)
            if given is None:
                given = torch.full(flat.shape[:-1], corner, device=flat.device)
            given = given.to(flat.device).long().expand(flat.shape[:-1])
            fits = fits & (given >= 0) & (given < self.grid.num_cells)
            ends.append(given.clamp(0, self.grid.num_cells - 1))
        return ends[0], ends[1], fits

    def _check(self, method: str, scores: Tensor, context: Any) -> Context:
        given = super()._check(method, scores, context)
        lead = scores.shape[: scores.dim() - self.part_axes]
        for name, value in given.items():
            if value.is_floating_point() or value.dtype == torch.bool or value.shape != lead:
                raise InputError(
                    f"{self!r}.{method}: the context {name!r} must be the number of a cell for "
                    f"each example, got {value.dtype} of shape {tuple(value.shape)}."
                )
        return given

    def _pairs(self, method: str, size: Any) -> Tensor:
        """Starts and goals ``[..., 2]``; the corners for None."""
        ends = torch.as_tensor((0, self.grid.num_cells - 1) if size is None else size)
        legal = ends.shape[-1:] == (2,) and not ends.is_floating_point()
        if not legal or not ((ends >= 0) & (ends < self.grid.num_cells)).all():
            raise InputError(
                f"{self!r}.{method}: it takes start and goal, two numbers of cells below "
                f"{self.grid.num_cells}, got {size!r}."
            )
        return ends.long()

    def _members(self, start: int, goal: int) -> Iterator[list[int]]:
        if self.grid.num_cells > _MAX_LISTED_CELLS:
            raise InputError(
                f"{self!r}.enumerate: the paths of more than {_MAX_LISTED_CELLS} cells are too "
                "many to list; use a smaller size."
            )
        sources, parts = (table.tolist() for table in self.grid.ways_in())
        ways = [dict(zip(*pair, strict=True)) for pair in zip(sources, parts, strict=True)]
        for way in ways:
            way.pop(self.grid.num_cells, None)
        found, paths = 0, [[start]]
        while paths:
            path = paths.pop()
            if path[-1] == goal:
                found += 1
                if found > MAX_ENUMERATED:
                    raise InputError(
                        f"{self!r}.enumerate: more than {MAX_ENUMERATED:,} paths are too many to "
                        "list; use a smaller size."
                    )
                edges = [ways[b][a] for a, b in itertools.pairwise(path)]
                marked = set(edges if self.grid.edges else path)
                yield [int(part in marked) for part in range(self.grid.num_parts)]
                continue
            for cell in ways[path[-1]]:
                before = path if self.grid.edges else path[:-1]
                shortcut = cell in path or (
                    not self.grid.edges and any(cell in ways[other] for other in before)
                )
                if not shortcut:
                    paths.append([*path, cell])

    def _is_path(self, marked: Tensor, start: Tensor, goal: Tensor) -> Tensor:
        """One neighbour at both ends, two in between, and all joined."""
        sources, parts = self.grid.ways_in(marked.device)
        padded = torch.nn.functional.pad(marked, (0, 1))
        cell = torch.arange(self.grid.num_cells, device=marked.device)
        ends = (cell == start[..., None]).long() + (cell == goal[..., None]).long()
        joined = padded[..., parts if self.grid.edges else sources]
        if self.grid.edges:
            touched = joined.any(-1) | (ends > 0)
        else:
            touched = marked
            joined = joined & marked[..., None]
        degrees = joined.sum(-1) == torch.where(touched, 2 - ends, 0)
        legal = degrees.all(-1) & (touched | (ends == 0)).all(-1)
        reached = cell == start[..., None]
        for _ in range(self.grid.num_cells):
            spread = torch.nn.functional.pad(reached, (0, 1))[..., sources] & joined
            grown = reached | spread.any(-1)
            if torch.equal(grown, reached):
                break
            reached = grown
        return legal & (reached == touched).all(-1)


class MonotonePath(KBestProgramme, GridPath, GibbsStructure):
    """What `GridPath` is with monotone moves: a dynamic programme, and a space with a Gibbs law."""

    forced_by_scores = True
    _solver = "monotone_path"
    _no_goal = rows.BAD_ENDS

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Parts from corner to corner."""
        return self.height + self.width - (2 if self.grid.edges else 1)

    def log_count(self, lengths: Any = None) -> Float[Tensor, "*batch"]:
        """Log of a binomial coefficient; ``lengths``: starts and goals ``[..., 2]``, if any."""
        ends = self._pairs("log_count", lengths)
        down = (ends[..., 1] // self.width - ends[..., 0] // self.width).double()
        right = (ends[..., 1] % self.width - ends[..., 0] % self.width).double()
        ways = (down + right + 1).lgamma() - (down + 1).lgamma() - (right + 1).lgamma()
        return torch.where((down < 0) | (right < 0), -torch.inf, ways)

    def counting(self, scores: Tensor, **context: Tensor) -> Tensor | None:
        """What lies between start and goal; None for the corners."""
        if not context:
            return None
        start, goal, _ = self._ends(self._flat(scores), context)
        return between(self.grid, start, goal).view(scores.shape)

    def sample(
        self, scores: Tensor, draws: torch.Generator | Noise, **context: Tensor
    ) -> Float[Tensor, "..."]:
        """One exact draw per row from the Gibbs law."""
        source = Draws(f"{self!r}.sample", draws)
        scores = source.repeat(scores)
        context = self._check("sample", scores, context)
        failed = self._log_z("sample", scores, context).isnan()
        normal = self._flat(self._normalise(scores.detach(), **context)[0])
        z = path_sums.sample_paths(normal, self._layout(normal, context), source)
        return torch.where(failed[..., None], torch.nan, z).view(scores.shape)

    def _problem(
        self, method: str, scores: Tensor, context: Mapping[str, Any]
    ) -> tuple[Recurrence, Tensor, Tensor]:
        given, flat = self._check(method, scores, context), self._flat(scores)
        start, goal, fits = self._ends(flat, given)
        flat = torch.where(between(self.grid, start, goal), flat, -torch.inf)
        cell = torch.arange(self.grid.num_cells, device=flat.device)
        begins = torch.where(cell == start[..., None], 0.0, -torch.inf).to(flat)
        flat = torch.cat([flat, begins.expand(*flat.shape[:-1], -1)], -1)
        recurrence = monotone_recurrence(self.grid)
        return recurrence, torch.where(fits, recurrence.goals_at(goal), -1), flat

    def _members(self, start: int, goal: int) -> Iterator[list[int]]:
        check_enumerable(repr(self), float(self.log_count((start, goal))))
        parts = self.grid.ways_in()[1].tolist()
        down = goal // self.width - start // self.width
        right = goal % self.width - start % self.width
        for souths in (
            itertools.combinations(range(down + right), down) if right >= 0 <= down else ()
        ):
            cell, marked = start, set() if self.grid.edges else {start}
            for move in range(down + right):
                cell += self.width if move in souths else 1
                marked.add(parts[cell][1 if move in souths else 0])
            yield [int(part in marked) for part in range(self.grid.num_parts)]

    def _is_path(self, marked: Tensor, start: Tensor, goal: Tensor) -> Tensor:
        if self.grid.edges:  # a flow of 1; there are no circles
            first, last = edge_ends(self.grid, marked.device)
            cell = torch.arange(self.grid.num_cells, device=marked.device)
            flow = (cell == start[..., None]).long() - (cell == goal[..., None]).long()
            on = marked.long()
            flow = flow.index_add(-1, last, on).index_add(-1, first, -on)
            return (flow == 0).all(-1)
        # One cell on each antidiagonal from start to goal, in the same row or the next.
        step = torch.arange(self.height + self.width - 1, device=marked.device)
        row = torch.arange(self.height, device=marked.device)
        column = step[:, None] - row
        there = (column >= 0) & (column < self.width)
        by_step = marked[..., torch.where(there, row * self.width + column, 0)] & there
        begin, end = (end // self.width + end % self.width for end in (start, goal))
        used = (step >= begin[..., None]) & (step <= end[..., None])
        one = (by_step.sum(-1) == used.long()).all(-1)
        place = by_step.int().argmax(-1)
        change = place.diff(dim=-1)
        follows = ((change == 0) | (change == 1)) | ~(used[..., 1:] & used[..., :-1])
        at_ends = [marked.gather(-1, end[..., None])[..., 0] for end in (start, goal)]
        return one & follows.all(-1) & at_ends[0] & at_ends[1]

    def _layout(self, flat: Tensor, context: Context) -> path_sums.Layout:
        start, goal, _ = self._ends(flat, context)
        west, north = skewed(self.grid, flat.device)
        return path_sums.Layout(
            west,
            north,
            start_step=start // self.width + start % self.width,
            start_row=start // self.width,
            goal_step=goal // self.width + goal % self.width,
            goal_row=goal // self.width,
            start_part=None if self.grid.edges else start,
        )

    def _normalise(self, scores: Tensor, **context: Tensor) -> tuple[Tensor, Tensor]:
        # Every path has one part in each step: the best of a step can be taken off all of them.
        flat = self._flat(scores)
        start, goal, _ = self._ends(flat, context)
        counts = between(self.grid, start, goal)
        inner = torch.where(counts, flat.detach(), -torch.inf)
        padded = torch.nn.functional.pad(inner, (0, 1), value=-torch.inf)
        west, north = skewed(self.grid, flat.device)
        if not self.grid.edges:  # the start's own cell, which nothing enters
            west = torch.where(west == self.grid.num_parts, north, west)
            west = torch.cat([torch.zeros_like(west[:1]), west[1:]])
        tops = torch.maximum(padded[..., west], padded[..., north]).amax(-1)
        tops = torch.where(tops == -torch.inf, 0.0, tops)
        step = self._steps(flat.device)
        normal = torch.where(counts, flat - tops[..., step], FORBIDDEN).clamp(min=FORBIDDEN)
        return normal.view(scores.shape), tops.sum(-1)

    def _steps(self, device: torch.device) -> Tensor:
        """The antidiagonal of each part; an edge has that of its second cell."""
        cell = torch.arange(self.grid.num_cells, device=device)
        if self.grid.edges:
            cell = edge_ends(self.grid, device)[1]
        return cell // self.width + cell % self.width

    def _log_partition(self, scores: Tensor, **context: Tensor) -> Tensor:
        flat = self._flat(scores)
        return path_sums.log_paths(flat, self._layout(flat, context))

    def _context_codes(self, codes: Tensor, scores: Tensor, **context: Tensor) -> Tensor:
        fits = self._ends(self._flat(scores), context)[2]
        return torch.where(fits, codes, rows.BAD_ENDS)
