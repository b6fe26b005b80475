"""Any solver of your own."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_choice, check_count
from nestruct.errors import InputError
from nestruct.structures.base import SizedStructure
from nestruct.structures.context import RESERVED, Context
from nestruct.structures.rows import (
    NO_MEMBER,
    NOT_FINITE,
    OK,
    is_capturing,
    may_raise,
    raise_bad_rows,
)
from nestruct.structures.solvers.clock import count_solved, timed

Instance = tuple[Any, dict[str, Any]]  # scores and context, in the solver's own kind of array


class BlackBox(SizedStructure):
    """A structure given by nothing but a function from scores to 0/1.

    Args:
        solve: The solver, ``solve(scores, **context)``. It gets its own copy of the scores, so it
            may edit them. With ``batched`` it maps ``[rows, *shape]`` to ``[rows, *shape]``, else
            ``shape`` to ``shape``. It may return booleans, integers or floats. A row of NaN says
            that an instance has no answer. What it has besides scores in its signature is the
            context that it takes (weights, capacities), one row or one entry per instance, from
            ``model.context(batch)``.
        shape: The shape of one instance's scores.
        batched: Whether ``solve`` takes all rows at once (one call per batch) or one instance (a
            Python loop).
        backend: Whether ``solve`` works on torch tensors (on the scores' device) or on numpy
            arrays.

    Example:
        >>> import torch, nestruct
        >>> positive = nestruct.BlackBox(lambda scores: scores > 0, shape=(3,))
        >>> positive.argmax(torch.tensor([[0.5, -1.0, 2.0]]))
        tensor([[1., 0., 1.]])
        >>> above = nestruct.BlackBox(lambda scores, limit: scores > limit[:, None], shape=(3,))
        >>> above.argmax(torch.tensor([[0.5, -1.0, 2.0]]), limit=torch.tensor([1.0]))
        tensor([[0., 0., 1.]])
    """

    counts_solved = True

    def __init__(
        self,
        solve: Callable[..., Any],
        shape: Sequence[int] | int,
        *,
        batched: bool = True,
        backend: Literal["torch", "numpy"] = "torch",
    ) -> None:
        if not callable(solve):
            raise InputError(f"BlackBox: solve must be a function of scores, got {solve!r}.")
        check_choice("BlackBox: backend", backend, ("torch", "numpy"))
        self.solve = solve
        self.context_names, self.context_needed = _context_of(solve)
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        self.part_shape = tuple(
            check_count("BlackBox", "every entry of shape", size, 0) for size in sizes
        )
        self.batched = batched
        self.backend = backend

    def __repr__(self) -> str:
        name = getattr(self.solve, "__name__", type(self.solve).__name__)
        return f"BlackBox({name}, {self.part_shape})"

    def argmax(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "..."]:
        """What the function returns for each row, checked. See `Structure.argmax`.

        Raises:
            InputError: Also when the function returns another shape or something else than 0 and 1.
        """
        context = self._check("argmax", scores, context)
        return _Call.apply(scores.detach(), self, True, tuple(context), *context.values())

    def solve_rows(self, rows: Tensor, context: Context) -> Tensor:
        """Calls the function on ``[rows, *shape]``; the same shape, dtype and device come back."""
        count_solved(len(rows))
        given, more = self._own(rows), {name: self._own(v) for name, v in context.items()}
        with timed():
            if self.batched:
                results = [self.solve(given, **more)]
            else:
                each = [{name: v[row] for name, v in more.items()} for row in range(len(rows))]
                results = self._solve_each(list(zip(given, each, strict=True)))
        expected = tuple(rows.shape if self.batched else self.part_shape)
        tensors = [self._as_tensor(result, expected) for result in results]
        z = tensors[0] if self.batched else torch.stack(tensors)
        if not is_capturing(rows):
            # Checked before the conversion, which could round to 0 and 1; a row of NaN says that
            # there is no answer.
            flat = z.reshape(len(rows), -1)
            legal = ((flat == 0) | (flat == 1)).all(-1) | (flat != flat).all(-1)
            if not legal.all():
                raise InputError(f"{self!r}: the function must return 0 and 1 only.")
        return z.to(dtype=rows.dtype, device=rows.device)

    def _solve_each(self, instances: list[Instance]) -> list[Any]:
        """What the function returns for each of several instances."""
        return [self.solve(scores, **context) for scores, context in instances]

    def _own(self, tensor: Tensor) -> Any:
        """A copy that the function may edit, in its own kind of array."""
        return tensor.clone() if self.backend == "torch" else np.array(tensor.cpu().numpy())

    def _as_tensor(self, result: Any, expected: tuple[int, ...]) -> Tensor:
        if result is None:
            raise InputError(f"{self!r}: the function returned nothing; it must return 0 and 1.")
        if not isinstance(result, Tensor):
            try:
                array = np.ascontiguousarray(result)
                result = torch.from_numpy(array.astype(np.float64 if array.dtype != bool else bool))
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{self!r}: the function must return an array of 0 and 1, got "
                    f"{type(result).__name__} ({error})."
                ) from None
        if tuple(result.shape) != expected:
            hint = "; if it takes one instance at a time, say batched=False"
            raise InputError(
                f"{self!r}: the function must return the shape {expected}, "
                f"got {tuple(result.shape)}{hint if self.batched else ''}."
            )
        return result.detach()


# A function cannot be an argument of a library op, so this carries the vmap rule instead.
class _Call(torch.autograd.Function):
    @staticmethod
    def forward(
        scores: Tensor, structure: BlackBox, strict: bool, names: tuple[str, ...], *values: Tensor
    ) -> Tensor:
        lead = scores.shape[: scores.dim() - len(structure.part_shape)]
        rows = scores.detach().reshape(math.prod(lead), *structure.part_shape)
        if rows.shape[0] == 0:
            return torch.empty_like(scores)
        each_value = [v.reshape(len(rows), *v.shape[len(lead) :]) for v in values]
        context = dict(zip(names, each_value, strict=True))
        usable = (rows.reshape(len(rows), -1) < torch.inf).all(-1)
        each = usable.view(-1, *[1] * len(structure.part_shape))
        if is_capturing(rows):
            # Nothing may be read on the host: the function gets all rows, zeros for the unusable.
            z = structure.solve_rows(torch.where(each, rows, 0.0), context)
            return torch.where(each, z, torch.nan).view(scores.shape)
        codes = torch.where(usable, OK, NOT_FINITE)
        if strict and may_raise(rows):
            raise_bad_rows(codes.view(lead), f"{structure!r}.argmax")
        z = torch.full_like(rows, torch.nan)
        if usable.any():
            answerable = {name: value[usable] for name, value in context.items()}
            z[usable] = structure.solve_rows(rows[usable], answerable)
        unanswered = usable & z.reshape(len(rows), -1).isnan().any(-1)
        if strict and may_raise(rows):
            codes = torch.where(unanswered, NO_MEMBER, OK)
            raise_bad_rows(codes.view(lead), f"{structure!r}.argmax")
        return z.view(scores.shape)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(output)
        ctx.num_inputs = len(inputs)

    @staticmethod
    def backward(ctx, grad):
        return (None,) * ctx.num_inputs

    @staticmethod
    def vmap(info, in_dims, scores, structure, strict, names, *values):
        scores, *values = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((scores, *values), (in_dims[0], *in_dims[4:]), strict=True)
        )
        return _Call.apply(scores, structure, False, names, *values), 0


def _context_of(solve: Callable[..., Any]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The names that a function takes besides scores (None: any), and those that it needs."""
    try:
        _, *others = inspect.signature(solve).parameters.values()
    except ValueError:  # a builtin, or no argument at all: the call will say so
        return (), ()
    named = [p for p in others if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = tuple(p.name for p in named if p.default is p.empty)
    for name in needed:
        if name in RESERVED:
            raise InputError(
                f"BlackBox: the solver's argument {name!r} cannot be context, which reserves that "
                "name; call it something else."
            )
    if any(p.kind is p.VAR_KEYWORD for p in others):
        return None, needed
    return tuple(p.name for p in named if p.name not in RESERVED), needed
