"""Lemma 1 and Theorem 1 of the paper as functions, and sharper bounds without the dimension.

The loss k takes values in [0, M] and need not be continuous. With w ~ N(0, I) the smoothed loss
g(mu) = E[k(mu + sigma w)] (Eq. 4) is smooth all the same: the derivatives fall on the Gaussian,

    gradient g = E[w k(mu + sigma w)] / sigma                    (Eq. 6)
    Hessian g  = E[(w w^T - I) k(mu + sigma w)] / sigma^2.

The paper's line for the Hessian (proof of Lemma 1, Appendix A) lacks the -I: what it writes is the
Hessian plus (g / sigma^2) I. Its bound M / sigma^2 holds: both of these matrices lie between 0 and
(M / sigma^2) I, so their difference has at most that norm. Its bound on the gradient follows by
Jensen, |E[w k]|^2 <= E[|w k|^2] <= d M^2; the "Cauchy-Schwarz" step as printed is not true.

**Sharper.** Along a unit vector s only x = s . w ~ N(0, 1) matters, and any k in [0, M] has

    s . gradient g      =  E[x k] / sigma              <=  M E[max(x, 0)] / sigma
    |s^T (Hessian g) s| = |E[(x^2 - 1) k]| / sigma^2   <=  M E[max(x^2 - 1, 0)] / sigma^2,

the second for both signs, because E[x^2 - 1] = 0. The expectations are 1 / sqrt(2 pi) = 0.399 and,
as (x^2 - 1) phi(x) is the derivative of -x phi(x), 2 phi(1) = sqrt(2 / (pi e)) = 0.484. Both bounds
are attained: at the edge of a half-space, and in the middle of a slab of half-width sigma. With
the second as smoothness constant L and steps of 1 / L, a step lowers g by at least
|gradient|^2 / (2 L), and all steps together by at most M; so the mean of |gradient|^2 over T steps
is at most 2 L M / T. The paper has sqrt(2 d / T) M^2 / sigma^2, with d parameters: up to
T = 8 pi^2 d, that says less than `gradient_bound` does without any training.

All this is about descent along the exact gradient, mu <- mu - step_size * gradient: no minibatches,
no finite population, no shaping, no Adam. M bounds the whole loss, where `StructuredVAE`'s
``loss_bound`` bounds each component. Functions named ``paper_*`` give the paper's own bounds.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.errors import InputError

HESSIAN_CONSTANT = math.sqrt(2 / (math.pi * math.e))  # E[max(x^2 - 1, 0)], x ~ N(0, 1)


class SmoothedLoss(NamedTuple):
    """The smoothed loss g at a point, with its first two derivatives."""

    value: Float[Tensor, ""]
    gradient: Float[Tensor, " dim"]
    hessian: Float[Tensor, "dim dim"]


def smoothed_loss(
    losses: Float[Tensor, " population"],
    directions: Float[Tensor, "population dim"],
    *,
    sigma: float,
    weights: Float[Tensor, " population"] | None = None,
) -> SmoothedLoss:
    """g, its gradient (Eq. 6) and its Hessian (with the -I), from losses at perturbed parameters.

    Args:
        losses: k(parameters + sigma * direction), one for each direction.
        directions: Draws from N(0, I), or the nodes of a quadrature rule for it.
        sigma: The deviation of the smoothing.
        weights: The rule's weights, which sum to 1; equal ones when left out (Monte Carlo).

    Example:
        A step from 0 to 1, seen from its edge by two nodes (Gauss-Hermite's):

        >>> step = torch.tensor([0.0, 1.0])
        >>> g = smoothed_loss(step, torch.tensor([[-1.0], [1.0]]), sigma=0.5)
        >>> g.value.item(), g.gradient.tolist(), g.hessian.tolist()
        (0.5, [1.0], [[0.0]])
    """
    _check(sigma=sigma)
    if weights is None:
        weights = torch.full_like(losses, 1 / max(1, len(losses)))
    if not len(losses) == len(directions) == len(weights) > 0:
        raise InputError(
            "theory: losses, directions and weights must be as many, at least one; got "
            f"{len(losses)}, {len(directions)} and {len(weights)}."
        )
    weighted = losses * weights
    value = weighted.sum()
    hessian = directions.T @ (weighted[:, None] * directions)
    hessian.diagonal().sub_(value)
    return SmoothedLoss(value, weighted @ directions / sigma, hessian / sigma**2)


def gradient_bound(loss_bound: float, sigma: float) -> float:
    """The most that ``|gradient g|`` can be: M / (sigma sqrt(2 pi)), attained by a step.

    Args:
        loss_bound: M; the loss lies in [0, M].
        sigma: The deviation of the smoothing.

    Example:
        >>> round(gradient_bound(1.0, 0.1), 4)
        3.9894
    """
    _check(loss_bound=loss_bound, sigma=sigma)
    return loss_bound / (sigma * math.sqrt(2 * math.pi))


def hessian_bound(loss_bound: float, sigma: float) -> float:
    """The most that the Hessian's norm can be: 0.484 M / sigma^2, attained by a slab.

    So the gradient of g is Lipschitz with this constant. Arguments as in `gradient_bound`.

    Example:
        >>> round(hessian_bound(1.0, 0.1), 3)
        48.394
    """
    _check(loss_bound=loss_bound, sigma=sigma)
    return HESSIAN_CONSTANT * loss_bound / sigma**2


def step_size(loss_bound: float, sigma: float) -> float:
    """The step of `convergence_bound`, whatever the number of steps: sigma^2 / (0.484 M).

    Example:
        >>> round(step_size(1.0, 0.1), 5)
        0.02066
    """
    return 1 / hessian_bound(loss_bound, sigma)


def convergence_bound(loss_bound: float, sigma: float, *, num_steps: int) -> float:
    """Bounds the mean of ``|gradient g|^2`` over T steps of `step_size`: 0.968 M^2 / (sigma^2 T).

    The mean is over the points from which the ``num_steps`` steps start.

    Example:
        >>> round(convergence_bound(1.0, 0.1, num_steps=1000), 4)
        0.0968
    """
    _check(num_steps=num_steps)
    return 2 * hessian_bound(loss_bound, sigma) * loss_bound / num_steps


def steps_to_reach(loss_bound: float, sigma: float, *, delta: float) -> int:
    """Steps of `step_size` among which some ``|gradient g|^2`` is at most ``delta``.

    Example:
        >>> steps_to_reach(1.0, 0.1, delta=0.1)
        968
    """
    _check(delta=delta)
    return math.ceil(convergence_bound(loss_bound, sigma, num_steps=1) / delta)


def paper_curvature_bound(loss_bound: float, sigma: float, *, num_parameters: int) -> float:
    """Lemma 1: ``gradient^T Hessian gradient <= d M^3 / sigma^4``, at any one or two points.

    From (i) a Hessian of at most M / sigma^2 and (ii) a gradient of at most sqrt(d) M / sigma.

    Example:
        >>> paper_curvature_bound(1.0, 0.5, num_parameters=100)
        1600.0
    """
    _check(loss_bound=loss_bound, sigma=sigma, num_parameters=num_parameters)
    return num_parameters * loss_bound**3 / sigma**4


def paper_step_size(
    loss_bound: float, sigma: float, *, num_parameters: int, num_steps: int
) -> float:
    """Theorem 1: sqrt(2 / (T d)) sigma^2 / M, which minimises its bound for T known beforehand.

    Example:
        >>> paper_step_size(1.0, 0.5, num_parameters=2, num_steps=100)
        0.025
    """
    curvature = paper_curvature_bound(loss_bound, sigma, num_parameters=num_parameters)
    _check(num_steps=num_steps)
    return math.sqrt(2 * loss_bound / (num_steps * curvature))


def paper_convergence_bound(
    loss_bound: float,
    sigma: float,
    *,
    num_parameters: int,
    num_steps: int,
    step_size: float | None = None,
) -> float:
    """Theorem 1: bounds the mean of ``|gradient g|^2`` over T steps, of any size.

    M / (step T) + step d M^3 / (2 sigma^4): sqrt(2 d / T) M^2 / sigma^2 at `paper_step_size`, which
    is taken when ``step_size`` is left out.

    Example:
        >>> round(paper_convergence_bound(1.0, 0.5, num_parameters=2, num_steps=100), 6)
        0.8
    """
    curvature = paper_curvature_bound(loss_bound, sigma, num_parameters=num_parameters)
    if step_size is None:
        step_size = paper_step_size(
            loss_bound, sigma, num_parameters=num_parameters, num_steps=num_steps
        )
    _check(num_steps=num_steps, step_size=step_size)
    return loss_bound / (step_size * num_steps) + step_size * curvature / 2


def paper_steps_to_reach(
    loss_bound: float, sigma: float, *, num_parameters: int, delta: float
) -> int:
    """Theorem 1: 2 d M^4 / (delta^2 sigma^4) steps of `paper_step_size`, rounded up.

    The appendix asks for ``delta <= sqrt(2 d / T) M^2 / sigma^2``; the argument needs ``>=``.

    Example:
        >>> paper_steps_to_reach(1.0, 0.5, num_parameters=2, delta=0.5)
        256
    """
    _check(delta=delta)
    curvature = paper_curvature_bound(loss_bound, sigma, num_parameters=num_parameters)
    return math.ceil(2 * curvature * loss_bound / delta**2)


def _check(**values: int | float) -> None:
    """Raises unless every value is positive and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"theory: {name} must be positive and finite, got {value!r}.")
