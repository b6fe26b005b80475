"""What a structure is: an argmax over a set of 0/1 vectors, and whatever else the set allows.

Only `Structure.argmax` is required. The protocols name what some spaces have besides: a count, a
list of members, a Gibbs law ``p(z) = exp(z . scores - A)``, exact samples, a relaxation. Scores
carry any leading axes.

Arguments at these seams are checked by our own code, which says what to change; so they are
annotated as plain tensors, and the shape types that the test run checks sit on results and on inner
functions.
"""

import math
import operator
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NoReturn, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nestruct.errors import InputError, MissingError
from nestruct.structures import rows
from nestruct.structures.relaxations.log_domain import FORBIDDEN

MAX_ENUMERATED = 1_000_000
# What the protocols ask for, and not every space has.
_NOT_EVERYWHERE = {
    *("log_count", "enumerate", "contains", "log_partition", "marginals", "entropy"),
    *("sample", "relax"),
}


class Structure(ABC):
    """A discrete latent space. A subclass needs `argmax` and nothing else."""

    @abstractmethod
    def argmax(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The member with the highest score.

        Args:
            scores: Any leading axes, then the parts of one instance; -inf forbids a part.
            lengths: Words per instance, for dependency trees only.

        Returns:
            0/1, of the same shape and dtype as ``scores``; not differentiable.

        Raises:
            InputError: A score that counts is NaN or +inf, or no legal member is left; the row is
                named.
        """

    def counting(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor | None:
        """Which parts can be in a member at all, shaped as ``scores``; None when every part can."""
        return None

    if not TYPE_CHECKING:  # where the protocols are what is known

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self).__name__
            if name in _NOT_EVERYWHERE:
                raise MissingError(
                    f"{kind} has no {name}: of this space it cannot be computed, or it is not "
                    "known how; use what asks for argmax alone, such as NES."
                )
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")


@runtime_checkable
class Countable(Protocol):
    """A space whose size is known."""

    def log_count(self, lengths: Tensor | None = None) -> Tensor:
        """Log of the number of members, in float64; per row where ``lengths`` are given."""
        ...


@runtime_checkable
class Enumerable(Protocol):
    """A space whose members can be listed (when small) and recognised."""

    def enumerate(self, size: int | None = None) -> Tensor:
        """Every member, ``[members, *parts]``; dependency trees need ``size``, the words."""
        ...

    def contains(self, z: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Whether each ``z`` is a member, one boolean per row."""
        ...


@runtime_checkable
class Gibbs(Protocol):
    """A space with a tractable law ``p(z) = exp(z . scores - A(scores))``."""

    def log_partition(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        """``A(scores)``, one per row."""
        ...

    def marginals(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        """``E[z]``, shaped as ``scores``."""
        ...

    def entropy(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        """``-E[log p(z)]``, one per row."""
        ...


@runtime_checkable
class Samplable(Protocol):
    """A space whose Gibbs law can be sampled exactly."""

    def sample(
        self, scores: Tensor, generator: torch.Generator, lengths: Tensor | None = None
    ) -> Tensor:
        """One draw per row, shaped as ``scores``."""
        ...


@runtime_checkable
class Relaxable(Protocol):
    """A space with a differentiable stand-in for its argmax."""

    def relax(
        self, perturbed_scores: Tensor, temperature: float | Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        """What is decoded instead of ``argmax(perturbed_scores)``, shaped as they are."""
        ...


class SizedStructure(Structure):
    """A structure of fixed size: ``part_shape`` is the trailing shape of scores."""

    part_shape: tuple[int, ...]

    def _check(self, method: str, scores: Tensor, lengths: Tensor | None) -> Tensor | None:
        """Raises unless ``scores`` has this structure's parts and there are no lengths."""
        self._refuse_lengths(method, lengths)
        check_floating(f"{self!r}.{method}", scores)
        axes = len(self.part_shape)
        if scores.dim() < axes or tuple(scores.shape[scores.dim() - axes :]) != self.part_shape:
            what = "z" if method == "contains" else "scores"
            raise InputError(
                f"{self!r}.{method}: {what} must end in the shape {self.part_shape}, "
                f"got {tuple(scores.shape)}."
            )
        return None

    def _refuse_lengths(self, method: str, lengths: Tensor | None) -> None:
        if lengths is not None:
            raise InputError(
                f"{self!r}.{method}: lengths are for dependency trees; leave them out here."
            )

    def _check_members(self, z: Tensor, lengths: Tensor | None) -> Bool[Tensor, "*batch"]:
        """Whether every part is 0 or 1; raises unless ``z`` has this structure's parts."""
        self._check("contains", members_as_floats(f"{self!r}.contains", z), lengths)
        axes = len(self.part_shape)
        return ((z == 0) | (z == 1)).flatten(-axes).all(-1)

    def _check_size(self, size: int | None) -> None:
        if size is not None:
            raise InputError(f"{self!r}.enumerate: the size is the structure's own; leave it out.")


class GibbsStructure(Structure):
    """What follows from a log-partition A: marginals are its gradient, entropy, relaxation.

    A subclass gives `_check` and `_log_partition`, which sees finite scores only (`FORBIDDEN` for
    -inf and for parts that do not count) and must use differentiable operations.
    """

    part_axes = 1
    rank: int  # parts in every member

    @abstractmethod
    def _check(self, method: str, scores: Tensor, lengths: Tensor | None) -> Tensor | None: ...

    @abstractmethod
    def _log_partition(self, scores: Tensor, lengths: Tensor | None) -> Tensor: ...

    def _normalise(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scores less what all members have in common, no -inf among them; and that, per row.

        Sums of exponentials then keep the digits that tell members apart, whatever the offset.
        """
        top = scores.detach().amax(-1) if scores.shape[-1] else scores.new_zeros(scores.shape[:-1])
        top = torch.where(top == -torch.inf, 0.0, top)
        return (scores - top[..., None]).clamp(min=FORBIDDEN), self.rank * top

    def _log_z(self, method: str, scores: Tensor, lengths: Tensor | None) -> Tensor:
        normal, offset = self._normalise(scores, lengths)
        value = self._log_partition(normal, lengths)
        answered = self._check_values(method, value.detach(), scores, lengths)
        return torch.where(answered, value + offset, torch.nan)

    @torch.no_grad()
    def _check_values(
        self, method: str, value: Tensor, scores: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """Which rows have an answer; ``value``: what their normal scores sum up to, per row."""
        codes = torch.where(value > FORBIDDEN / 2, rows.OK, rows.NO_MEMBER)
        codes = torch.where(value.isfinite(), codes, rows.NOT_FINITE)
        if lengths is not None:
            in_range = (lengths >= 0) & (lengths < scores.shape[-1])
            codes = torch.where(in_range, codes, rows.BAD_LENGTH)
        return rows.check_rows(codes, f"{self!r}.{method}") == rows.OK

    def _marginals(
        self, method: str, scores: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        def total(inner: Tensor) -> tuple[Tensor, Tensor]:
            value = self._log_z(method, inner, lengths)
            return value.sum(), value

        marginals, log_z = torch.func.grad(total, has_aux=True)(scores)
        failed = log_z.isnan().reshape(*log_z.shape, *[1] * self.part_axes)
        return torch.where(failed, torch.nan, marginals), log_z

    def log_partition(
        self, scores: Tensor, lengths: Tensor | None = None
    ) -> Float[Tensor, "*batch"]:
        """``A(scores)``: log of the sum over all members of ``exp(z . scores)``. Differentiable."""
        lengths = self._check("log_partition", scores, lengths)
        return self._log_z("log_partition", scores, lengths)

    def marginals(self, scores: Tensor, lengths: Tensor | None = None) -> Float[Tensor, "..."]:
        """How often each part is in a draw from the Gibbs law. Differentiable."""
        lengths = self._check("marginals", scores, lengths)
        return self._marginals("marginals", scores, lengths)[0]

    def entropy(self, scores: Tensor, lengths: Tensor | None = None) -> Float[Tensor, "*batch"]:
        """The entropy of the Gibbs law in nats. Differentiable.

        Computed in float64 whatever comes in: it is the small difference of two numbers that grow
        with the scores.
        """
        lengths = self._check("entropy", scores, lengths)
        wide = scores.double()
        marginals, log_z = self._marginals("entropy", wide, lengths)
        normal, offset = self._normalise(wide, lengths)
        inner = (marginals * normal).flatten(-self.part_axes).sum(-1)
        return (log_z - offset - inner).to(scores.dtype)

    def relax(
        self, perturbed_scores: Tensor, temperature: float | Tensor, lengths: Tensor | None = None
    ) -> Float[Tensor, "..."]:
        """The marginals at ``perturbed_scores / temperature``.

        The stochastic softmax trick of Paulus et al. (2020).
        With Gumbel noise on the scores and a Categorical structure this is the Gumbel-softmax. As
        the temperature falls to 0 it tends to ``argmax(perturbed_scores)``.
        """
        check_temperature(f"{self!r}.relax", temperature)
        return self.marginals(perturbed_scores / temperature, lengths)


def check_floating(owner: str, scores: Tensor) -> None:
    """Raises unless ``scores`` is a float32 or float64 tensor."""
    if not isinstance(scores, Tensor):
        raise InputError(f"{owner}: scores must be a torch tensor, got {type(scores).__name__}.")
    if scores.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{owner}: scores must be float32 or float64, got {scores.dtype}; convert them first."
        )


def check_generator(owner: str, generator: torch.Generator) -> None:
    """Raises unless draws can come from it."""
    if not isinstance(generator, torch.Generator):
        raise InputError(
            f"{owner}: generator must be a torch.Generator, like torch.Generator().manual_seed(0), "
            f"got {generator!r}."
        )


def check_temperature(owner: str, temperature: float | Tensor) -> None:
    """Raises unless the temperature is positive; a tensor is not looked into."""
    if not isinstance(temperature, Tensor):
        check_positive(owner, "temperature", temperature)


def check_positive(owner: str, name: str, value: float) -> None:
    """Raises unless ``value`` is a number above 0, and finite."""
    try:
        positive = 0 < value < math.inf
    except TypeError:
        positive = False
    if not positive:
        raise InputError(f"{owner}: {name} must be positive, got {value!r}.")


def check_enumerable(owner: str, log_count: float) -> None:
    """Raises when a space is too large to list."""
    if log_count > math.log(MAX_ENUMERATED):
        raise InputError(
            f"{owner}.enumerate: about e^{log_count:.0f} members are too many to list "
            f"(at most {MAX_ENUMERATED:,}); use a smaller size."
        )


def check_count(owner: str, name: str, value: int, low: int, high: int | None = None) -> int:
    """Returns ``value`` if it is a whole number in range, else raises."""
    try:
        number = operator.index(value)  # numpy's integers too
    except TypeError:
        number = low - 1
    if isinstance(value, bool) or number < low or (high is not None and number > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{owner}: {name} must be a whole number {limits}, got {value!r}.")
    return number


def members_as_floats(owner: str, z: Tensor) -> Tensor:
    """What `contains` was asked about, in a dtype that scores can have."""
    if not isinstance(z, Tensor):
        raise InputError(f"{owner}: z must be a torch tensor, got {type(z).__name__}.")
    return z if z.dtype in (torch.float32, torch.float64) else z.float()
