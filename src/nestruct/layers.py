"""A solver as a layer in anyone's module and loop.

The way back through the layer is one of the gradients of `nestruct.estimators`: they need the
derivative of the loss with respect to z. Where the loss has none, its values are enough for
`nestruct.StructureNES`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from nestruct.errors import InputError
from nestruct.estimators.solver_gradient import SolverGradient
from nestruct.structures import Structure


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

    def extra_repr(self) -> str:
        """What the layer is made of."""
        return f"{self.structure!r}, {self.gradient!r}"

    # Private, but torch's optimizers load the same: torch.compiler.disable would add two seconds to
    # the import of nestruct. Tracing into a solver gains nothing, and fails for most.
    @_disable_dynamo
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
        wide = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
        alone = scores.dim() == self.structure.part_axes
        if alone:  # one instance: samples would take the place of examples
            wide = wide[None]
            context = {n: v[None] if isinstance(v, Tensor) else v for n, v in context.items()}
        with torch.autocast(scores.device.type, enabled=False):
            if self.training:
                draws = _own_generator(scores.device)
                z = self.gradient.solve(self.structure, wide, draws, **context)
            else:
                z = self.structure.argmax(wide.detach(), **context)
        if alone:
            z = z.squeeze(-self.structure.part_axes - 1)
        return z.to(scores.dtype)


def _own_generator(device: torch.device) -> torch.Generator:
    """The generator that `torch.manual_seed` seeds, of a device."""
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    return module.default_generators[
        module.current_device() if device.index is None else device.index
    ]
