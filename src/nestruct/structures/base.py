"""What a structure is: an argmax over a set of 0/1 vectors, and whatever else the set allows.

Only `Structure.argmax` is required. The protocols name what some spaces have besides: a count, a
list of members, a Gibbs law ``p(z) = exp(z . scores - A)``, exact samples, a relaxation. Scores
carry any leading axes; what a solver sees besides them is context, by name (`context.py`).

Arguments at these seams are checked by our own code, which says what to change; so they are
annotated as plain tensors, and the shape types that the test run checks sit on results and on inner
functions.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.checks import check_temperature
from nestruct.errors import InputError, MissingError
from nestruct.noise import Noise
from nestruct.structures import rows
from nestruct.structures.context import Context, check_context
from nestruct.structures.relaxations.log_domain import FORBIDDEN

MAX_ENUMERATED = 1_000_000
# What the protocols ask for, and not every space has.
_NOT_EVERYWHERE = {
    *("log_count", "enumerate", "contains", "log_partition", "marginals", "entropy"),
    *("sample", "relax"),
}
_BY_ARGMAX = ("kbest", "max_marginals")


class Structure(ABC):
    """A discrete latent space. A subclass needs `argmax` and nothing else."""

    counts_solved: bool = False
    """Whether `argmax` notes how many instances it is given; see `solvers.count_solved`."""
    equal_sizes: bool = False
    """Whether all members that one instance can have are known to have equally many parts: then a
    number may be added to all its scores, and its law stays."""
    one_at_a_time: bool = False
    """Whether it solves one instance after the other in Python, which makes each call dear."""
    part_axes: int = 1  # trailing axes of scores that are the parts of one instance
    context_names: tuple[str, ...] | None = ()
    """The context that the methods take besides scores; any name when None."""
    context_needed: tuple[str, ...] = ()
    """Those of them that must be given."""
    binary: bool = True
    """Whether members are 0 and 1 only; else any finite numbers, such as counts."""
    one_along: tuple[int, ...] = ()
    """Axes of scores along which every member has exactly one part that counts, if there are any.

    Where nothing counts along them, there is none.
    """
    nested: bool = True
    """Whether one member's parts may all be in another; False makes `kbest` faster."""
    forced_by_scores: bool = True
    """Whether a part with a large enough score is in the best member, if any member has it."""

    @abstractmethod
    def argmax(self, scores: Tensor, **context: Tensor) -> Tensor:
        """The member with the highest score.

        Args:
            scores: Any leading axes, then the parts of one instance; -inf forbids a part.
            **context: What else the solver sees of each example, by name.

        Returns:
            0/1, of the same shape and dtype as ``scores``; not differentiable.

        Raises:
            InputError: A score that counts is NaN or +inf, or no legal member is left; the row is
                named.
        """

    def counting(self, scores: Tensor, **context: Tensor) -> Tensor | None:
        """Which parts can be in a member at all, shaped as ``scores``; None when every part can."""
        return None

    def centred(self, scores: Tensor, **context: Tensor) -> Tensor:
        """The scores without what all members have in common, if that is known: the same law."""
        return scores

    def size_of(self, scores: Tensor, **context: Tensor) -> Any:
        """What `log_count` and `enumerate` take for these scores; None for a space of one size."""
        return None

    if not TYPE_CHECKING:  # where the protocols are what is known

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self).__name__
            if name in _NOT_EVERYWHERE:
                raise MissingError(
                    f"{kind} has no {name}: of this space it cannot be computed, or it is not "
                    "known how; use what asks for argmax alone, such as NES."
                )
            if name in _BY_ARGMAX:
                raise MissingError(
                    f"{kind} has no {name}: nestruct.structures.{name} gives it by calls of argmax."
                )
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")


@runtime_checkable
class Countable(Protocol):
    """A space whose size is known."""

    def log_count(self, lengths: Any = None) -> Tensor:
        """Log of the number of members, in float64; per row where there are ``lengths``."""
        ...


@runtime_checkable
class Enumerable(Protocol):
    """A space whose members can be listed (when small) and recognised."""

    def enumerate(self, size: int | None = None) -> Tensor:
        """Every member, ``[members, *parts]``; a space of many sizes needs ``size``."""
        ...

    def contains(self, z: Tensor, **context: Tensor) -> Tensor:
        """Whether each ``z`` is a member, one boolean per row."""
        ...


@runtime_checkable
class Gibbs(Protocol):
    """A space with a tractable law ``p(z) = exp(z . scores - A(scores))``."""

    def log_partition(self, scores: Tensor, **context: Tensor) -> Tensor:
        """``A(scores)``, one per row."""
        ...

    def marginals(self, scores: Tensor, **context: Tensor) -> Tensor:
        """``E[z]``, shaped as ``scores``."""
        ...

    def entropy(self, scores: Tensor, **context: Tensor) -> Tensor:
        """``-E[log p(z)]``, one per row."""
        ...


@runtime_checkable
class Samplable(Protocol):
    """A space whose Gibbs law can be sampled exactly."""

    def sample(self, scores: Tensor, draws: torch.Generator | Noise, **context: Tensor) -> Tensor:
        """One draw per row, shaped as ``scores``.

        Args:
            scores: Any leading axes, then the parts of one instance.
            draws: A generator, or a `Noise`: its draws belong to the examples, the first axis of
                scores. Streams ``[samples, 1]`` give several draws ``[samples, batch, *parts]``.
            **context: What else is known of each example.
        """
        ...


@runtime_checkable
class Relaxable(Protocol):
    """A space with a differentiable stand-in for its argmax."""

    def relax(
        self, perturbed_scores: Tensor, temperature: float | Tensor, **context: Tensor
    ) -> Tensor:
        """A differentiable stand-in for ``argmax(perturbed_scores)``, of the same shape."""
        ...


@runtime_checkable
class KBest(Protocol):
    """A space whose best members can be listed in order, however large it is."""

    def kbest(self, scores: Tensor, k: int, **context: Tensor) -> tuple[Tensor, Tensor]:
        """The k best members of each row, best first.

        Args:
            scores: Any leading axes, then the parts of one instance.
            k: How many members.
            **context: What else is known of each example.

        Returns:
            Members ``[k, *scores.shape]`` and their totals ``[k, *leading axes]``. Where there are
            fewer than k members, the others are zeros with a total of -inf.
        """
        ...

    def max_marginals(self, scores: Tensor, **context: Tensor) -> Tensor:
        """The best total of a member with each part, shaped as ``scores``; -inf where none is."""
        ...


class SizedStructure(Structure):
    """A structure of fixed size: ``part_shape`` is the trailing shape of scores."""

    part_shape: tuple[int, ...]

    @property
    def part_axes(self) -> int:  # type: ignore[override]
        """How many axes of scores are parts."""
        return len(self.part_shape)

    def _check(self, method: str, scores: Tensor, context: Mapping[str, Any]) -> Context:
        """The context, checked; raises unless ``scores`` has this structure's parts."""
        check_floating(f"{self!r}.{method}", scores)
        axes = len(self.part_shape)
        if scores.dim() < axes or not self._has_parts(scores.shape[scores.dim() - axes :]):
            what = "z" if method == "contains" else "scores"
            raise InputError(
                f"{self!r}.{method}: {what} must end in the shape {self.part_shape}, "
                f"got {tuple(scores.shape)}."
            )
        lead = scores.shape[: scores.dim() - axes]
        takes, needs = self.context_names, self.context_needed
        return check_context(f"{self!r}.{method}", context, lead, takes=takes, needs=needs)

    def _has_parts(self, sizes: torch.Size) -> bool:
        return tuple(sizes) == self.part_shape

    def _check_members(self, z: Tensor, context: Mapping[str, Any]) -> Bool[Tensor, "*batch"]:
        """Whether every part is 0 or 1; raises unless ``z`` has this structure's parts."""
        self._check("contains", members_as_floats(f"{self!r}.contains", z), context)
        axes = len(self.part_shape)
        return ((z == 0) | (z == 1)).flatten(-axes).all(-1)

    def _check_size(self, size: Any, method: str = "enumerate") -> None:
        if size is not None:
            raise InputError(f"{self!r}.{method}: the size is the structure's own; leave it out.")


class GibbsStructure(Structure):
    """What follows from a log-partition A: marginals are its gradient, entropy, relaxation.

    A subclass gives `_check` and `_log_partition`, which sees finite scores only (`FORBIDDEN` for
    -inf and for parts that do not count) and must use differentiable operations.
    """

    rank: int  # parts in every member

    @abstractmethod
    def _check(self, method: str, scores: Tensor, context: Mapping[str, Any]) -> Context: ...

    @abstractmethod
    def _log_partition(self, scores: Tensor, **context: Tensor) -> Tensor: ...

    def _normalise(self, scores: Tensor, **context: Tensor) -> tuple[Tensor, Tensor]:
        """Scores less what all members have in common, no -inf among them; and that, per row.

        Sums of exponentials then keep the digits that tell members apart, whatever the offset.
        """
        top = scores.detach().amax(-1) if scores.shape[-1] else scores.new_zeros(scores.shape[:-1])
        top = torch.where(top == -torch.inf, 0.0, top)
        return (scores - top[..., None]).clamp(min=FORBIDDEN), self.rank * top

    def centred(self, scores: Tensor, **context: Tensor) -> Tensor:
        """The scores less what all members have in common: the same law, and finite numbers."""
        return self._normalise(scores, **context)[0]

    def _log_z(self, method: str, scores: Tensor, context: Context) -> Tensor:
        normal, offset = self._normalise(scores, **context)
        value = self._log_partition(normal, **context)
        answered = self._check_values(method, value.detach(), scores, context)
        return torch.where(answered, value + offset, torch.nan)

    @torch.no_grad()
    def _check_values(self, method: str, value: Tensor, scores: Tensor, context: Context) -> Tensor:
        """Which rows have an answer; ``value``: what their normal scores sum up to, per row."""
        codes = torch.where(value > FORBIDDEN / 2, rows.OK, rows.NO_MEMBER)
        codes = torch.where(value.isfinite(), codes, rows.NOT_FINITE)
        codes = self._context_codes(codes, scores, **context)
        return rows.check_rows(codes, f"{self!r}.{method}") == rows.OK

    def _context_codes(self, codes: Tensor, scores: Tensor, **context: Tensor) -> Tensor:
        """The codes of `rows`, with those of rows whose context does not fit the scores."""
        return codes

    def _marginals(self, method: str, scores: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        def total(inner: Tensor) -> tuple[Tensor, Tensor]:
            value = self._log_z(method, inner, context)
            return value.sum(), value

        marginals, log_z = torch.func.grad(total, has_aux=True)(scores)
        failed = log_z.isnan().reshape(*log_z.shape, *[1] * self.part_axes)
        return torch.where(failed, torch.nan, marginals), log_z

    def log_partition(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "*batch"]:
        """``A(scores)``: log of the sum over all members of ``exp(z . scores)``. Differentiable."""
        context = self._check("log_partition", scores, context)
        return self._log_z("log_partition", scores, context)

    def marginals(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "..."]:
        """How often each part is in a draw from the Gibbs law. Differentiable."""
        context = self._check("marginals", scores, context)
        return self._marginals("marginals", scores, context)[0]

    def entropy(self, scores: Tensor, **context: Tensor) -> Float[Tensor, "*batch"]:
        """The entropy of the Gibbs law in nats. Differentiable.

        Computed in float64 whatever comes in: it is the small difference of two numbers that grow
        with the scores.
        """
        context = self._check("entropy", scores, context)
        wide = scores.double()
        marginals, log_z = self._marginals("entropy", wide, context)
        normal, offset = self._normalise(wide, **context)
        inner = (marginals * normal).flatten(-self.part_axes).sum(-1)
        return (log_z - offset - inner).to(scores.dtype)

    def relax(
        self, perturbed_scores: Tensor, temperature: float | Tensor, **context: Tensor
    ) -> Float[Tensor, "..."]:
        """The marginals at ``perturbed_scores / temperature``.

        The stochastic softmax trick of Paulus et al. (2020).
        With Gumbel noise on the scores and a Categorical structure this is the Gumbel-softmax. As
        the temperature falls to 0 it tends to ``argmax(perturbed_scores)``.
        """
        check_temperature(f"{self!r}.relax", temperature)
        return self.marginals(perturbed_scores / temperature, **context)


def check_floating(owner: str, scores: Tensor) -> None:
    """Raises unless ``scores`` is a float32 or float64 tensor."""
    if not isinstance(scores, Tensor):
        raise InputError(f"{owner}: scores must be a torch tensor, got {type(scores).__name__}.")
    if scores.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{owner}: scores must be float32 or float64, got {scores.dtype}; convert them first."
        )


def check_enumerable(owner: str, log_count: float) -> None:
    """Raises when a space is too large to list."""
    if log_count > math.log(MAX_ENUMERATED):
        raise InputError(
            f"{owner}.enumerate: about e^{log_count:.0f} members are too many to list "
            f"(at most {MAX_ENUMERATED:,}); use a smaller size."
        )


def members_as_floats(owner: str, z: Tensor) -> Tensor:
    """The candidates given to `contains`, in a dtype that scores can have."""
    if not isinstance(z, Tensor):
        raise InputError(f"{owner}: z must be a torch tensor, got {type(z).__name__}.")
    return z if z.dtype in (torch.float32, torch.float64) else z.float()
