"""Any solver of your own."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_choice, check_count, check_positive
from nestruct.errors import InputError
from nestruct.structures.base import SizedStructure
from nestruct.structures.context import RESERVED, Context
from nestruct.structures.rows import (
    CRASHED,
    NO_MEMBER,
    NOT_FINITE,
    OK,
    TIMED_OUT,
    is_capturing,
    may_raise,
    raise_bad_rows,
)
from nestruct.structures.solution_cache import SolutionCache
from nestruct.structures.solver_calls import SolverCalls, SolverError
from nestruct.structures.solver_pool import Lost, is_local, unpicklable
from nestruct.structures.solver_process import RemoteError
from nestruct.structures.solvers.clock import timed

_CODES = {Lost.TIMED_OUT: TIMED_OUT, Lost.CRASHED: CRASHED}


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
        backend: Whether ``solve`` works on torch tensors (on the scores' device; on the CPU with
            ``workers`` or ``pool_share``) or on numpy arrays.
        workers: How many processes solve, for a slow solver; 0 for this one. They start at the
            first call, stay, and give the same results; a batched solver gets slices of the rows.
            They import ``solve``, so it must be defined at the top level of a module.
        timeout: Seconds that an instance may take in a worker. One that takes longer has no
            answer, as a row of NaN. Without ``workers`` there is one worker then.
        pool_share: For this share of the instances in training the best of the solutions that the
            same context has had so far is taken instead of a new one: faster, and approximate.

    Example:
        >>> import torch, nestruct
        >>> positive = nestruct.BlackBox(lambda scores: scores > 0, shape=(3,))
        >>> positive.argmax(torch.tensor([[0.5, -1.0, 2.0]]))
        tensor([[1., 0., 1.]])
        >>> above = nestruct.BlackBox(lambda scores, limit: scores > limit[:, None], shape=(3,))
        >>> above.argmax(torch.tensor([[0.5, -1.0, 2.0]]), limit=torch.tensor([1.0]))
        tensor([[0., 0., 1.]])
        >>> positive.counts["solved"]
        1
    """

    counts_solved = True

    def __init__(
        self,
        solve: Callable[..., Any],
        shape: Sequence[int] | int,
        *,
        batched: bool = True,
        backend: Literal["torch", "numpy"] = "torch",
        workers: int = 0,
        timeout: float | None = None,
        pool_share: float = 0.0,
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
        self.workers = check_count("BlackBox", "workers", workers, 0)
        if timeout is not None:
            check_positive("BlackBox", "timeout", timeout)
        if not (isinstance(pool_share, int | float) and 0 <= pool_share <= 1):
            raise InputError(f"BlackBox: pool_share must be from 0 to 1, got {pool_share!r}.")
        self.timeout, self.pool_share = timeout, pool_share
        if (workers or timeout is not None) and is_local(solve):
            raise InputError(f"{self!r}: {unpicklable(solve)}.")
        self._calls = SolverCalls(
            repr(self),
            solve,
            batched=batched,
            backend=backend,
            workers=self.workers,
            timeout=timeout,
            pool_share=pool_share,
        )

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

    @property
    def one_at_a_time(self) -> bool:  # type: ignore[override]
        """True if the function takes one instance at a time."""
        return not self.batched

    @property
    def counts(self) -> Mapping[str, int]:
        """Instances so far, by what became of them.

        They were ``solved``; ``looked_up``, as solved before; ``pooled``, see ``pool_share``. Of
        those given to the function some ``timed_out`` or ``crashed``.
        """
        return self._calls.counts

    @property
    def cache_bytes(self) -> int:
        """How much solutions that are looked up may take; 0, and each instance is solved."""
        return self._calls.cache.most_bytes

    @cache_bytes.setter
    def cache_bytes(self, value: int) -> None:
        self._calls.cache = SolutionCache(check_count("BlackBox", "cache_bytes", value, 0))

    def close(self) -> None:
        """Ends the worker processes, if there are any; the next call starts others."""
        self._calls.close()

    def solve_rows(self, rows: Tensor, context: Context) -> tuple[Tensor, dict[int, int]]:
        """Calls the function on ``[rows, *shape]``.

        Returns:
            The same shape, dtype and device; and why rows that were lost have no answer, by code.
        """
        given, more = self._own(rows), {name: self._own(v) for name, v in context.items()}
        shape = tuple(rows.shape[1:])
        with timed():
            if not self._calls.by_instance:
                result = self._calls.all_at_once(given, more, len(rows))
                z, lost = self._as_tensor(result, tuple(rows.shape)), {}
            else:
                each = [{name: v[row] for name, v in more.items()} for row in range(len(rows))]
                results = self._calls(
                    list(zip(given, each, strict=True)),
                    lambda result, count: self._as_tensor(result, (count, *shape)),
                )
                lost = {i: _CODES[r] for i, r in enumerate(results) if isinstance(r, Lost)}
                nothing = torch.full(shape, torch.nan)
                z = torch.stack(
                    [
                        nothing if row in lost else self._as_tensor(result, shape)
                        for row, result in enumerate(results)
                    ]
                )
        if not is_capturing(rows):
            # Checked before the conversion, which could round to 0 and 1; a row of NaN says that
            # there is no answer.
            flat = z.reshape(len(rows), -1)
            legal = ((flat == 0) | (flat == 1)).all(-1) | (flat != flat).all(-1)
            if not legal.all():
                raise InputError(f"{self!r}: the function must return 0 and 1 only.")
        return z.to(dtype=rows.dtype, device=rows.device), lost

    def failed(self, where: str, names: tuple[str, ...], error: BaseException | None) -> InputError:
        """The sentence about an exception in the function."""
        context = f" with the context {', '.join(names)}" if names else ""
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        what = error.last_line if isinstance(error, RemoteError) else what
        return InputError(f"{self!r}: the function failed{where}{context}: {what.rstrip('.')}.")

    def _own(self, tensor: Tensor) -> Any:
        """A copy that the function may edit, in its own kind of array."""
        if self._calls.needs_host:
            tensor = tensor.cpu()
        return tensor.clone() if self.backend == "torch" else np.array(tensor.numpy())

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
            z, _ = structure.solve_rows(torch.where(each, rows, 0.0), context)
            return torch.where(each, z, torch.nan).view(scores.shape)
        codes = torch.where(usable, OK, NOT_FINITE)
        if strict and may_raise(rows):
            raise_bad_rows(codes.view(lead), f"{structure!r}.argmax")
        z = torch.full_like(rows, torch.nan)
        lost: dict[int, int] = {}
        places = usable.nonzero()[:, 0]
        if len(places):
            answerable = {name: value[usable] for name, value in context.items()}
            try:
                z[usable], lost = structure.solve_rows(rows[usable], answerable)
            except SolverError as failure:
                where = _where(places[list(failure.rows)], lead)
                raise structure.failed(where, names, failure.__cause__) from failure.__cause__
        unanswered = usable & z.reshape(len(rows), -1).isnan().any(-1)
        if strict and may_raise(rows):
            codes = torch.where(unanswered, NO_MEMBER, OK)
            for row, code in lost.items():
                codes[places[row]] = code
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


def _where(places: Tensor, lead: torch.Size) -> str:
    """The rows of a call that failed, by their index in the leading axes."""
    if not lead:
        return ""
    indices = [tuple(int(i) for i in np.unravel_index(int(place), lead)) for place in places]
    first, last = (index[0] if len(index) == 1 else index for index in (indices[0], indices[-1]))
    return f" on row {first}" if len(indices) == 1 else f" on rows {first} to {last}"


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
