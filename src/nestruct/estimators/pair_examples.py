"""What measured differences of mirrored pairs say: examples per pair, and whether to clip them.

With m examples of its own a pair's slope has mean square ``V (1 + s / m)``: V is that of the whole
batch, and s says how much examples differ in it. The squared cosine of an estimate of P pairs is
``1 / (1 + d V (1 + s / m) / (P |G|^2))``. At P m decodings any m up to s is within a factor of two
of the best; a larger m wastes examples, a smaller one needs more directions. So m is s.

Where a few wild differences outweigh all others, standard scores see those alone.
"""

import math
from typing import Any

import torch
from torch import Tensor

from nestruct.data import batch_size, select_rows
from nestruct.estimators.nes import NES
from nestruct.noise import Noise
from nestruct.population import Layout, evaluate_members

_PAIRS, _EXAMPLES = 64, 256  # that are looked at
_CHUNK = 8  # pairs at once


def pair_slopes(nes: NES, model: Any, layout: Layout, batch: Any, seed: int) -> Tensor:
    """``[pairs, examples]``: halves of differences; pairs with a loss that is not finite left out.

    Args:
        nes: With the sigma and the directions that a training would have; mirrored.
        model: The model.
        layout: Its perturbed parameters.
        batch: The examples.
        seed: For directions and the structure's noise.
    """
    rows = torch.arange(min(_EXAMPLES, batch_size(batch)), device=layout.device)
    seen, noise, law = select_rows(batch, rows), Noise(seed=seed), nes.law(layout)
    flat = torch.empty(_CHUNK, law.width, dtype=layout.dtype, device=layout.device)
    differences = []
    for start in range(0, _PAIRS, _CHUNK):
        law.fill(flat, start, noise)
        losses = evaluate_members(model, law.population(flat, True), seen, noise, mode="loop")
        one, other = losses.double().chunk(2)
        differences.append((one - other) / 2)
    slopes = torch.cat(differences)
    return slopes[slopes.isfinite().all(1)]


def pair_examples(slopes: Tensor, size: int) -> int | None:
    """A power of two from 1 to the size of the batch; None where no loss was finite."""
    if len(slopes) == 0 or slopes.shape[1] < 2:
        return None
    spread = slopes.var(1).mean()  # between the examples of a pair
    common = slopes.mean(1).square().mean() - spread / slopes.shape[1]
    ratio = float(spread / common) if common > 0 else math.inf
    power = math.log2(min(max(ratio, 1.0), size))
    return 2 ** min(round(power), int(math.log2(size)))


def are_wild(slopes: Tensor) -> bool:
    """Whether clipping at three deviations takes away more than half of the mean square."""
    each = slopes.mean(1)
    if len(each) == 0:
        return False
    limit = 3 * 1.4826 * each.abs().median()  # of normal numbers
    return bool(each.clamp(-limit, limit).square().sum() < each.square().sum() / 2)
