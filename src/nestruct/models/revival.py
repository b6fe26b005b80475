"""Revival of dead categories: one that hardly any example prefers becomes half of a costly one.

A training method of its own, as resetting dead entries of a codebook is: unlabelled, from forward
passes alone, and good for any estimator. A category that is never chosen gets no signal, so it
stays dead. Here it takes over a half of the category whose examples cost most: that one's scores,
less log 2 for both, and its prototype with a little noise, so that the two can part ways. The law
of the model hardly changes at that moment.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nestruct.noise import Noise

MIN_SHARE = 1e-3  # of the examples: a category that fewer prefer is dead
NOISE = 0.01  # on the copied weights of the decoder
_AT_ONCE = 10_000  # examples


@torch.no_grad()
def revive(
    scores: nn.Linear,
    prototypes: nn.Linear,
    counts: Float[Tensor, " classes"],
    costs: Float[Tensor, " classes"],
    optimizer: torch.optim.Optimizer,
    noise: Noise,
) -> int:
    """Revives the dead categories, in place; how many there were.

    Args:
        scores: The encoder's last layer, whose outputs are the categories' scores.
        prototypes: The decoder's first layer, whose inputs are the categories.
        counts: Examples that prefer each category.
        costs: The sum of their losses.
        optimizer: What it has learnt of the copied weights (moments) is copied with them.
        noise: Where the noise on the prototypes comes from.
    """
    dead = (counts < MIN_SHARE * counts.sum()).nonzero()[:, 0].tolist()
    costs = costs.clone()
    extra = NOISE * noise.normal(prototypes.weight)
    for category in dead:
        donor = int(costs.argmax())
        scores.bias[donor] -= math.log(2)
        costs[donor] /= 2
        costs[category] = costs[donor]
        for parameter, axis in ((scores.weight, 0), (scores.bias, 0), (prototypes.weight, 1)):
            state = optimizer.state.get(parameter, {}).values()
            moments = [t for t in state if isinstance(t, Tensor) and t.shape == parameter.shape]
            for tensor in (parameter, *moments):
                tensor.select(axis, category).copy_(tensor.select(axis, donor))
        prototypes.weight[:, category] += extra[:, category]
    return len(dead)


@torch.no_grad()
def preferences(
    model: nn.Module, images: Float[Tensor, "images inputs"], num_classes: int
) -> tuple[Float[Tensor, " classes"], Float[Tensor, " classes"]]:
    """How many images prefer each category, and what those images cost in all."""
    counts = images.new_zeros(num_classes, dtype=torch.float64)
    costs = torch.zeros_like(counts)
    for some in images.split(_AT_ONCE):
        choice = model.encode(some).argmax(-1)  # type: ignore[operator]
        z = nn.functional.one_hot(choice, num_classes).to(some.dtype)
        loss = -model.decode(some, z)  # type: ignore[operator]
        counts += torch.bincount(choice, minlength=num_classes)
        costs.index_add_(0, choice, loss.double())
    return counts, costs
