"""A dynamic programme as data: which values are sums of which, and of which scores.

A **node** is a value of the programme, such as the best path to a state. An **edge** is one way to
come by it: the node at its ``first`` tail, for trees that of a ``second`` one too, and a ``part``
that this way adds to the member. With the two operations of a semiring,

    value(node)  =  sum over its edges of  value(first) x value(second) x score(part),

and whatever is asked of the space is this line with other operations: (max, +) for the best member,
(logsumexp, +) for the log-partition, the k best of a list for k-best. Every member must have one
derivation, so that none is counted twice.
"""

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestruct.structures.rows import is_capturing

_BY_HANDLE: "weakref.WeakValueDictionary[int, Recurrence]" = weakref.WeakValueDictionary()
_HANDLES = itertools.count()
_CAPTURED: list["Recurrence"] = []  # a graph reads their tensors as long as it lives


class Level(NamedTuple):
    """Nodes that need only earlier ones, and their edges, as tensors of indices."""

    heads: Tensor  # [nodes]
    first: Tensor  # [nodes, edges], as the next two
    second: Tensor
    part: Tensor
    is_binary: bool  # whether an edge has a second tail


class Edges(NamedTuple):
    """All edges, for kernels: those of ``heads[i]`` are from ``starts[i]`` to ``starts[i + 1]``."""

    heads: np.ndarray
    starts: np.ndarray
    first: np.ndarray
    second: np.ndarray
    part: np.ndarray
    place: np.ndarray  # of each node in heads; -1 where it starts


class Tables(NamedTuple):
    """`Edges` on a device, for kernels there."""

    tensors: tuple[Any, ...]  # where levels begin in heads, then the fields of `Edges`; how many
    most_nodes: int  # in a level


class Kernels(NamedTuple):
    """Kernels of a recurrence's own, where that pays: the same answers, ties too.

    On the CPU, ``best(rows, goals, z, codes)`` fills 0/1 ``z`` and a code per row, as
    `best_derivation.derivation_kernel`; ``sums(rows, goals, slopes, out, values)`` fills what
    `inside_outside` asks for by the shapes. Both are spread over threads by rows. On CUDA,
    ``sums_cuda(rows, slopes, want)`` gives what `inside_outside_batched.sums_batched` does, of the
    largest goal. On every device ``plain(scores)`` is the log-partition in operations of torch, for
    more derivatives than `inside_outside` has. None: as for every recurrence.
    """

    best: Callable[..., None] | None = None
    sums: Callable[..., None] | None = None
    sums_cuda: Callable[..., tuple[Tensor, Tensor]] | None = None
    plain: Callable[[Tensor], Tensor] | None = None


class Recurrence:
    """Nodes, edges and goals of a dynamic programme over instances of one size.

    Args:
        node_shape: Nodes are numbered from 0, as the entries of an array of this shape. Those that
            no level computes begin with the value 1 of the semiring: a total of 0.
        num_parts: Parts are numbered as in scores, flattened.
        levels: One tuple ``(heads, first, second, part)`` after the other. ``heads`` are the nodes
            that are computed, ``[nodes]``; the others are their edges, shapes that broadcast to
            ``[nodes, edges]``. In ``first``, -1 stands for no edge; in ``second`` and ``part`` for
            none; a tail of ``num_nodes``, one beyond the last node, for the value 1. A level reads
            nodes of earlier levels only.
        goals: The node that holds the answer, one for each length from 0 on, -1 where that length
            is not allowed: ``[size + 1]``, or an axis for each context that is a length.
        kernels: Faster ones, if there are any.

    Example:
        >>> import numpy as np
        >>> from nestruct.structures import Recurrence
        >>> node = np.arange(6).reshape(3, 2)  # 2 items; whether the last one was taken
        >>> levels = [
        ...     (node[i + 1], [node[i], [node[i, 0], -1]], -1, [[-1, -1], [i, -1]]) for i in (0, 1)
        ... ]
    """

    def __init__(
        self,
        node_shape: Sequence[int],
        num_parts: int,
        levels: Sequence[tuple[Any, ...]],
        goals: Any,
        *,
        kernels: Kernels | None = None,
    ) -> None:
        self.kernels = kernels
        self.node_shape, self.num_parts = tuple(node_shape), num_parts
        self.num_nodes = math.prod(node_shape)
        self.goals = np.asarray(goals)
        arrays = []
        for heads, *edges in levels:
            heads = np.asarray(heads).reshape(-1)
            shape = np.broadcast_shapes((len(heads), 1), *(np.shape(each) for each in edges))
            arrays.append((heads, *(np.broadcast_to(each, shape) for each in edges)))
        self._levels = arrays
        self.edges = self._flatten()
        self.max_edges: int = max((each[1].shape[1] for each in arrays), default=0)
        self.used = np.unique(self.edges.part[self.edges.part < num_parts])
        self.handle = next(_HANDLES)
        self._on: dict[torch.device, tuple[list[Level], Tensor, Tensor]] = {}
        self._tables: dict[torch.device, Tables] = {}
        _BY_HANDLE[self.handle] = self

    def __deepcopy__(self, memo: Any) -> "Recurrence":
        return self

    def _flatten(self) -> Edges:
        heads, counts, tails = [], [], []
        for head, *edges in self._levels:
            there = edges[0] >= 0
            heads.append(head)
            counts.append(there.sum(1))
            tails.append([each[there] for each in edges])
        first, second, part = (
            np.concatenate([edges[i] for edges in tails] or [np.empty(0)]).astype(np.int64)
            for i in range(3)
        )
        order = np.concatenate(heads or [np.empty(0)]).astype(np.int64)
        starts = np.concatenate([[0], *counts]).cumsum().astype(np.int64)
        place = np.full(self.num_nodes + 1, -1, np.int64)
        place[order] = np.arange(len(order))
        # Behind the last node is one that always holds 1; behind the last part, a score of 0.
        second = np.where(second < 0, self.num_nodes, second)
        part = np.where(part < 0, self.num_parts, part)
        return Edges(order, starts, first, second, part, place)

    def levels(self, like: Tensor) -> list[Level]:
        """The levels on the device of a tensor; a missing edge has a score of -inf."""
        return self._at(like)[0]

    def tables(self, like: Tensor) -> Tables:
        """All edges on the device of a tensor."""
        self._keep_if_captured(like)
        if like.device not in self._tables:
            sizes = [len(heads) for heads, *_ in self._levels]
            arrays = [np.cumsum([0, *sizes]), *self.edges]
            tensors = [torch.from_numpy(each.astype(np.int32)).to(like.device) for each in arrays]
            self._tables[like.device] = Tables((*tensors, len(sizes)), max(sizes, default=0))
        return self._tables[like.device]

    def _keep_if_captured(self, like: Tensor) -> None:
        if is_capturing(like) and self not in _CAPTURED:
            _CAPTURED.append(self)

    def goals_at(self, *lengths: Tensor) -> Tensor:
        """The goal of each row; -1 where a length does not fit."""
        table = self._at(lengths[0])[1]
        fits, index = lengths[0] >= 0, torch.zeros_like(lengths[0])
        for length, size in zip(lengths, table.shape, strict=True):
            fits = fits & (length >= 0) & (length < size)
            index = index * size + length.clamp(0, size - 1)
        # Brackets would read an index without axes on the host, which no capture allows.
        return torch.where(fits, table.flatten()[index.unsqueeze(-1)].squeeze(-1), -1)

    def used_on(self, like: Tensor) -> Tensor:
        """Which parts are on an edge, ``[parts]``."""
        return self._at(like)[2]

    def _at(self, like: Tensor) -> tuple[list[Level], Tensor, Tensor]:
        self._keep_if_captured(like)
        if like.device not in self._on:
            levels = []
            for heads, first, second, part in self._levels:
                there = first >= 0
                arrays = (
                    np.where(there, first, self.num_nodes),
                    np.where(there & (second >= 0), second, self.num_nodes),
                    np.where(there, np.where(part < 0, self.num_parts, part), self.num_parts + 1),
                )
                head, one, two, own = (
                    torch.from_numpy(each.astype(np.int64)).to(like.device)
                    for each in (heads, *arrays)
                )
                levels.append(Level(head, one, two, own, bool((there & (second >= 0)).any())))
            used = torch.zeros(self.num_parts, dtype=torch.bool)
            used[torch.from_numpy(self.used)] = True
            goals = torch.from_numpy(self.goals.astype(np.int64))
            self._on[like.device] = levels, goals.to(like.device), used.to(like.device)
        return self._on[like.device]


def recurrence_of(handle: int) -> Recurrence:
    """The recurrence with this number: an op of torch's takes numbers only."""
    return _BY_HANDLE[handle]


def score_table(rows: Tensor, nothing: float) -> Tensor:
    """Scores in float64, with the two that levels read besides: 0 and what forbids."""
    wide = rows.double().clamp(min=nothing)
    ends = [wide.new_full((len(rows), 1), value) for value in (0.0, nothing)]
    return torch.cat([wide, *ends], 1)


def value_table(recurrence: Recurrence, table: Tensor) -> Tensor:
    """Values of all nodes, ``[rows, nodes + 1]``: 0 where a derivation starts."""
    return table.new_zeros(len(table), recurrence.num_nodes + 1)


def edge_values(level: Level, values: Tensor, table: Tensor) -> Tensor:
    """The totals by each edge, ``[..., nodes, edges]``."""
    return (values[..., level.first] + values[..., level.second]) + table[..., level.part]


def plain_tables(recurrence: Recurrence) -> dict[int, list[tuple]]:
    """For twins and lists: the edges of each node, as ``(first, second or None, part or None)``."""
    edges = recurrence.edges
    table: dict[int, list[tuple]] = {}
    for i, head in enumerate(edges.heads.tolist()):
        mine = slice(edges.starts[i], edges.starts[i + 1])
        table[head] = [
            (
                a,
                b if b < recurrence.num_nodes else None,
                p if p < recurrence.num_parts else None,
            )
            for a, b, p in zip(
                edges.first[mine].tolist(),
                edges.second[mine].tolist(),
                edges.part[mine].tolist(),
                strict=True,
            )
        ]
    return table
