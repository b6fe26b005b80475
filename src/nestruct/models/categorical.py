"""The paper's unstructured VAE: one category behind an image (appendix, Table 3).

input -> hidden -> ReLU -> K scores -> argmax of perturbed scores; one-hot -> hidden -> ReLU ->
input. Everything about it can be computed exactly, by going through the K categories.
"""

from math import isqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.checks import check_count
from nestruct.errors import InputError
from nestruct.models.mlp import mlp
from nestruct.models.revival import preferences, revive
from nestruct.models.structured import observed
from nestruct.models.vae import StructuredVAE
from nestruct.noise import Noise
from nestruct.structures import Categorical

_NUM_SAMPLES = 10  # that an illustration shows


class CategoricalVAE(StructuredVAE):
    """A VAE over binary inputs with one categorical latent variable.

    Args:
        num_inputs: Pixels.
        hidden_size: alpha of the paper: the width of both hidden layers.
        num_classes: K.
        loss_bound: M of the paper's appendix; see `StructuredVAE`.
        revival: Steps between revivals of dead categories, see `nestruct.models.revival`; 0 for
            none, which is the paper's training.
        revival_until: The last step at which one may happen; any when None.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import CategoricalVAE
        >>> vae = CategoricalVAE(784, hidden_size=16)
        >>> sum(p.numel() for p in vae.parameters())
        26234
    """

    def __init__(
        self,
        num_inputs: int,
        *,
        hidden_size: int = 300,
        num_classes: int = 10,
        loss_bound: float | None = None,
        revival: int = 0,
        revival_until: int | None = None,
    ) -> None:
        check_count("CategoricalVAE", "revival", revival, 0)
        if revival_until is not None:
            check_count("CategoricalVAE", "revival_until", revival_until, 1)
        for name, value in (("num_inputs", num_inputs), ("hidden_size", hidden_size)):
            check_count("CategoricalVAE", name, value, 1)
        super().__init__(
            mlp(num_inputs, hidden_size, num_classes),
            mlp(num_classes, hidden_size, num_inputs),
            Categorical(num_classes),
            divergence="gibbs",
            loss_bound=loss_bound,
        )
        self.num_classes = num_classes
        self.revival, self.revival_until = revival, revival_until
        self._images: Tensor | None = None  # to see which categories are preferred

    def begin(self, data: Any) -> None:
        """Keeps the training images at hand, where categories are to be revived."""
        self._images = observed(data) if self.revival else None

    def after_step(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """Revives dead categories, where that is asked for and due."""
        done = step + 1
        if not self.revival or done % self.revival or done > (self.revival_until or done):
            return
        if self._images is None:
            raise InputError(
                "CategoricalVAE: revival looks at the training examples, so fit needs them as "
                "tensors, not as a loader or a function of the step; or say revival=0."
            )
        counts, costs = preferences(self, self._images, self.num_classes)
        scores, prototypes = self.encoder[-1], self.decoder[0]  # type: ignore[index]
        revive(scores, prototypes, counts, costs, optimizer, Noise(seed=0, step=step))

    @torch.no_grad()
    def metrics(self, batch: Any, noise: Noise) -> dict[str, Float[Tensor, " batch"]]:
        """Three exact forms of how good the model is, in nats per example, none of them sampled.

        ``loss``: the negative ELBO, the expectation over the categories included. ``loss_mode``:
        the paper's form, which decodes the most likely category and charges the categorical KL;
        neither an ELBO nor an estimate of one. ``nll``: ``-log p(x)``.
        """
        scores = self.encode(batch)
        kl = self.divergence(scores, batch)
        num_classes = scores.shape[-1]
        every = torch.eye(num_classes, dtype=scores.dtype, device=scores.device)
        z = every[:, None].expand(num_classes, *scores.shape)
        log_likelihood = self.decode(batch, z).T  # [batch, classes]
        chances = scores.softmax(-1)
        mode = log_likelihood.gather(1, scores.argmax(-1, keepdim=True))[:, 0]
        log_evidence = log_likelihood.logsumexp(-1) - torch.tensor(num_classes).log()
        return {
            "loss": kl - (chances * log_likelihood).sum(-1),
            "loss_mode": kl - mode,
            "nll": -log_evidence,
        }

    @torch.no_grad()
    def prototypes(self) -> Float[Tensor, "classes inputs"]:
        """What each category decodes to: the probability of each pixel."""
        like = next(self.parameters())
        every = torch.eye(self.num_classes, dtype=like.dtype, device=like.device)
        return self.decoder(every).sigmoid()

    def illustrate(self) -> dict[str, list[list[str]]]:
        """What a report shows of the model, as plain JSON.

        Returns:
            ``prototypes``, an image for each category, and ``samples``, a few images drawn from the
            model, with the same draws at every call. An image is a list of rows with one digit for
            each pixel, its probability from 0 to f; inputs that make no square are one row.
        """
        chances = self.prototypes().to("cpu", torch.float32)
        generator = torch.Generator().manual_seed(0)
        classes = torch.randint(self.num_classes, (_NUM_SAMPLES,), generator=generator)
        draws = torch.rand(_NUM_SAMPLES, chances.shape[1], generator=generator, dtype=chances.dtype)
        samples = (draws < chances[classes]).float()
        return {"prototypes": _images(chances), "samples": _images(samples)}


def _images(chances: Float[Tensor, "images inputs"]) -> list[list[str]]:
    num_inputs = chances.shape[1]
    side = isqrt(num_inputs)
    width = side if side**2 == num_inputs else num_inputs
    levels = (chances.nan_to_num(0) * 15).round().int().tolist()  # a diverged model is drawn too
    texts = ["".join(f"{level:x}" for level in image) for image in levels]
    return [[text[k : k + width] for k in range(0, num_inputs, width)] for text in texts]
