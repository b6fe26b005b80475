"""Any solver of your own."""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_choice, check_count, check_positive
from nestruct.errors import InputError
from nestruct.structures.answers import are_alike, are_legal, as_numbers, check_shape
from nestruct.structures.base import SizedStructure
from nestruct.structures.context import RESERVED, Context, check_mask
from nestruct.structures.direction import Direction
from nestruct.structures.instances import Cutter, own_sizes, put_together
from nestruct.structures.rows import (
    CRASHED,
    NO_ANSWER,
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
from nestruct.structures.solvers.clock import count_unanswered, timed

_CODES = {Lost.TIMED_OUT: TIMED_OUT, Lost.CRASHED: CRASHED}
_ONE = "; if it takes one instance at a time, say batched=False"


class BlackBox(SizedStructure):
    """A structure given by nothing but a function from scores to 0/1, or to numbers.

    Args:
        solve: The solver, ``solve(scores, **context)``. It gets its own copy of the scores, so it
            may edit them. With ``batched`` it maps ``[rows, *shape]`` to ``[rows, *shape]``, else
            ``shape`` to ``shape``. It may return booleans, integers or floats. A row of NaN says
            that an instance has no answer. What it has besides scores in its signature is the
            context that it takes (weights, capacities), one row or one entry per instance, from
            ``model.context(batch)``.
        shape: The shape of one instance's scores. An entry None stands for any size: scores are
            then padded to the batch's largest instance, and the context ``mask``, True for parts
            that count, says what is padding. Not batched, the function gets each instance cut to
            its own size, its context too. Batched, it gets all rows padded, with scores of -inf
            there, and the mask if it takes an argument of that name. Padding comes back as 0.
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
        binary: Whether results are 0 and 1 only. If not, any finite numbers are (counts, flows,
            ranks); estimators that cannot take these say so.
        whole: Context that is never cut to an instance's size, by name: tables of another kind,
            which may happen to be as long as the padded scores.

    Example:
        >>> import torch, nestruct
        >>> positive = nestruct.BlackBox(lambda scores: scores > 0, shape=(3,))
        >>> positive.argmax(torch.tensor([[0.5, -1.0, 2.0]]))
        tensor([[1., 0., 1.]])
        >>> above = nestruct.BlackBox(lambda scores, limit: scores > limit[:, None], shape=(3,))
        >>> above.argmax(torch.tensor([[0.5, -1.0, 2.0]]), limit=torch.tensor([1.0]))
        tensor([[0., 0., 1.]])
        >>> best = nestruct.BlackBox(lambda s: s == s.max(), shape=(None,), batched=False)
        >>> mask = torch.tensor([[True, True, True], [True, True, False]])
        >>> best.argmax(torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 9.0]]), mask=mask)
        tensor([[0., 0., 1.],
                [0., 1., 0.]])
    """

    counts_solved = True

    def __init__(
        self,
        solve: Callable[..., Any],
        shape: Sequence[int | None] | int | None,
        *,
        batched: bool = True,
        backend: Literal["torch", "numpy"] = "torch",
        workers: int = 0,
        timeout: float | None = None,
        pool_share: float = 0.0,
        binary: bool = True,
        whole: Collection[str] = (),
    ) -> None:
        if not callable(solve):
            raise InputError(f"BlackBox: solve must be a function of scores, got {solve!r}.")
        check_choice("BlackBox: backend", backend, ("torch", "numpy"))
        self.solve = solve
        named, takes_any, needed = _context_of(solve)
        self._names_mask = "mask" in named
        self.context_names = None if takes_any else tuple(dict.fromkeys((*named, "mask")))
        self.context_needed = tuple(name for name in needed if name != "mask")
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        self.part_shape: tuple[Any, ...] = tuple(
            None if size is None else check_count("BlackBox", "every entry of shape", size, 0)
            for size in sizes
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
        self.binary = binary
        whole = (whole,) if isinstance(whole, str) else tuple(whole)
        for name in whole:
            if self.context_names is not None and name not in self.context_names:
                raise InputError(f"BlackBox: whole names {name!r}, which solve does not take.")
        self._cutter = Cutter(repr(self), [size is None for size in self.part_shape], whole)
        self._direction = Direction()

    def __repr__(self) -> str:
        name = getattr(self.solve, "__name__", type(self.solve).__name__)
        return f"BlackBox({name}, {self.part_shape})"

    def argmax(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "..."]:
        """What the function returns for each row, checked. See `Structure.argmax`.

        Raises:
            InputError: Also when the function returns another shape, or something else than 0 and 1
                (without ``binary``: than finite numbers).
        """
        context = self._check("argmax", scores, context)
        return _Call.apply(scores.detach(), self, True, tuple(context), *context.values())

    def counting(self, scores: Tensor, **context: Tensor) -> Tensor | None:
        """Where the context ``mask`` is True; None without one."""
        mask = context.get("mask")
        if mask is None:
            return None
        return check_mask(f"{self!r}.counting", mask, scores, self.part_axes)

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
            The same shape, dtype and device; and the codes of rows that were lost, by row.
        """
        mask, given = context.get("mask"), dict(context)
        if mask is not None:
            rows = torch.where(mask, rows, -torch.inf)  # which forbids a part
        if self._names_mask:
            given.setdefault("mask", torch.ones_like(rows, dtype=torch.bool))
        elif self.context_names is not None:
            given.pop("mask", None)
        more = {name: self._own(value) for name, value in given.items()}
        lost: dict[int, int] = {}
        if self._calls.by_instance:
            z, lost = self._solve_apart(self._own(rows), more, mask)
        else:
            z = self._solve_batch(self._own(rows), more)
        if mask is not None:
            z = torch.where(mask.to(z.device), z, 0)
        if not is_capturing(rows):
            # Checked before the conversion, which could round to 0 and 1.
            checked = z if self.binary else z.to(rows.dtype)
            if not are_legal(checked, self.binary).all():
                only = "0 and 1 only; for other numbers say binary=False"
                raise InputError(
                    f"{self!r}: the function must return "
                    f"{only if self.binary else 'finite numbers'}."
                )
        return z.to(dtype=rows.dtype, device=rows.device), lost

    def check_direction(self, rows: Tensor, z: Tensor, repeats: int) -> None:
        """Raises if the function minimises, as far as its first answers tell.

        Args:
            rows: The scores.
            z: The answers.
            repeats: After how many rows the same instance comes again, with other scores.
        """
        if self._direction.minimises(rows, z, repeats):
            raise InputError(
                f"{self!r}: the function seems to minimise: its answers have a lower total of "
                "z * scores than its other answers to the same instances. It must return the one "
                "with the highest total, so give a solver of costs -scores."
            )

    def _solve_batch(self, rows: Any, context: dict[str, Any]) -> Tensor:
        with timed():
            result = self._calls.all_at_once(rows, context, len(rows))
        return self._answer(result, tuple(rows.shape), _ONE)

    def _solve_apart(
        self, rows: Any, context: dict[str, Any], mask: Tensor | None
    ) -> tuple[Tensor, dict[int, int]]:
        parts, varies = tuple(rows.shape[1:]), None in self.part_shape
        sizes = [parts] * len(rows)
        if varies and mask is not None and not self.batched:
            sizes = own_sizes(mask, self._cutter.varies)
        instances = self._cutter.cut(rows, context, sizes)
        with timed():
            results = self._calls(
                instances, lambda result, count: self._answer(result, (count, *parts), _ONE)
            )
        hint = ""
        if varies and mask is None:
            hint = "; if instances differ in size, give the context mask"
        if are_alike(results, parts) and all(own == parts for own in sizes):
            return self._answer(np.stack(results), (len(results), *parts), hint), {}
        lost = {row: _CODES[r] for row, r in enumerate(results) if isinstance(r, Lost)}
        answers = [
            torch.full(own, torch.nan) if row in lost else self._answer(result, own, hint)
            for row, (result, own) in enumerate(zip(results, sizes, strict=True))
        ]
        return put_together(answers, parts), lost

    def _answer(self, result: Any, expected: tuple[int, ...], hint: str) -> Tensor:
        wanted, owner = "0 and 1" if self.binary else "numbers", repr(self)
        return check_shape(owner, as_numbers(owner, result, wanted), expected, hint)

    def _own(self, tensor: Tensor) -> Any:
        """A copy that the function may edit, in its own kind of array."""
        if self._calls.needs_host:
            tensor = tensor.cpu()
        if self.backend == "torch":
            return tensor.detach().clone()
        if tensor.dtype == torch.bfloat16:  # numpy has none
            tensor = tensor.float()
        return np.array(tensor.detach().numpy())

    def _check(self, method: str, scores: Tensor, context: Mapping[str, Any]) -> Context:
        mask = context.get("mask")
        others = {name: value for name, value in context.items() if name != "mask"}
        given = super()._check(method, scores, others)
        if mask is not None:
            given["mask"] = check_mask(f"{self!r}.{method}", mask, scores, self.part_axes)
        return given

    def _has_parts(self, sizes: torch.Size) -> bool:
        pairs = zip(sizes, self.part_shape, strict=True)
        return all(expected in (None, size) for size, expected in pairs)


# A function cannot be an argument of a library op, so this carries the vmap rule instead.
class _Call(torch.autograd.Function):
    @staticmethod
    def forward(
        scores: Tensor, structure: BlackBox, strict: bool, names: tuple[str, ...], *values: Tensor
    ) -> Tensor:
        axes = structure.part_axes
        lead, parts = scores.shape[: scores.dim() - axes], scores.shape[scores.dim() - axes :]
        rows = scores.detach().reshape(math.prod(lead), *parts)
        if rows.shape[0] == 0:
            return torch.empty_like(scores)
        each_value = [v.reshape(len(rows), *v.shape[len(lead) :]) for v in values]
        context = dict(zip(names, each_value, strict=True))
        mask = context.get("mask")
        fine = rows < torch.inf
        usable = (fine if mask is None else fine | ~mask).reshape(len(rows), -1).all(-1)
        if is_capturing(rows):
            # Nothing may be read on the host: the function gets all rows, zeros for the unusable.
            each = usable.view(-1, *[1] * axes)
            try:
                z, _ = structure.solve_rows(torch.where(each, rows, 0.0), context)
            except SolverError as error:  # a step that cannot be captured
                raise (error.__cause__ or error) from None
            return torch.where(each, z, torch.nan).view(scores.shape)
        if mask is not None:
            _check_any(structure, mask, lead)
        codes = torch.where(usable, OK, NOT_FINITE)
        if strict and may_raise(rows):
            raise_bad_rows(codes.view(lead), f"{structure!r}.argmax")
        z = torch.full_like(rows, torch.nan)
        places = usable.nonzero()[:, 0]
        lost: dict[int, int] = {}
        if len(places):
            answerable = {name: value[usable] for name, value in context.items()}
            try:
                z[usable], lost = structure.solve_rows(rows[usable], answerable)
            except SolverError as error:
                indices = [_index(places[row], lead) for row in (error.rows[0], error.rows[-1])]
                raise error.sentence(repr(structure), indices, names) from error.__cause__
        # Without context all instances have the same members; else those of one example do.
        structure.check_direction(rows, z, lead[-1] if lead and context else 1)
        unanswered = usable & z.reshape(len(rows), -1).isnan().any(-1)
        count_unanswered(int(unanswered.sum()))
        if strict and may_raise(rows):
            codes = torch.where(unanswered, NO_ANSWER, OK)
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


def _check_any(structure: BlackBox, mask: Tensor, lead: torch.Size) -> None:
    """Raises for an example of which no part counts: data of which nothing can be learnt."""
    empty = (~mask.reshape(len(mask), -1).any(-1)).nonzero()
    if len(empty):
        which = f" of example {int(empty[0]) % lead[-1]}" if lead else ""
        raise InputError(
            f"{structure!r}: the context 'mask' lets no part{which} count; leave out examples "
            "without parts."
        )


def _index(place: Tensor, lead: torch.Size) -> Any:
    """A row's index in the leading axes; None where there are none."""
    index = tuple(int(i) for i in np.unravel_index(int(place), lead)) if lead else (None,)
    return index[0] if len(index) == 1 else index


def _context_of(solve: Callable[..., Any]) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    """The names that a function has besides scores, whether it takes any, and those it needs."""
    try:
        _, *others = inspect.signature(solve).parameters.values()
    except ValueError:  # a builtin, or no argument at all: the call will say so
        return (), False, ()
    named = [p for p in others if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = tuple(p.name for p in named if p.default is p.empty)
    for name in needed:
        if name in RESERVED:
            raise InputError(
                f"BlackBox: the solver's argument {name!r} cannot be context, which reserves that "
                "name; call it something else."
            )
    takes_any = any(p.kind is p.VAR_KEYWORD for p in others)
    return tuple(p.name for p in named if p.name not in RESERVED), takes_any, needed
