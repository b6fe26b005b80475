"""Spaces that are dynamic programmes: a subclass gives its recurrence, and has everything.

One `Recurrence`, run with other operations, is the best member, the log-partition with two
derivatives, exact samples, the k best members and max-marginals; and what a member is: a list of
them, their number, and whether something is one.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.noise import Noise
from nestruct.structures import rows
from nestruct.structures.base import (
    GibbsStructure,
    check_enumerable,
    check_floating,
    members_as_floats,
)
from nestruct.structures.context import Context, check_context, check_lengths, whole_numbers
from nestruct.structures.draws import Draws
from nestruct.structures.k_programme import KBestProgramme
from nestruct.structures.recurrence import (
    Recurrence,
    edge_values,
    plain_tables,
    score_table,
    value_table,
)
from nestruct.structures.relaxations import inside_outside
from nestruct.structures.relaxations.log_domain import FORBIDDEN
from nestruct.structures.solvers import solve


class DynamicProgramme(KBestProgramme, GibbsStructure):
    """A space whose members are the derivations of a `Recurrence`.

    A subclass gives `shape` and `recurrence`, and says in its class what its sizes are.
    """

    counts_solved = True
    length_axes: tuple[tuple[str, int, int], ...] = (("lengths", 0, 0),)
    """``(name, axis, more)``: that axis of the parts has ``size + more`` entries, and the context
    of that name gives an instance's own size."""
    shape_in_words: str = "the shape of one instance"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def shape(self, *sizes: int) -> tuple[int, ...]:
        """The shape of one instance's scores, for each name of `length_axes` its size."""

    @abstractmethod
    def recurrence(self, *sizes: int) -> Recurrence:
        """The recurrence over all instances up to these sizes. Keep it: it is asked for often."""

    @property
    def context_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the lengths."""
        return tuple(dict.fromkeys(name for name, *_ in self.length_axes))

    @property
    def part_axes(self) -> int:  # type: ignore[override]
        """How many axes of scores are parts."""
        return len(self.shape(*[1 for _ in self.context_names]))

    def argmax(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "..."]:
        """The member with the highest score. See `Structure.argmax`."""
        recurrence, goals, flat = self._problem("argmax", scores, context)
        z = solve(flat, goals, "derivation", recurrence.handle, f"{self!r}.argmax")
        return z.reshape(scores.shape)

    def log_count(self, lengths: Any = None) -> Float[Tensor, "*batch"]:
        """Log of the number of members of each size; two sizes are a last axis of two."""
        if lengths is None:
            raise InputError(f"{self!r}.log_count: pass lengths, the size of each instance.")
        sizes, names = whole_numbers(f"{self!r}.log_count", "lengths", lengths), self.context_names
        if len(names) == 1 or sizes.dim() == 0:
            sizes = sizes[..., None].expand(*sizes.shape, len(names))
        self._check_names("log_count", sizes.shape[-1])
        most = sizes.reshape(-1, sizes.shape[-1]).amax(0).clamp(min=2).tolist()
        recurrence = self.recurrence(*most)
        goals = recurrence.goals_at(*sizes.unbind(-1))
        codes = torch.where(goals >= 0, rows.OK, rows.BAD_LENGTH)
        rows.check_rows(codes, f"{self!r}.log_count")
        scores = torch.zeros(recurrence.num_parts, dtype=torch.float64, device=goals.device)
        return inside_outside.log_sum(recurrence, scores.expand(*goals.shape, -1), goals)

    def enumerate(self, size: Any = None) -> Float[Tensor, "..."]:
        """Every member of one size."""
        if size is None:
            raise InputError(f"{self!r}.enumerate: pass size, that of the instance.")
        names = self.context_names
        given = size if isinstance(size, tuple) else (size,) * len(names)
        self._check_names("enumerate", len(given))
        sizes = [check_count(f"{self!r}.enumerate", "size", each, 0, 30) for each in given]
        check_enumerable(repr(self), float(self.log_count(sizes if len(names) > 1 else sizes[0])))
        recurrence = self.recurrence(*sizes)
        edges, found = plain_tables(recurrence), {}
        nothing = np.zeros((1, recurrence.num_parts), np.float32)

        def below(node: int | None) -> np.ndarray:
            if node is None or node not in edges:
                return nothing
            if node not in found:
                lists = []
                for first, second, part in edges[node]:
                    both = below(first)[:, None] + below(second)
                    lists.append(both.reshape(-1, recurrence.num_parts))
                    if part is not None:
                        lists[-1][:, part] = 1
                found[node] = np.concatenate(lists or [nothing[:0]])
            return found[node]

        members = torch.from_numpy(below(int(recurrence.goals[tuple(sizes)])).copy())
        return members.view(len(members), *self.shape(*sizes))

    def _check_names(self, method: str, given: int) -> None:
        names = self.context_names
        if given != len(names):
            raise InputError(
                f"{self!r}.{method}: an instance has {len(names)} sizes ({', '.join(names)}), got "
                f"{given}."
            )

    def contains(self, z: Tensor, **context: Tensor) -> Bool[Tensor, "*batch"]:
        """Whether each ``z`` is a member, with nothing beyond its lengths."""
        given = members_as_floats(f"{self!r}.contains", z)
        recurrence, goals, _ = self._problem("contains", given, context)
        codes = torch.where(goals >= 0, rows.OK, rows.BAD_LENGTH)
        rows.check_rows(codes, f"{self!r}.contains")
        # A member is the largest one of those that can be made of its parts.
        flat = given.flatten(-self.part_axes).reshape(-1, recurrence.num_parts)
        table = score_table(torch.where(flat == 1, 1.0, -torch.inf), -torch.inf)
        values = value_table(recurrence, table)
        for level in recurrence.levels(table):
            values[:, level.heads] = edge_values(level, values, table).amax(-1)
        goal = goals.expand(z.shape[: z.dim() - self.part_axes]).reshape(-1)
        largest = values.gather(1, goal.clamp(min=0)[:, None])[:, 0]
        binary = ((flat == 0) | (flat == 1)).all(-1)
        return (binary & (largest == flat.sum(-1)) & (goal >= 0)).view(goals.shape)

    def log_partition(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "*batch"]:
        """``A(scores)``: log of the sum over all members of ``exp(z . scores)``. Differentiable."""
        recurrence, goals, flat = self._problem("log_partition", scores, context)
        value = inside_outside.log_sum(recurrence, flat, goals)
        return torch.where(self._answered("log_partition", value, goals), value, torch.nan)

    def sample(
        self, scores: Tensor, draws: torch.Generator | Noise, **context: Tensor
    ) -> Float[Tensor, "..."]:
        """One exact draw per row from the Gibbs law. See `Samplable.sample`."""
        source = Draws(f"{self!r}.sample", draws)
        scores = source.repeat(scores.detach())
        recurrence, goals, flat = self._problem("sample", scores, context)
        nodes = source.uniform(scores.new_empty(*goals.shape, *recurrence.node_shape))
        nodes = nodes.reshape(*goals.shape, recurrence.num_nodes)
        z, value = inside_outside.sample(recurrence, flat, goals, nodes)
        answered = self._answered("sample", value, goals)[..., None]
        return torch.where(answered, z, torch.nan).reshape(scores.shape)

    def size_of(self, scores: Tensor, **context: Tensor) -> Any:
        """The size of each instance, or of all; pairs where there are two."""
        sizes = self._sizes("size_of", scores)
        given = [context.get(name) for name in self.context_names]
        if all(each is None for each in given):
            return sizes[0] if len(sizes) == 1 else sizes
        lengths = [
            torch.as_tensor(size if each is None else each, device=scores.device)
            for size, each in zip(sizes, given, strict=True)
        ]
        if len(lengths) == 1:
            return lengths[0]
        return torch.stack(torch.broadcast_tensors(*lengths), -1)

    def counting(self, scores: Tensor, **context: Tensor) -> Bool[Tensor, "..."]:
        """Parts that some member has, within the lengths."""
        parts = scores.shape[scores.dim() - self.part_axes :]
        used = self.recurrence(*self._sizes("counting", scores)).used_on(scores).view(parts)
        for name, axis, more in self.length_axes:
            length = context.get(name)
            if length is not None:
                shape = [-1 if axis == i else 1 for i in range(len(parts))]
                place = torch.arange(parts[axis], device=scores.device).view(shape)
                used = used & (place < (length + more).view(*length.shape, *[1] * len(parts)))
        return used.expand(scores.shape)

    def _check(self, method: str, scores: Tensor, context: Mapping[str, Any]) -> Context:
        owner = f"{self!r}.{method}"
        check_floating(owner, scores)
        self._sizes(method, scores)
        lead, names = scores.shape[: scores.dim() - self.part_axes], self.context_names
        others = {name: value for name, value in context.items() if name not in names}
        check_context(owner, others, lead, takes=names)
        return {
            name: check_lengths(owner, name, context[name], scores, lead)
            for name in names
            if context.get(name) is not None
        }

    def _sizes(self, method: str, scores: Tensor) -> tuple[int, ...]:
        parts = tuple(scores.shape[max(0, scores.dim() - self.part_axes) :])
        sizes: dict[str, int] = {}
        for name, axis, more in self.length_axes if len(parts) == self.part_axes else ():
            sizes.setdefault(name, parts[axis] - more)
        if not sizes or self.shape(*sizes.values()) != parts or 0 in parts:
            what = "z" if method == "contains" else "scores"
            raise InputError(
                f"{self!r}.{method}: {what} must end in {self.shape_in_words}, "
                f"got {tuple(scores.shape)}."
            )
        return tuple(sizes.values())

    def _problem(
        self, method: str, scores: Tensor, context: Mapping[str, Any]
    ) -> tuple[Recurrence, Tensor, Tensor]:
        """The recurrence, the goal of each row, and flat scores, -inf beyond the lengths."""
        lengths = self._check(method, scores, context)
        sizes = self._sizes(method, scores)
        recurrence, axes = self.recurrence(*sizes), self.part_axes
        lead = scores.shape[: scores.dim() - axes]
        every = [
            lengths.get(name, torch.full((), size, device=scores.device))
            for name, size in zip(self.context_names, sizes, strict=True)
        ]
        if lengths:
            scores = torch.where(self.counting(scores, **lengths), scores, -torch.inf)
        return recurrence, recurrence.goals_at(*every).expand(lead), scores.flatten(-axes)

    def _marginals(self, method: str, scores: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        recurrence, goals, flat = self._problem(method, scores, context)
        found, value = inside_outside.marginals(recurrence, flat, goals)
        answered = self._answered(method, value, goals)
        return found.reshape(scores.shape), torch.where(answered, value, torch.nan)

    def _normalise(self, scores: Tensor, **context: Tensor) -> tuple[Tensor, Tensor]:
        # Sums are taken in float64, so nothing needs to be taken off first.
        counted = torch.where(self.counting(scores, **context), scores, FORBIDDEN)
        return counted.clamp(min=FORBIDDEN), scores.new_zeros(())

    def _log_partition(self, scores: Tensor, **context: Tensor) -> Tensor:
        return self.log_partition(scores, **context)
