"""The seam between networks, structures and estimators: a model with a discrete structure inside.

Eq. 2 of the paper with perturb-and-MAP samples: encode a batch to scores, add Gumbel noise, take
the argmax, decode. Estimators see nothing but the methods of `StructuredModel`; NES sees `loss`
alone.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.errors import InputError, MissingError
from nestruct.noise import Noise
from nestruct.structures import Structure

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

    def __init__(self) -> None:
        super().__init__()
        if callable(getattr(type(self), "lengths", None)):
            raise InputError(
                f"{type(self).__name__} defines lengths(batch), which is context(batch) now: "
                'return {"lengths": ...} there.'
            )

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

    def context(self, batch: Any) -> dict[str, Tensor]:
        """What the structure's solver sees besides scores, by name; nothing by default.

        The first axis of each tensor is the examples: the words of each sentence (``lengths``), the
        weights of each knapsack.
        """
        return {}

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
        return self.divergence(scores, batch) - found

    def loss(self, batch: Any, noise: Noise) -> Tensor:
        """The negative ELBO per example at perturb-and-MAP samples: all that NES sees."""
        scores = self.encode(batch)
        with hard_structures():
            return self.loss_at(batch, scores, self._perturb(batch, scores, noise))

    @torch.no_grad()
    def infer(self, batch: Any) -> Tensor:
        """The most likely structure of each example (MAP)."""
        return self.structure.argmax(self.encode(batch), **self.context(batch))

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
        F1 of the parts of the most likely structure and of one perturb-and-MAP sample; not where
        structures are other numbers than 0 and 1. Override it to report something else.
        """
        values = {"loss": self.loss(batch, noise)}
        if _entry(batch, "z") is not None:
            scores = self.encode(batch)
            truth = true_structures(self, batch, scores)
            if truth is not None:
                z = self.structure.argmax(scores, **self.context(batch))
                values["f1_map"] = f1(z, truth)
                values["f1_sample"] = f1(self._perturb(batch, scores, noise), truth)
        return values

    def _perturb(self, batch: Any, scores: Tensor, noise: Noise) -> Tensor:
        perturbed = scores + noise.gumbel(scores)
        return self.structure.argmax(perturbed, **self.context(batch))


def overrides_nothing(model: StructuredModel, kind: type[StructuredModel], *more: str) -> bool:
    """Whether a model's loss is that of a class: a subclass overrides no method behind it."""
    behind = ("encode", "decode", "divergence", "loss", "loss_at", "context", "_perturb")
    methods = (*behind, *more)
    return all(getattr(type(model), name) is getattr(kind, name) for name in methods)


def returns_nothing(model: Any, batch: Any) -> str | None:
    """Which of a model's three methods returns None, in a sentence; asked after a failure only."""
    if not isinstance(model, StructuredModel):
        return None
    name = f"{type(model).__name__}.{{}} returned None: give back {{}} (is a return missing?)."
    with torch.no_grad(), torch.random.fork_rng():
        scores = model.encode(batch)
        if scores is None:
            return name.format("encode(batch)", "the scores")
        context = model.context(batch)
        if context is None:
            return name.format("context(batch)", "a dictionary, {} for nothing")
        z = model.structure.argmax(scores, **context)
        if model.decode(batch, z) is None:
            return name.format("decode(batch, z)", "log p(x | z) of each example")
    return None


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


def true_structures(model: StructuredModel, batch: Any, like: Tensor) -> Tensor | None:
    """The entry ``z`` of a batch, where it has the parts of ``like`` and is 0 and 1; in its dtype.

    Parts that do not count are 0, as they are in what a model infers.
    """
    z, structure = _entry(batch, "z"), model.structure
    if not structure.binary or not isinstance(z, Tensor) or z.shape[1:] != like.shape[1:]:
        return None
    truth = z.to(like.dtype)
    counting = structure.counting(truth, **model.context(batch))
    return truth if counting is None else torch.where(counting, truth, 0.0)


def _entry(batch: Any, name: str) -> Any:
    return batch.get(name) if isinstance(batch, dict) else getattr(batch, name, None)


def f1(
    z: Float[Tensor, "examples ..."], truth: Float[Tensor, "examples ..."]
) -> Float[Tensor, " examples"]:
    """The F1 of the parts of each example: 1 for the same structure, 0 for no part in common."""
    both, total = (z * truth).flatten(1).sum(1), (z + truth).flatten(1).sum(1)
    return torch.where(total == 0, 1.0, 2 * both / total.clamp(min=1))
