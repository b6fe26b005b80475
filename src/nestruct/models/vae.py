"""A variational auto-encoder from two modules and a structure."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from nestruct.checks import check_choice
from nestruct.errors import InputError
from nestruct.models.compiled import unwrap
from nestruct.models.structured import StructuredModel, observed
from nestruct.objective import DIVERGENCES, bound_log_probability, check_divergence
from nestruct.structures import Structure


class StructuredVAE(StructuredModel):
    """A variational auto-encoder with a discrete latent structure.

    Args:
        encoder: ``encoder(batch)`` gives scores; an `nn.Sequential` that begins with a layer of
            torch's gets what is reconstructed alone.
        decoder: ``decoder(z, batch)`` gives the parameters of the likelihood, ``[..., batch, *x]``;
            an `nn.Sequential` gets ``z`` alone.
        structure: The latent space.
        likelihood: ``bernoulli`` (the decoder gives logits), ``gaussian`` (means, unit variance),
            or a function of (parameters, batch) that gives log-probabilities per component.
        divergence: ``gumbel``, ``gibbs`` or ``none`` (see `nestruct.objective` for what each is and
            bounds), or a function of (scores, batch).
        loss_bound: M of the paper's appendix: in training, no component's log-probability counts
            for less than -M.

    What is reconstructed is the batch itself, its first entry (tuple) or its entry ``x``.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import mlp
        >>> structure = nestruct.Categorical(10)
        >>> vae = nestruct.StructuredVAE(mlp(4, 8, 10), mlp(10, 8, 4), structure)
        >>> vae.loss(torch.ones(3, 4), nestruct.Noise(seed=0)).shape
        torch.Size([3])
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        structure: Structure,
        *,
        likelihood: str | Callable[[Tensor, Any], Tensor] = "bernoulli",
        divergence: str | Callable[[Tensor, Any], Tensor] = "gumbel",
        loss_bound: float | None = None,
    ) -> None:
        super().__init__()
        if isinstance(likelihood, str):
            check_choice("likelihood", likelihood, LIKELIHOODS)
        if isinstance(divergence, str):
            check_divergence(type(self).__name__, divergence)
        if not isinstance(structure, Structure):
            raise InputError(
                f"structure must be one of nestruct's, got {structure!r}; a solver of your own "
                "goes into BlackBox, or into a subclass of Structure."
            )
        if loss_bound is not None and not loss_bound > 0:
            raise InputError(f"loss_bound must be positive, got {loss_bound!r}.")
        self.encoder = encoder
        self.decoder = decoder
        self.structure = structure
        self.likelihood = likelihood
        self.kl = divergence
        self.loss_bound = loss_bound

    def encode(self, batch: Any) -> Tensor:
        """``encoder(batch)``."""
        network = unwrap(self.encoder)
        alone = isinstance(network, nn.Sequential) and _is_of_torch(next(iter(network), None))
        return self.encoder(observed(batch) if alone else batch)

    def decode(self, batch: Any, z: Tensor) -> Tensor:
        """The log-likelihood of each example at ``z``."""
        alone = isinstance(unwrap(self.decoder), nn.Sequential)
        return self.log_likelihood(self.decoder(z) if alone else self.decoder(z, batch), batch)

    def divergence(self, scores: Tensor, batch: Any) -> Tensor:
        """The KL term of each example."""
        if callable(self.kl):
            return self.kl(scores, batch)
        return DIVERGENCES[self.kl](self.structure, scores, **self.context(batch))

    def log_likelihood(self, parameters: Tensor, batch: Any) -> Tensor:
        """What the decoder's output says of each example: the sum over its components."""
        x = observed(batch)
        axes = x.dim() - 1
        if callable(self.likelihood):
            components = self.likelihood(parameters, batch)
        elif parameters.shape[-axes - 1 :] == x.shape:
            components = LIKELIHOODS[self.likelihood](parameters, x)
        else:  # it would be stretched to fit
            raise InputError(
                f"The decoder must give a {self.likelihood} parameter per component, so end in the "
                f"shape of what is reconstructed, {tuple(x.shape)}; got {tuple(parameters.shape)}."
            )
        components = bound_log_probability(components, self.bound)
        if components.dim() <= axes or components.shape[-axes - 1] != len(x):
            raise InputError(
                "The likelihood must give a log-probability per component, so end in the shape "
                f"of what is reconstructed, {tuple(x.shape)}; got {tuple(components.shape)}."
            )
        return components.flatten(-axes).sum(-1) if axes else components

    @property
    def bound(self) -> float | None:
        """M, where it counts: in training."""
        return self.loss_bound if self.training else None


def _is_of_torch(layer: nn.Module | None) -> bool:
    """Whether a layer is one of torch's own, which take one tensor."""
    return type(layer).__module__.startswith("torch.nn.")


def _bernoulli(logits: Tensor, x: Tensor) -> Tensor:
    return x * logits - nn.functional.softplus(logits)


def _gaussian(mean: Tensor, x: Tensor) -> Tensor:
    return -0.5 * (x - mean) ** 2 - 0.9189385332046727  # log sqrt(2 pi)


LIKELIHOODS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bernoulli": _bernoulli,
    "gaussian": _gaussian,
}
