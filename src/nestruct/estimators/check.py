"""Is an estimator's gradient right? Its mean over many trials against an independent truth.

The truth is the gradient of the smoothed objective at the same sigma, from code that shares nothing
with the estimators: central differences along Gaussian directions of the plain loss, averaged, with
its own standard error. Where the structure can be listed, the derivative of the exact expected loss
is averaged instead, which has far less variance.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.errors import InputError
from nestruct.estimators.base import Estimator
from nestruct.estimators.enumeration import exact_loss
from nestruct.models import StructuredModel
from nestruct.models.compiled import uncompiled, unwrap
from nestruct.noise import Noise
from nestruct.population import Layout, budget, needs_loop
from nestruct.population.evaluate import is_training, tensor_places
from nestruct.structures import Categorical, KSubset, SpanningTree

_MAX_LISTED = 64  # structures: each is decoded at every point
_MAX_CHUNK = 500  # points at once
_SIGMAS = 4.0  # how many standard errors the verdict allows
# A share of the truth that is no mistake: exact estimators round, and shaping by standard scores
# divides by a random number, which leaves a bias of order 1/N.
_TOLERANCE = 0.02
_MIN_TRIALS = 10  # with fewer, the standard errors themselves are not known
_MAX_NOISE = 1.0  # of the truth's norm: beyond it, a pass would say nothing about the direction


@dataclass(frozen=True)
class GradientCheck:
    """What `check_gradient` or `check_layer` found.

    Args:
        cosine: Between the estimator's mean gradient and the true one.
        bias: Norm of their difference over the norm of the truth; scale included.
        noise: What that ratio would be by chance for an unbiased estimator (one standard error).
        scale: Length of the mean gradient along the truth, over the truth's: 1 when it is right.
        scale_error: Standard error of that.
        variance: Sum over parameters of the variance of one estimate.
        passed: The verdict: scale and direction with raw losses, direction alone with shaped ones.
            Of a method that is biased by design, and whose limit is known, it says that its mean
            agrees with that limit; what the other entries say is about the truth.
        law_variances: For NES, the variance with each way to draw the structure's noise.
        biased_by_design: Whether the method is known to aim at something else than the truth, such
            as the loss of a relaxation: how good it is here, ``cosine`` says.
        undecided: Not passed, and not found wrong either: there are fewer than ten trials, or
            nothing is seen to be wrong, but ``noise`` is above 1 or the scale is not known to a
            half. More trials decide it, or a smaller model.
    """

    cosine: float
    bias: float
    noise: float
    scale: float
    scale_error: float
    variance: float
    passed: bool
    law_variances: dict[str, float] = field(default_factory=dict)
    undecided: bool = False
    biased_by_design: bool = False


def check_gradient(
    model: nn.Module,
    estimator: Estimator,
    batch: Any,
    *,
    num_trials: int = 200,
    num_reference: int = 20_000,
    sigma: float | None = None,
    seed: int = 0,
    compare_laws: bool = True,
) -> GradientCheck:
    """Compares an estimator with the gradient of the smoothed objective.

    Args:
        model: Small: a reference of ``num_reference`` pairs of evaluations is computed.
        estimator: What is checked.
        batch: The minibatch.
        num_trials: Independent estimates to average, at least 2.
        num_reference: Pairs of evaluations behind the truth.
        sigma: The smoothing of the truth; the estimator's own when it has one.
        seed: For trials and truth.
        compare_laws: Whether to measure the variance of each of NES's Gumbel laws too.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> _ = torch.manual_seed(0)
        >>> vae = nestruct.StructuredVAE(mlp(2, 3), mlp(3, 2), nestruct.Categorical(3))
        >>> estimator = nestruct.NES(sigma=0.3, population_size=20, shaping="none")
        >>> nestruct.check_gradient(vae, estimator, torch.eye(2), num_trials=50).passed
        True
    """
    if sigma is None:
        sigma = estimator.smoothing
    if sigma is None:
        raise InputError(
            "check_gradient: the estimator does not smooth the parameters, so it has no sigma; say "
            "which smoothing to check, like sigma=0.01 (as a command --sigma 0.01)."
        )
    if not sigma > 0:
        raise InputError(f"check_gradient: sigma must be positive, got {sigma}.")
    for name, count in (("num_trials", num_trials), ("num_reference", num_reference)):
        if count < 2:
            raise InputError(f"check_gradient: {name} must be at least 2, got {count}.")
    model = unwrap(model)
    layout = Layout(model, estimator.perturb)
    parameters = list(layout.parameters.values())
    sigmas = sigma * layout.spread(estimator.sigma_ratios(layout))
    saved = [p.grad for p in parameters]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with uncompiled(model):
        truth, truth_error = _smoothed_gradient(
            model, batch, parameters, sigmas, num_reference, seed
        )
    estimates = _trials(model, estimator, batch, parameters, num_trials, seed)
    laws = {}
    for law, other in estimator.other_laws().items() if compare_laws else ():
        runs = _trials(model, other, batch, parameters, num_trials, seed)
        laws[law] = float(runs.var(0).sum())
    for parameter, gradient in zip(parameters, saved, strict=True):
        parameter.grad = gradient
    for buffer, value in buffers:
        buffer.copy_(value)
    found = judge(estimates, truth, truth_error, estimator.is_scaled, laws)
    if not estimator.biased_by_design:
        return found
    with uncompiled(model):
        limit = estimator.limit(model, batch, num_draws=num_reference, seed=seed + 3)
    if limit is not None:
        verdict = judge(estimates, *limit, scaled=True)
        found = replace(found, passed=verdict.passed, undecided=verdict.undecided)
    return replace(found, biased_by_design=True)


def judge(
    estimates: Float[Tensor, "trials size"],
    truth: Tensor,
    truth_error: Tensor,
    scaled: bool,
    laws: dict[str, float] | None = None,
) -> GradientCheck:
    """Compares independent estimates with a truth that has a standard error of its own."""
    mean, trials = estimates.mean(0), len(estimates)
    length = truth.norm()
    unit = truth / length
    along = estimates @ unit / length  # 1 on average for a right scale
    scale = along.mean()
    truth_part = scale * truth_error * unit / length
    scale_error = (along.var() / trials + truth_part.square().sum()).sqrt()
    variance = estimates.var(0).sum()
    cosine = (mean @ unit) / mean.norm()
    if scaled:
        error = mean - truth
        spread = estimates.var(0) / trials + truth_error**2
        maybe_right_scale = (scale - 1).abs() <= (_SIGMAS * scale_error).clamp(min=_TOLERANCE)
    else:  # the scale is arbitrary: compare with the truth stretched to fit, and ask for its sign
        error = mean - scale * truth
        spread = estimates.var(0) / trials + (scale * truth_error) ** 2
        maybe_right_scale = scale > -_SIGMAS * scale_error
    known_scale = scale_error * _SIGMAS < 0.5 * scale.abs().clamp(min=1e-300)
    # Sum of squares against its expectation under no bias; its deviation if entries were
    # independent.
    excess = (error.square().sum() - spread.sum()) / (2 * spread.square().sum()).sqrt()
    reference = length if scaled else (scale * length).abs()
    right_direction = (excess <= 2 * _SIGMAS) | (error.norm() <= _TOLERANCE * reference)
    noise = spread.sum().sqrt() / reference
    # With too few trials nothing can be said: that is no pass.
    known = known_scale & (noise <= _MAX_NOISE) & (trials >= _MIN_TRIALS)
    looks_right = right_direction & maybe_right_scale
    return GradientCheck(
        cosine=float(cosine),
        bias=float(error.norm() / reference),
        noise=float(noise),
        scale=float(scale),
        scale_error=float(scale_error),
        variance=float(variance),
        passed=bool(looks_right & known),
        law_variances=laws or {},
        undecided=trials < _MIN_TRIALS or bool(looks_right & ~known),
    )


def _trials(
    model: nn.Module,
    estimator: Estimator,
    batch: Any,
    parameters: list[nn.Parameter],
    num_trials: int,
    seed: int,
) -> Float[Tensor, "trials size"]:
    estimates = []
    state = estimator.state_dict() if estimator.biased_by_design else {}
    for step in range(num_trials):
        for parameter in parameters:
            parameter.grad = None
        estimator.backward(model, batch, seed=seed, step=step)
        if state:  # its limit is that of the state that it has, not of what trials make of it
            estimator.load_state_dict(state)
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        estimates.append(torch.cat([piece.flatten() for piece in pieces]).double())
    return torch.stack(estimates)


def _smoothed_gradient(
    model: nn.Module,
    batch: Any,
    parameters: list[nn.Parameter],
    sigmas: Float[Tensor, " size"],
    num_pairs: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Mean and standard error of ``(loss(mu + sigma w) - loss(mu - sigma w)) w / (2 sigma)``.

    Where the structure can be listed: of the exact loss's derivative at those points.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    places = tensor_places(model)
    generator = torch.Generator().manual_seed(seed + 1)
    sizes = [p.numel() for p in parameters]
    device, dtype = parameters[0].device, parameters[0].dtype
    listed = _is_listed(model, batch)
    wrapped = _MeanLoss(model, listed)

    def loss(flat: Tensor, number: Tensor) -> Tensor:
        state: dict[str, Tensor] = {}
        for p, piece in zip(parameters, (sigmas * flat).split(sizes), strict=True):
            value = p.detach() + piece.view(p.shape)
            state |= {f"model.{place}": value for place in places[names[id(p)]]}
        if is_training(model):
            state |= {f"model.{name}": b.clone() for name, b in model.named_buffers()}
        noise = Noise(seed=seed + 2, pair=number)
        call = torch.func.functional_call
        return call(wrapped, state, (batch, noise), tie_weights=False)

    def differences(drawn: Tensor, numbers: Tensor) -> Tensor:
        both = [many(loss)(sign * drawn, numbers) for sign in (1.0, -1.0)]
        return ((both[0] - both[1]) / 2)[:, None] * drawn / sigmas

    def slopes(drawn: Tensor, numbers: Tensor) -> Tensor:
        # The expected loss has a derivative of its own: its mean has far less variance.
        both = [many(torch.func.grad(loss))(sign * drawn, numbers) for sign in (1.0, -1.0)]
        return (both[0] + both[1]) / (2 * sigmas)

    def many(function: Any) -> Any:
        if not needs_loop(model) and not any(True for _ in model.buffers()):
            return torch.func.vmap(function)
        return lambda *rows: torch.stack([function(*row) for row in zip(*rows, strict=True)])

    each = budget.activation_bytes(model, batch, Noise(seed=seed)) + 4 * sum(
        p.nbytes for p in parameters
    )
    if listed:  # every structure, forward and backward
        each *= 4 * round(float(model.structure.log_count().exp()))  # type: ignore
    chunk = min(_MAX_CHUNK, max(1, budget.default_budget(device) // each))
    total = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
    squares = torch.zeros_like(total)
    for start in range(0, num_pairs, chunk):
        count = min(chunk, num_pairs - start)
        drawn = torch.randn(count, sum(sizes), generator=generator, dtype=dtype).to(device)
        numbers = torch.arange(start, start + count, device=device)
        with torch.no_grad():
            estimates = (slopes if listed else differences)(drawn, numbers).double()
        total += estimates.sum(0)
        squares += estimates.square().sum(0)
    mean = total / num_pairs
    return mean, ((squares / num_pairs - mean**2) / num_pairs).clamp(min=0).sqrt()


class _MeanLoss(nn.Module):
    """The mean loss over a batch: expected exactly over listed structures, else sampled."""

    def __init__(self, model: nn.Module, listed: bool) -> None:
        super().__init__()
        self.model = model
        self.listed = listed

    def forward(self, batch: Any, noise: Noise) -> Tensor:
        if self.listed:
            return exact_loss(self.model, batch, "perturb_and_map").mean()  # type: ignore[arg-type]
        return self.model.loss(batch, noise).mean()  # type: ignore[operator]


@torch.no_grad()
def _is_listed(model: nn.Module, batch: Any) -> bool:
    # A model that overrides loss is taken at its word: only its loss counts.
    if not isinstance(model, StructuredModel) or type(model).loss is not StructuredModel.loss:
        return False
    structure = model.structure
    if not isinstance(structure, Categorical | KSubset | SpanningTree):
        return False
    if float(structure.log_count().exp()) > _MAX_LISTED:
        return False
    return model.encode(batch).dim() == 2  # one structure per example
