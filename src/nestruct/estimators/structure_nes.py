"""A natural evolution strategy in structure space: regress the losses on the structures' parts.

T. Salimans and D. Knowles, "Fixed-Form Variational Posterior Approximation through Stochastic
Linear Regression", 2013: for a law ``exp(z . h - A(h))`` the derivative of E[f(z)] with respect to
the scores h is Cov(z, f) = Cov(z) w, with w the natural gradient: the coefficients of the linear
regression of f on z. Losses f are dear (a decoding each) and structures cheap (a solver call), so w
is fitted to few samples, and Cov(z) is estimated from many. Black-box solver: the solver is opaque,
encoder and decoder are differentiated.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.checks import check_count, check_positive
from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation, Terms
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import Gibbs, Structure

_NUM_COVARIANCE = 64  # where structures are cheap


@dataclass(kw_only=True, eq=False)
class StructureNES(Backpropagation):
    """The gradient by regression of sampled structures' losses; the solver is a black box.

    Samples are perturb-and-MAP; treating their law as a Gibbs law is exact for Categorical and an
    approximation elsewhere: with many samples and no ridge the estimate tends to the covariance of
    parts and loss under the law that is sampled. The ridge shrinks it towards 0 and makes it less
    noisy. The decoder's gradient, and that of the divergence, are those of the mean loss.

    Structures of other numbers than 0 and 1: each part is measured in twice its deviation over the
    samples. So the ridge follows the variance of each part, and a part that is counted in hundreds
    is treated as one in units. It also gives the estimate its size: for knapsacks of up to ten of
    each item the covariance of the counts themselves was six to seven times as large as the
    derivative; so measured it was within 5% of it.

    Args:
        num_samples: Structures per example that are decoded, at least two, in one call.
        ridge: What the regression adds to the variance of each part. A part that half of all
            structures have has a variance of 1/4, so much less than that leaves losses that are
            nearly linear in the parts as they are. Use 0.1 for losses that parts hardly explain.
        num_covariance: Further structures per example that are drawn for Cov(z) only. Each is one
            more call of the solver per example and step. When None: 64, or 0 for a solver that is
            called for one instance at a time.
        covariance: ``sampled``: Cov(z) from all structures that were drawn, for any structure;
            ``gibbs``: that of the Gibbs law with the same scores, exact and slower, for a
            structure whose log-partition is known.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> tree = nestruct.SpanningTree(4)
        >>> vae = nestruct.StructuredVAE(mlp(3, 6), mlp(6, 3), tree)
        >>> report = nestruct.StructureNES(num_samples=8).backward(vae, torch.ones(2, 3), seed=0)
        >>> int(report.num_evaluations)
        8
    """

    kind: ClassVar[str] = "black-box solver"
    biased_by_design: ClassVar[bool] = True

    num_samples: int = 16
    ridge: float = 0.01
    num_covariance: int | None = None
    covariance: Literal["sampled", "gibbs"] = "sampled"
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("StructureNES", "num_samples", self.num_samples, 2)
        if self.num_covariance is not None:
            check_count("StructureNES", "num_covariance", self.num_covariance, 0)
        check_positive("StructureNES", "ridge", self.ridge)

    def prepare(self, model: nn.Module, batch: Any, *, seed: int = 0) -> None:
        """Refuses what cannot be trained."""
        super().prepare(model, batch, seed=seed)
        if self.covariance == "gibbs" and not isinstance(model.structure, Gibbs):
            raise InputError(
                f"StructureNES: {model.structure!r} has no tractable Gibbs law; say "
                "covariance='sampled'."
            )

    def terms(self, model: StructuredModel, batch: Any, noise: Noise) -> Terms:
        """The losses of the samples, and the scores times the estimate of their derivative."""
        structure: Any = model.structure
        context = model.context(batch)
        scores = model.encode(batch)
        drawn = self.num_samples + self._num_more(structure)
        streams = noise.replace(stream=torch.arange(drawn, device=scores.device)[:, None])
        z = structure.argmax((scores + streams.gumbel(scores)).detach(), **context)
        losses, counts = self.hard_losses(model, batch, scores, z[: self.num_samples])
        parts = z.flatten(2).transpose(0, 1)  # [batch, drawn, parts]
        counts = counts & ~parts.isnan().flatten(1).any(1)
        parts = torch.where(counts[:, None, None], parts, 0.0)
        costs = torch.where(counts, losses.detach(), 0.0)
        if not structure.binary:
            parts = parts / units(parts)
        weights = regress(parts[:, : self.num_samples], costs.T, self.ridge)
        if self.covariance == "sampled":
            parts = parts - parts.mean(1, keepdim=True)
            slope = parts.mT @ (parts @ weights[..., None]) / (drawn - 1)
        else:
            # The covariance is the derivative of the marginals, and symmetric.
            marginals = partial(structure.marginals, **context)
            slope = torch.func.vjp(marginals, scores.detach())[1](weights.view_as(scores))[0]
        return Terms(losses, counts, each=(slope.view_as(scores) * scores).flatten(1).sum(1))

    def _num_more(self, structure: Structure) -> int:
        """How many structures are drawn for Cov(z) only."""
        if self.covariance != "sampled":
            return 0
        if self.num_covariance is None:
            return 0 if structure.one_at_a_time else _NUM_COVARIANCE
        return self.num_covariance


def units(parts: Float[Tensor, "batch samples parts"]) -> Float[Tensor, "batch 1 parts"]:
    """Twice the deviation of each part over the samples: 1 for one that half of them have.

    Infinite for a part that does not vary, which explains nothing.
    """
    varies = parts.amax(1, keepdim=True) > parts.amin(1, keepdim=True)
    deviation = parts.double().std(1, keepdim=True).to(parts.dtype)
    return torch.where(varies, 2 * deviation, torch.inf)


def regress(
    parts: Float[Tensor, "batch samples parts"],
    losses: Float[Tensor, "batch samples"],
    ridge: float,
) -> Float[Tensor, "batch parts"]:
    """Coefficients of the ridge regression, with an intercept, of each example's losses.

    They minimise the mean squared error plus ``ridge`` times their squared norm. In the dual form,
    whose matrix has the size of the samples: those are few.
    """
    dtype = parts.dtype
    parts, losses = parts.double(), losses.double()  # equal samples and a small ridge need it
    parts, losses = parts - parts.mean(1, keepdim=True), losses - losses.mean(1, keepdim=True)
    samples = parts.shape[1]
    identity = torch.eye(samples, dtype=parts.dtype, device=parts.device)
    # Neither checks anything on the host, so both may be captured.
    root, _ = torch.linalg.cholesky_ex(parts @ parts.mT + samples * ridge * identity)
    half = torch.linalg.solve_triangular(root, losses[..., None], upper=False)
    dual = torch.linalg.solve_triangular(root.mT, half, upper=True)
    return (parts.mT @ dual)[..., 0].to(dtype)
