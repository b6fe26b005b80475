"""REINFORCE with a leave-one-out baseline: Eq. 1 and Eq. 3 of the paper, multi-sample.

W. Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019. The solver is a black
box: only log-probabilities of the encoder and the decoder at hard samples are differentiated.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nestruct.errors import InputError
from nestruct.estimators.backpropagation import Backpropagation
from nestruct.models import StructuredModel
from nestruct.noise import Noise
from nestruct.structures import Categorical
from nestruct.structures.base import check_count


@dataclass(kw_only=True, eq=False)
class Reinforce(Backpropagation):
    """The score-function estimator; each sample's baseline is the mean of the others.

    Args:
        num_samples: Draws of the structure per example, at least two.
        law: ``gumbel``: the score of the perturbed scores (Eq. 3), for any structure; ``gibbs``:
            the score of the structure (Eq. 1), for Categorical, where perturb-and-MAP draws from
            it; less variance, because it sums over all noises that give the same structure.
        graph: Whether a step on CUDA is captured in a graph: ``auto``, ``on``, ``off``.
    """

    num_samples: int = 4
    law: Literal["gumbel", "gibbs"] = "gumbel"
    graph: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        check_count("Reinforce", "num_samples", self.num_samples, 2)
        if self.law not in ("gumbel", "gibbs"):
            raise InputError(f"Reinforce: law must be 'gumbel' or 'gibbs', got {self.law!r}.")

    def surrogate(self, model: StructuredModel, batch: Any, noise: Noise) -> tuple[Tensor, Tensor]:
        """Losses at hard samples, plus their advantage times the samples' log-probability."""
        structure, lengths = model.structure, model.lengths(batch)
        if self.law == "gibbs" and not isinstance(structure, Categorical):
            raise InputError(f"Reinforce: law 'gibbs' is for Categorical; {structure!r} is not.")
        scores = model.encode(batch)
        losses, log_chances = [], []
        for stream in range(self.num_samples):
            draw = noise.replace(stream=stream).gumbel(scores, lengths)
            z = structure.argmax((scores + draw).detach(), lengths)
            losses.append(model.loss_at(batch, scores, z))
            if self.law == "gibbs":
                log_chances.append((z * scores.log_softmax(-1)).sum(-1))
            else:  # of perturbed = scores + draw under Gumbel(scores), at perturbed held fixed
                shifted = (scores + draw).detach() - scores
                log_chances.append((-shifted - torch.exp(-shifted)).flatten(1).sum(-1))
        loss, log_chance = torch.stack(losses), torch.stack(log_chances)
        cost = loss.detach()
        others = (cost.sum(0) - cost) / (self.num_samples - 1)
        return (loss + (cost - others) * log_chance).mean(), loss
