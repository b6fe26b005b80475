"""A solver as a layer in anyone's module and loop.

The way back through the layer is one of the gradients of `nestruct.estimators`: they need the
derivative of the loss with respect to z. Where the loss has none, its values are enough for
`nestruct.StructureNES`.
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from nestruct.errors import InputError
from nestruct.estimators.solver_gradient import (
    Back,
    SolverGradient,
    go_back,
    with_gradient,
    without_autocast,
)
from nestruct.noise import own_generator
from nestruct.structures import Structure
from nestruct.structures.solution_cache import estimating


class SolverLayer(nn.Module):
    """``layer(scores, **context)`` gives structures; ``loss.backward()`` gives scores a gradient.

    In training mode the scores are perturbed as the gradient says, by draws from torch's own
    generator (`torch.manual_seed`), as those of dropout are. In evaluation mode, after ``eval()``,
    z is the plain argmax, without a gradient.

    The layer has no parameters. Solvers see float32 or float64: half-precision scores are widened
    before, and z comes back in the dtype of the scores. `torch.compile` compiles what is around the
    layer; the solver itself stays opaque.

    Args:
        structure: What is solved; a function of your own goes into `nestruct.BlackBox`.
        gradient: The way back, such as ``nestruct.IMLE()``.

    Returns of a call:
        z, shaped as ``scores [..., *parts]``. With ``num_samples`` above 1, in training mode, it
        has an axis of samples first; average the loss over it.

    Example:
        >>> import torch, nestruct
        >>> _ = torch.manual_seed(0)
        >>> layer = nestruct.SolverLayer(nestruct.KSubset(4, 2), nestruct.IMLE(num_samples=3))
        >>> scores = torch.zeros(5, 4, requires_grad=True)
        >>> z = layer(scores)
        >>> z.shape
        torch.Size([3, 5, 4])
        >>> (z - torch.tensor([1.0, 1.0, 0.0, 0.0])).square().sum(-1).mean().backward()
        >>> bool((scores.grad != 0).any())
        True
        >>> layer.eval()(torch.tensor([0.1, 0.7, 0.2, 0.5]))
        tensor([0., 1., 0., 1.])
    """

    def __init__(self, structure: Structure, gradient: SolverGradient | None = None) -> None:
        super().__init__()
        if not isinstance(structure, Structure):
            raise InputError(
                f"SolverLayer: structure must be one of nestruct's, got {structure!r}; a solver of "
                "your own goes into BlackBox, or into a subclass of Structure."
            )
        if not isinstance(gradient, SolverGradient):
            raise InputError(
                "SolverLayer: gradient must be a way back through a solver, like nestruct.IMLE() "
                f"or nestruct.Identity(), got {gradient!r}."
            )
        gradient.check_structure(structure)
        self.structure = structure
        self.gradient = gradient
        self._number = _enter(self)

    def extra_repr(self) -> str:
        """What the layer is made of."""
        return f"{self.structure!r}, {self.gradient!r}"

    def forward(self, scores: Tensor, **context: Any) -> Tensor:
        """The structures of the scores.

        Args:
            scores: Any leading axes, then the parts of one instance; a higher score makes a part
                likelier, so give minus the costs.
            **context: What the solver sees besides scores, by name; see `nestruct.BlackBox`.
        """
        if not isinstance(scores, Tensor) or not scores.is_floating_point():
            got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
            raise InputError(
                f"SolverLayer: scores must be a tensor of floats, got {got}; convert them first."
            )
        if scores.dim() < self.structure.part_axes:
            raise InputError(
                f"SolverLayer: scores of {self.structure!r} have {self.structure.part_axes} axes "
                f"of parts, and leading axes before them; got {tuple(scores.shape)}."
            )
        given = {name: value for name, value in context.items() if value is not None}
        if torch.compiler.is_compiling():
            values = [torch.as_tensor(value) for value in given.values()]
            return _opaque(scores, values, ",".join(given), self._number, self.training)[0]
        z, back = self._there_and_back(scores.detach(), given, own_generator(scores.device))
        return with_gradient(z, scores, back) if self.training else z

    def _there_and_back(
        self, scores: Tensor, context: dict[str, Any], draws: torch.Generator
    ) -> tuple[Tensor, Back]:
        wide = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
        axis = -self.structure.part_axes - 1
        alone = scores.dim() == self.structure.part_axes
        if alone:  # one instance: samples would take the place of examples
            wide = wide[None]
            context = {n: v[None] if isinstance(v, Tensor) else v for n, v in context.items()}
        with without_autocast(scores.device):
            if self.training:
                solve = self.gradient.there_and_back
                with estimating():
                    z, inner = solve(self.structure, wide, draws, **context)
            else:
                z, inner = self.structure.argmax(wide, **context), torch.zeros_like

        def back(slope: Tensor) -> Tensor:
            found = inner((slope.unsqueeze(axis) if alone else slope).to(wide.dtype))
            return (found.squeeze(axis) if alone else found).to(scores.dtype)

        return (z.squeeze(axis) if alone else z).to(scores.dtype), back

    # The state of the gradient, if it has one (`AIMLE`), is the layer's.
    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in self.gradient.state_dict().items():
            destination[f"{prefix}gradient.{name}"] = value

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, *lists) -> None:
        names = {name: f"{prefix}gradient.{name}" for name in self.gradient.state_dict()}
        absent = [key for key in names.values() if key not in state_dict]
        if names and not absent:  # taken out: torch knows parameters and buffers only
            own = {name: state_dict.pop(key) for name, key in names.items()}
            self.gradient.load_state_dict(own)
        missing.extend(absent)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *lists)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # of a copy
        self._number = _enter(self)


# What torch.compile sees of a layer: one op. Python objects cannot be its arguments, so layers are
# numbered, and the way back of a call is kept, by a number of its own, until it is taken.
_layers: WeakValueDictionary[int, SolverLayer] = WeakValueDictionary()
_ways_back: OrderedDict[int, Back] = OrderedDict()
_MAX_KEPT = 16  # calls that are never differentiated leave theirs behind
_numbers = itertools.count()
_STATE_SIZE = torch.get_rng_state().numel()


def _enter(layer: SolverLayer) -> int:
    number = next(_numbers)
    _layers[number] = layer
    return number


@torch.library.custom_op(
    "nestruct::solver_layer", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _opaque(
    scores: Tensor, values: Sequence[Tensor], names: str, number: int, training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """z, the state of the generator before it, and the number of the call."""
    draws, call = own_generator(scores.device), next(_numbers)
    state, context = draws.get_state(), _context(names, values)
    z, _ways_back[call] = _layers[number]._there_and_back(scores, context, draws)
    while len(_ways_back) > _MAX_KEPT:
        _ways_back.popitem(last=False)
    padded = nn.functional.pad(state, (0, _STATE_SIZE - len(state)))
    return z.clone(), padded, torch.tensor(call)


@_opaque.register_fake
def _(scores, values, names, number, training):
    samples = _layers[number].gradient.num_decoded if training else 1
    z = scores.new_empty((samples, *scores.shape) if samples > 1 else scores.shape)
    state = torch.empty(_STATE_SIZE, dtype=torch.uint8, device="cpu")
    return z, state, torch.empty((), dtype=torch.long, device="cpu")


@torch.library.custom_op("nestruct::solver_layer_back", mutates_args=())
def _opaque_back(
    slope: Tensor,
    scores: Tensor,
    values: Sequence[Tensor],
    state: Tensor,
    call: Tensor,
    names: str,
    number: int,
) -> Tensor:
    """dL/dscores."""
    back = _ways_back.pop(int(call), None)
    if back is None:  # taken before: solved again, with the same draws
        draws = torch.Generator(scores.device)
        draws.set_state(state[: len(draws.get_state())].clone())
        _, back = _layers[number]._there_and_back(scores, _context(names, values), draws)
    return go_back(back, slope).sum_to_size(scores.shape).clone()


@_opaque_back.register_fake
def _(slope, scores, values, state, call, names, number):
    return torch.empty_like(scores)


def _context(names: str, values: Sequence[Tensor]) -> dict[str, Any]:
    return dict(zip(names.split(","), values, strict=True)) if values else {}


def _keep(ctx, inputs, output) -> None:
    scores, values, *ctx.more = inputs
    ctx.save_for_backward(scores, *output[1:], *values)


def _go_back(ctx, slope, *_):
    scores, state, call, *values = ctx.saved_tensors
    names, number, training = ctx.more
    found = _opaque_back(slope, scores, values, state, call, names, number) if training else None
    return found, [None] * len(values), None, None, None


_opaque.register_autograd(_go_back, setup_context=_keep)
