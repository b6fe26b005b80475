"""The seam between networks, structures and estimators: a model with a discrete structure inside.

Eq. 2 of the paper with perturb-and-MAP samples: encode a batch to scores, add Gumbel noise, take
the argmax, decode. Estimators see nothing but the methods of `StructuredModel`; NES sees `loss`
alone.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.errors import InputError, MissingError, check_choice
from nestruct.noise import Noise
from nestruct.objective import DIVERGENCES, bound_log_probability
from nestruct.structures import Categorical, Structure

if TYPE_CHECKING:
    from nestruct.population import Population


_hard: ContextVar[bool] = ContextVar("hard", default=False)


@contextmanager
def hard_structures() -> Iterator[None]:
    """Within this context every z that is decoded is a member of the model's structure.

    What a model may take a shorter way for; relaxed z are decoded outside of it. A row of NaN, of a
    solver without an answer, is no member and still comes out as NaN.
    """
    token = _hard.set(True)
    try:
        yield
    finally:
        _hard.reset(token)


def are_hard() -> bool:
    """Whether we are within `hard_structures`."""
    return _hard.get()


class StructuredModel(nn.Module):
    """A model with a discrete latent structure; a subclass gives `encode` and `decode`."""

    structure: Structure
    capturable: bool = True
    """Whether ``graph="auto"`` captures steps at hard structures: a CUDA graph has no shortcuts."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name != "structure":
                raise
        raise MissingError(
            f"{type(self).__name__} has no structure: set self.structure to its latent space, such "
            "as nestruct.Categorical(10)."
        )

    def encode(self, batch: Any) -> Tensor:
        """Scores ``[batch, *parts]``."""
        raise NotImplementedError(f"{type(self).__name__} must define encode(batch) -> scores.")

    def decode(self, batch: Any, z: Tensor) -> Tensor:
        """``log p(x | z)``: ``[..., batch]`` for ``z [..., batch, *parts]``, relaxed z included."""
        raise NotImplementedError(f"{type(self).__name__} must define decode(batch, z).")

    def divergence(self, scores: Tensor, batch: Any) -> Tensor:
        """The KL term, one per example; none by default."""
        return scores.new_zeros(scores.shape[0])

    def divergence_at(self, scores: Tensor, batch: Any, z: Tensor) -> Tensor:
        """The KL term at given structures, where it depends on them; `divergence` by default."""
        return self.divergence(scores, batch)

    def lengths(self, batch: Any) -> Tensor | None:
        """Words per example, where the structure is a dependency tree over sentences."""
        return None

    def at_step(self, step: int) -> Hashable:
        """Called before every training step, for what a model changes as training goes on.

        Steps for which it returns the same may share a captured CUDA graph.
        """
        return None

    def loss_at(self, batch: Any, scores: Tensor, z: Tensor) -> Tensor:
        """The negative ELBO per example at given structures: ``[..., batch]`` as `decode`."""
        found, expected = self.decode(batch, z), z.shape[: z.dim() - scores.dim() + 1]
        if found.shape != expected:
            raise InputError(
                f"{type(self).__name__}.decode must give log p(x | z) of each example, shape "
                f"[..., batch] = {tuple(expected)}; got {tuple(found.shape)}."
            )
        return self.divergence_at(scores, batch, z) - found

    def loss(self, batch: Any, noise: Noise) -> Tensor:
        """The negative ELBO per example at perturb-and-MAP samples: all that NES sees."""
        scores = self.encode(batch)
        with hard_structures():
            return self.loss_at(batch, scores, self._perturb(batch, scores, noise))

    @torch.no_grad()
    def infer(self, batch: Any) -> Tensor:
        """The most likely structure of each example (MAP)."""
        return self.structure.argmax(self.encode(batch), self.lengths(batch))

    @torch.no_grad()
    def sample(self, batch: Any, num_samples: int, noise: Noise | None = None) -> Tensor:
        """``[num_samples, batch, *parts]``: perturb-and-MAP samples; another noise, other draws."""
        noise = Noise(seed=0) if noise is None else noise
        scores = self.encode(batch)
        streams = torch.arange(num_samples, device=scores.device)[:, None]
        return self._perturb(batch, scores, noise.replace(stream=streams))

    @torch.no_grad()
    def metrics(self, batch: Any, noise: Noise) -> dict[str, Tensor]:
        """What an evaluation reports, one value per example: the loss, and how much is recovered.

        Where the batch has an entry ``z``, the true structures: ``f1_map`` and ``f1_sample``, the
        F1 of the parts of the most likely structure and of one perturb-and-MAP sample. Override it
        to report something else.
        """
        values = {"loss": self.loss(batch, noise)}
        if _entry(batch, "z") is not None:
            scores = self.encode(batch)
            truth = true_structures(batch, scores)
            if truth is not None:
                z = self.structure.argmax(scores, self.lengths(batch))
                values["f1_map"] = f1(z, truth)
                values["f1_sample"] = f1(self._perturb(batch, scores, noise), truth)
        return values

    def _perturb(self, batch: Any, scores: Tensor, noise: Noise) -> Tensor:
        lengths = self.lengths(batch)
        return self.structure.argmax(scores + noise.gumbel(scores, lengths), lengths)


class StructuredVAE(StructuredModel):
    """A variational auto-encoder with a discrete latent structure.

    Args:
        encoder: ``encoder(batch)`` gives scores.
        decoder: ``decoder(z, batch)`` gives the parameters of the likelihood, ``[..., batch, *x]``;
            an `nn.Sequential` gets ``z`` alone.
        structure: The latent space.
        likelihood: ``bernoulli`` (the decoder gives logits), ``gaussian`` (means, unit variance),
            or a function of (parameters, batch) that gives log-probabilities per component.
        divergence: ``gumbel``, ``gibbs``, ``paper-appendix`` or ``none`` (see `nestruct.objective`
            for what each is and bounds), or a function of (scores, batch).
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
            check_choice("divergence", divergence, DIVERGENCES)
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
        return self.encoder(batch)

    def decode(self, batch: Any, z: Tensor) -> Tensor:
        """The log-likelihood of each example at ``z``."""
        alone = isinstance(self.decoder, nn.Sequential)
        return self._log_likelihood(self.decoder(z) if alone else self.decoder(z, batch), batch)

    def divergence(self, scores: Tensor, batch: Any) -> Tensor:
        """The KL term of each example."""
        if callable(self.kl):
            return self.kl(scores, batch)
        return DIVERGENCES[self.kl](self.structure, scores, None, self.lengths(batch))

    def divergence_at(self, scores: Tensor, batch: Any, z: Tensor) -> Tensor:
        """The KL term at given structures: the paper's appendix has one that depends on them."""
        if self.kl != "paper-appendix":
            return self.divergence(scores, batch)
        return DIVERGENCES["paper-appendix"](self.structure, scores, z, self.lengths(batch))

    def _log_likelihood(self, parameters: Tensor, batch: Any) -> Tensor:
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
        components = bound_log_probability(components, self._bound)
        if components.dim() <= axes or components.shape[-axes - 1] != len(x):
            raise InputError(
                "The likelihood must give a log-probability per component, so end in the shape "
                f"of what is reconstructed, {tuple(x.shape)}; got {tuple(components.shape)}."
            )
        return components.flatten(-axes).sum(-1) if axes else components

    @property
    def _bound(self) -> float | None:
        return self.loss_bound if self.training else None

    def population_losses(self, population: "Population", batch: Any, noise: Noise) -> Any:
        """``[members, batch]`` with two exact savings, or NotImplemented where they do not apply.

        A linear layer of a mirrored pair is ``x W + s x E`` with s = +-1, and the first one needs
        ``x W`` only once and ``x E`` once per pair. And with a Categorical structure a decoder sees
        only K distinct inputs, whatever the batch.
        """
        encoder, decoder, structure = self.encoder, self.decoder, self.structure
        if not (isinstance(encoder, nn.Sequential) and isinstance(decoder, nn.Sequential)):
            return NotImplemented
        if not isinstance(structure, Categorical) or not self._has_savings(batch):
            return NotImplemented
        scores = population.sequential(encoder, "encoder.", batch)
        if scores.dim() != 3:  # several categories per example
            return NotImplemented
        members, examples = scores.shape[:2]
        if isinstance(noise.pair, Tensor):
            gumbel = torch.func.vmap(lambda pair: noise.replace(pair=pair).gumbel(scores[0]))
            draws = gumbel(noise.pair)
        else:
            draws = noise.gumbel(scores[0])
        best, choice = (scores + draws).max(-1)  # what structure.argmax marks
        classes = torch.eye(structure.num_classes, dtype=scores.dtype, device=scores.device)
        parameters = population.sequential(decoder, "decoder.", classes)  # [members, K, *x]
        if parameters.shape[2:] != batch.shape[1:]:
            return NotImplemented  # which refuses it in a sentence
        if self.likelihood == "bernoulli" and self._bound is None:
            # x . logits - softplus(logits): linear in x, so one product serves all examples.
            flat, x = parameters.flatten(2), batch.flatten(1)
            table = flat @ x.T - nn.functional.softplus(flat).sum(-1, keepdim=True)
            log_likelihood = table.gather(1, choice[:, None])[:, 0]
        else:
            index = choice.view(members, examples, *[1] * (parameters.dim() - 2))
            chosen = parameters.gather(1, index.expand(members, examples, *parameters.shape[2:]))
            log_likelihood = self._log_likelihood(chosen, batch)
        kl = self.divergence(scores.flatten(0, 1), batch).view(members, examples)
        return kl - torch.where(best.isfinite(), log_likelihood, torch.nan)

    def _has_savings(self, batch: Any) -> bool:
        """Whether this is exactly the model that the savings are derived for."""
        if not overrides_nothing(self, StructuredVAE, "_log_likelihood"):
            return False
        if self.kl == "paper-appendix" or callable(self.kl) or callable(self.likelihood):
            return False
        if type(self.encoder) is not nn.Sequential or type(self.decoder) is not nn.Sequential:
            return False
        if type(self.structure) is not Categorical or not isinstance(batch, Tensor):
            return False
        layers = [layer for part in (self.encoder, self.decoder) for layer in part]
        if any(type(layer) not in _SAVED_LAYERS for layer in layers):
            return False
        modules = list(self.modules())
        if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
            return False
        shared = len(list(self.named_parameters(remove_duplicate=False)))
        return shared == len(list(self.parameters()))


# Layers that act on each example alone and hold nothing but parameters.
_SAVED_LAYERS = {
    nn.Linear,
    nn.LayerNorm,
    nn.Flatten,
    nn.Unflatten,
    nn.Identity,
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid),
}


def overrides_nothing(model: StructuredModel, kind: type[StructuredModel], *more: str) -> bool:
    """Whether a model's loss is that of a class: a subclass overrides no method behind it."""
    behind = ("encode", "decode", "divergence", "divergence_at", "loss", "loss_at", "lengths")
    methods = (*behind, "_perturb", *more)
    return all(getattr(type(model), name) is getattr(kind, name) for name in methods)


def observed(batch: Any) -> Tensor:
    """What a VAE reconstructs: the batch, its first entry, or its entry ``x``."""
    if isinstance(batch, Tensor):
        return batch
    x = batch[0] if isinstance(batch, tuple | list) else _entry(batch, "x")
    if x is None:
        raise InputError(
            "A VAE reconstructs the batch itself, its first entry (tuple) or its entry x, and this "
            f"{type(batch).__name__} has none."
        )
    return x


def true_structures(batch: Any, like: Tensor) -> Tensor | None:
    """The entry ``z`` of a batch, where there is one with the parts of ``like``; in its dtype."""
    z = _entry(batch, "z")
    is_truth = isinstance(z, Tensor) and z.shape[1:] == like.shape[1:]
    return z.to(like.dtype) if is_truth else None


def _entry(batch: Any, name: str) -> Any:
    return batch.get(name) if isinstance(batch, dict) else getattr(batch, name, None)


def f1(
    z: Float[Tensor, "examples ..."], truth: Float[Tensor, "examples ..."]
) -> Float[Tensor, " examples"]:
    """The F1 of the parts of each example: 1 for the same structure, 0 for no part in common."""
    both, total = (z * truth).flatten(1).sum(1), (z + truth).flatten(1).sum(1)
    return torch.where(total == 0, 1.0, 2 * both / total.clamp(min=1))


def _bernoulli(logits: Tensor, x: Tensor) -> Tensor:
    return x * logits - nn.functional.softplus(logits)


def _gaussian(mean: Tensor, x: Tensor) -> Tensor:
    return -0.5 * (x - mean) ** 2 - 0.9189385332046727  # log sqrt(2 pi)


LIKELIHOODS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bernoulli": _bernoulli,
    "gaussian": _gaussian,
}
