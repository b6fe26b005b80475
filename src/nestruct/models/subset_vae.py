"""A VAE whose latent is several subsets, each of exactly k of n items.

The 10-of-20-subset VAE of "Implicit MLE" (M. Niepert et al., 2021) and SIMPLE (K. Ahmed et al.,
2023): 784 -> 512 -> 256 -> 20 rows of 20 scores, in each row the best 10, and back. The rows are an
axis between examples and parts: ``structure`` is that of one row.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.checks import check_choice, check_count
from nestruct.models.mlp import mlp
from nestruct.models.vae import StructuredVAE
from nestruct.noise import Noise
from nestruct.objective import gibbs_divergence
from nestruct.structures import KSubset, log_top_k_chance
from nestruct.structures.relaxations.elementary_symmetric import entropy_from


class SubsetVAE(StructuredVAE):
    """A VAE over binary inputs with several k-subsets as its latent.

    Args:
        num_inputs: Pixels.
        num_subsets: Rows: subsets per example, independent given the input.
        num_items: n.
        k: Items in each subset.
        hidden_sizes: Of the encoder's hidden layers; the decoder mirrors them.
        divergence: What training charges: ``gibbs``, the exact KL of the Gibbs law; ``simple``, the
            KL as SIMPLE's notebook has it, whose entropy leaves out what the first k - 1 items
            tell: 7.51 instead of 12.13 nats for 10 of 20 at equal scores.

    Example:
        >>> import torch, nestruct
        >>> from nestruct.models import SubsetVAE
        >>> vae = SubsetVAE(784)
        >>> vae.encode(torch.ones(3, 784)).shape  # a row of scores for each subset
        torch.Size([3, 20, 20])
        >>> vae.loss(torch.ones(3, 784), nestruct.Noise(seed=0)).shape
        torch.Size([3])
    """

    structure: KSubset
    kl: str

    def __init__(
        self,
        num_inputs: int,
        *,
        num_subsets: int = 20,
        num_items: int = 20,
        k: int = 10,
        hidden_sizes: tuple[int, ...] = (512, 256),
        divergence: Literal["gibbs", "simple"] = "gibbs",
    ) -> None:
        sizes = {f"hidden_sizes[{i}]": size for i, size in enumerate(hidden_sizes)}
        for name, value in {"num_inputs": num_inputs, "num_subsets": num_subsets, **sizes}.items():
            check_count("SubsetVAE", name, value, 1)
        check_choice("SubsetVAE: divergence", divergence, ("gibbs", "simple"))
        rows = (num_subsets, num_items)
        there = (num_inputs, *hidden_sizes, num_subsets * num_items)
        super().__init__(
            nn.Sequential(*mlp(*there), nn.Unflatten(-1, rows)),
            nn.Sequential(nn.Flatten(-2), *mlp(*there[::-1])),
            KSubset(num_items, k),
            divergence="gibbs",
        )
        self.kl = divergence

    def divergence(self, scores: Tensor, batch: Any) -> Tensor:
        """The KL term of each example, summed over its subsets."""
        if self.kl == "simple":
            return _simple(self.structure, scores)
        return super().divergence(scores, batch)

    @torch.no_grad()
    def metrics(self, batch: Any, noise: Noise) -> dict[str, Float[Tensor, " batch"]]:
        """Negative ELBOs in nats per example; each decodes one sample of its own law.

        ``loss``: exact samples of the Gibbs law, and its exact KL, whatever the model was trained
        with. ``loss_top_k``: the law of perturb-and-MAP, its samples and the log-chance of each.
        ``loss_simple``: as ``loss``, with the KL of SIMPLE's notebook. ``kl``: that of ``loss``.
        """
        structure, scores = self.structure, self.encode(batch)
        drawn = self.decode(batch, structure.sample(scores, noise))
        kl, z = gibbs_divergence(structure, scores), self._perturb(batch, scores, noise)
        sampled_kl = log_top_k_chance(scores, z).sum(-1) + _log_count(structure, scores)
        return {
            "loss": kl - drawn,
            "loss_top_k": sampled_kl - self.decode(batch, z),
            "loss_simple": _simple(structure, scores) - drawn,
            "kl": kl,
        }


def _log_count(structure: KSubset, scores: Float[Tensor, "batch rows items"]) -> float:
    return scores.shape[1] * float(structure.log_count())


def _simple(structure: KSubset, scores: Float[Tensor, "batch rows items"]) -> Tensor:
    """The KL with SIMPLE's entropy, whose recursion begins at item k instead of the first."""
    entropy = entropy_from(scores, structure.k, first=max(1, structure.k))
    return _log_count(structure, scores) - entropy.sum(-1)
