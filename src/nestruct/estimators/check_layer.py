"""Is the gradient of a layer with a solver inside right? Anyone's layer, on any loss.

The truth is the gradient with respect to the scores h of the expected loss at perturb-and-MAP
structures, E[L(z(h + Gumbel))]. Where the law of z is known, members are listed and nothing is
sampled. Elsewhere it is a long mean, by the score function of the Gumbel noise,

    gradient = E[(1 - exp(-eps)) (L(z(h + eps)) - baseline)],

with its own standard error. Neither calls the layer, nor differentiates through a solver.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.estimators.check import GradientCheck, judge
from nestruct.estimators.solver_gradient import SolverGradient
from nestruct.noise import forked_generators
from nestruct.structures import Categorical, KSubset, SpanningTree, Structure, perturb_and_map_law

_MAX_LISTED = 2000  # members: the loss is asked for each of them
_CHUNK = 1 << 20  # parts at once
_MAX_OTHERS = 200  # draws of the other examples, where one number stands for the whole batch

Loss = Callable[[Tensor], Tensor]


def check_layer(
    layer: Callable[[Tensor], Tensor],
    loss: Loss,
    scores: Tensor,
    structure: Structure,
    *,
    num_trials: int = 200,
    num_reference: int = 20_000,
    context: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> GradientCheck:
    """Compares the gradient that a layer gives to scores with that of the expected loss.

    The expected loss is that at perturb-and-MAP structures: the argmax of scores with Gumbel noise.
    Every entry of the result but the verdict is about this truth. ``passed`` says for a layer that
    is not ours, and for gradients without a bias, that direction and scale agree with it. Our
    gradients that are ``biased_by_design`` do not aim at it; for them ``passed`` says that the
    layer's mean agrees with the method's own limit, from its formula written out without autograd.
    How good the method is for this loss, ``cosine``, ``bias`` and ``variance`` say.

    Args:
        layer: From scores to z, differentiable: a `nestruct.SolverLayer` in training mode, or
            anyone's module or function. One that minimises costs is checked as
            ``lambda scores: its_layer(-scores)``. It may put an axis of samples first.
        loss: From z, shaped as the scores, to the loss: one for each instance, or one number.
        scores: ``[..., *parts]``, as the layer takes them.
        structure: What the layer solves.
        num_trials: Calls of the layer to average, at least 2.
        num_reference: Draws behind a truth that cannot be listed, and behind a method's limit.
        context: What the structure's solver sees besides scores; a `nestruct.SolverLayer` gets it
            too, other layers are closed over theirs.
        seed: For the trials (torch's own generator is put back) and for the truth.

    Example:
        >>> import torch, nestruct
        >>> subsets, scores = nestruct.KSubset(4, 2), torch.tensor([[0.5, 0.0, -1.0, 1.0]])
        >>> layer = nestruct.SolverLayer(subsets, nestruct.IMLE(num_samples=8))
        >>> costs = torch.tensor([1.0, -1.0, 2.0, 0.0])
        >>> check = nestruct.check_layer(layer, lambda z: z @ costs, scores, subsets)
        >>> check.passed, check.biased_by_design, check.cosine > 0.95
        (True, True, True)
    """
    for name, count in (("num_trials", num_trials), ("num_reference", num_reference)):
        check_count("check_layer", name, count, 2)
    if not isinstance(structure, Structure):
        raise InputError(
            f"check_layer: structure must be what the layer solves, one of nestruct's or a "
            f"BlackBox, got {structure!r}."
        )
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise InputError(f"check_layer: scores must be a tensor of floats, got {got}.")
    if not callable(layer):
        raise InputError(f"check_layer: layer must be a function from scores to z, got {layer!r}.")
    gradient = getattr(layer, "gradient", None)
    gradient = gradient if isinstance(gradient, SolverGradient) else None
    task = _Task(loss, scores.detach(), structure, dict(context or {}))
    generator = torch.Generator(scores.device).manual_seed(seed + 1)
    with forked_generators(scores.device):
        torch.manual_seed(seed)
        given = task.context if gradient is not None else {}
        state, trials = {} if gradient is None else gradient.state_dict(), []
        for _ in range(num_trials):
            trials.append(task.trial(layer, given))
            if gradient is not None and state:  # as it stands, not as the trials would change it
                gradient.load_state_dict(state)
        estimates = torch.stack(trials)
        truth, error = task.truth(num_reference, generator)
        scaled = gradient is None or gradient.is_scaled
        found = judge(estimates, truth, error, scaled)
        if gradient is None or not gradient.biased_by_design:
            return found
        limit, error = task.limit(gradient, num_reference, generator)
        verdict = judge(estimates, limit, error, scaled=True)
    return dataclasses.replace(
        found, passed=verdict.passed, undecided=verdict.undecided, biased_by_design=True
    )


class _Task:
    """A loss at the structures of some scores; gradients are flat and in float64."""

    def __init__(self, loss: Loss, scores: Tensor, structure: Structure, context: dict) -> None:
        self.structure, self.context, self.alone = structure, context, False
        axes = structure.part_axes
        if scores.dim() == axes:  # one instance: its context has no axis of examples
            self.alone, scores = True, scores[None]
            one = {n: v[None] if isinstance(v, Tensor) else v for n, v in context.items()}
            self.one_loss, self.solver_context = (lambda z: loss(z[0])), one
        else:
            self.one_loss, self.solver_context = loss, context
        self.scores = scores
        self.lead = scores.shape[: scores.dim() - axes]
        self.wide = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
        value = self.one_loss(self._argmax(self.wide).to(scores.dtype))
        if not isinstance(value, Tensor):
            raise InputError(f"check_layer: the loss must give a tensor, got {value!r}.")
        self.each = value.dim() > 0  # a loss for each instance
        if self.each and value.shape != self.lead:
            raise InputError(
                f"check_layer: the loss must be one number, or one for each instance, shape "
                f"{tuple(self.lead)}; got {tuple(value.shape)}."
            )

    def trial(self, layer: Callable[..., Tensor], context: dict) -> Float[Tensor, " size"]:
        """One gradient by the layer."""
        leaf = self.scores.clone().requires_grad_()
        z = layer(leaf[0] if self.alone else leaf, **context)
        if self.alone:
            z = z.unsqueeze(-self.structure.part_axes - 1)
        if z.shape[z.dim() - leaf.dim() :] != leaf.shape:
            raise InputError(
                f"check_layer: the layer must give z shaped as the scores, {tuple(leaf.shape)}, "
                f"or with samples before that; got {tuple(z.shape)}."
            )
        if not z.requires_grad:
            hint = (
                " is in evaluation mode: call its train()"
                if _evaluates(layer)
                else (" gives a z without a gradient")
            )
            raise InputError(f"check_layer: the layer{hint}.")
        samples = z.reshape(-1, *leaf.shape)
        total = torch.stack([self.one_loss(one).sum() for one in samples]).mean()
        if not total.requires_grad:
            raise InputError("check_layer: the loss has no derivative with respect to z.")
        (found,) = torch.autograd.grad(total, leaf, materialize_grads=True)
        return found.flatten().double()

    def truth(self, num_reference: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The gradient of the expected loss, and its standard error."""
        structure = self.structure
        known = isinstance(structure, Categorical | KSubset | SpanningTree)
        if known and float(structure.log_count().exp()) <= _MAX_LISTED:  # type: ignore[attr-defined]
            return self._listed(num_reference, generator)
        return self._mean(self._score_function, num_reference, generator)

    def limit(
        self, gradient: SolverGradient, num_draws: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The mean of a method's formula, and its standard error."""

        def estimate(scores: Tensor, generator: torch.Generator) -> Tensor:
            context = self.solver_context
            return gradient.formula(self.structure, scores, self._slope, generator, **context)

        return self._mean(estimate, num_draws, generator)

    def _argmax(self, scores: Tensor) -> Tensor:
        return self.structure.argmax(scores, **self.solver_context)

    def _listed(self, num_draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """By the chances of all members, which have a derivative."""
        members = self.structure.enumerate().to(self.wide)  # type: ignore[attr-defined]
        leaf = self.wide.double().clone().requires_grad_()  # not the scores themselves
        chances = perturb_and_map_law(self.structure, leaf)  # type: ignore[arg-type]
        if self.each:
            tables = [self._table_of_each(members)]
        else:
            count = len(members) * self.lead.numel()
            draws = max(2, min(_MAX_OTHERS, num_draws // count))
            tables = [self._table_of_all(members, generator) for _ in range(draws)]
        found = [
            torch.autograd.grad((chances * table).sum(), leaf, retain_graph=True)[0].flatten()
            for table in tables
        ]
        return _mean_and_error(torch.stack(found))

    @torch.no_grad()
    def _table_of_each(self, members: Tensor) -> Float[Tensor, "*lead members"]:
        """The loss of every member, for each instance."""
        z = members.view(-1, *[1] * len(self.lead), *members.shape[1:])
        return self.losses(z.expand(-1, *self.scores.shape)).movedim(0, -1).double()

    @torch.no_grad()
    def _table_of_all(self, members: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of the whole batch with each instance any member, and the others drawn."""
        others = self._argmax(self._perturb(self.wide, generator)).flatten(0, len(self.lead) - 1)
        each = torch.arange(len(others))
        z = others.repeat(len(others), len(members), *[1] * others.dim())
        z[each, :, each] = members
        losses = self.losses(z.view(-1, *self.scores.shape))
        return losses.view(*self.lead, len(members)).double()

    @torch.no_grad()
    def _score_function(self, scores: Tensor, generator: torch.Generator) -> Tensor:
        """One estimate for each row of scores ``[rows, *lead, *parts]``."""
        perturbed = self._perturb(scores, generator)
        losses, weight = self.losses(self._argmax(perturbed)), 1 - (scores - perturbed).exp()
        counting = self.structure.counting(scores, **self.solver_context)
        if counting is not None:
            weight = torch.where(counting, weight, 0.0)
        others = (losses - losses.mean(0)) * (len(losses) / (len(losses) - 1))
        return others.view(*others.shape, *[1] * (scores.dim() - others.dim())) * weight

    def _mean(
        self,
        estimate: Callable[[Tensor, torch.Generator], Tensor],
        num_draws: int,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """The mean of many estimates, some at a time."""
        rows = min(num_draws, max(100, _CHUNK // max(1, self.scores.numel())))
        found = []
        for _ in range(-(-num_draws // rows)):
            scores = self.wide.expand(rows, *self.wide.shape)
            found.append(estimate(scores, generator).flatten(1).double())
        return _mean_and_error(torch.cat(found))

    def _perturb(self, scores: Tensor, generator: torch.Generator) -> Tensor:
        return scores - torch.empty_like(scores).exponential_(generator=generator).log()

    def losses(self, z: Tensor) -> Tensor:
        """The loss of every row of ``z [rows, *lead, *parts]``."""
        z = z.to(self.scores.dtype)
        one = torch.stack([self.one_loss(row) for row in z[:2]])
        try:
            both = torch.func.vmap(self.one_loss)(z[:2])
        except RuntimeError:  # it cannot be vmapped: it looks at values, or draws
            both = None
        if both is not None and torch.allclose(both, one, equal_nan=True):
            return torch.func.vmap(self.one_loss, chunk_size=_rows_of(z))(z)
        return torch.stack([self.one_loss(row) for row in z])

    def _slope(self, z: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.losses(leaf).sum(), leaf)
        return slope


def _mean_and_error(estimates: Float[Tensor, "trials size"]) -> tuple[Tensor, Tensor]:
    """Exact values are equal, and have no error."""
    if len(estimates) == 1:
        return estimates[0], torch.zeros_like(estimates[0])
    return estimates.mean(0), estimates.std(0) / len(estimates) ** 0.5


def _rows_of(z: Tensor) -> int:
    return max(1, _CHUNK // max(1, z[0].numel()))


def _evaluates(layer: Any) -> bool:
    return isinstance(layer, nn.Module) and not layer.training
