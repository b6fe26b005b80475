"""Random directions in parameter space, each drawn from (seed, step, pair) alone.

On the CPU rows are filled from a thread pool, Gaussian float32 by a kernel of our own, anything
else by one torch generator per pair. On CUDA one counter-based kernel (Philox, Triton) fills all.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.kernels import thread_pool
from nestruct.noise import derive_seed
from nestruct.population.gaussian import fill_gaussian


def fill_directions(
    out: Float[Tensor, "pairs size"],
    first_pair: int,
    *,
    seed: int,
    step: int | Tensor,
    sigma: float,
    kind: str,
) -> None:
    """Writes the directions of pairs ``first_pair, first_pair + 1, ...`` into ``out``.

    Args:
        out: Rows are pairs; contiguous.
        first_pair: Number of the first row's pair in the whole population.
        seed: The run's seed.
        step: The training step; a tensor on the device inside a captured graph.
        sigma: The standard deviation of every entry: directions come scaled, which saves a pass.
        kind: ``gaussian`` or ``rademacher``.
    """
    if out.is_cuda:
        from nestruct.population.directions_cuda import fill_directions_cuda

        fill_directions_cuda(out, first_pair, seed, step, sigma, kind)
        return
    draw = _gaussian if kind == "gaussian" else _rademacher
    seeds = [derive_seed(seed, int(step), first_pair + row) for row in range(len(out))]
    threads = torch.get_num_threads()
    if threads == 1 or out.numel() < 1 << 14:
        for row, row_seed in zip(out, seeds, strict=True):
            draw(row, row_seed, sigma)
    else:
        for _ in thread_pool(threads).map(draw, out, seeds, [sigma] * len(out)):
            pass


def _gaussian(row: Tensor, seed: int, sigma: float) -> None:
    if row.dtype != torch.float32:
        row.normal_(std=sigma, generator=torch.Generator().manual_seed(seed))
        return
    keys = (derive_seed(seed), derive_seed(seed, 1))
    words = (keys[0] & 0xFFFFFFFF, keys[0] >> 31, keys[1] & 0xFFFFFFFF)
    fill_gaussian(row.numpy(), *map(np.uint32, words), np.float32(sigma))


def _rademacher(row: Tensor, seed: int, sigma: float) -> None:
    row.bernoulli_(0.5, generator=torch.Generator().manual_seed(seed)).sub_(0.5).mul_(2 * sigma)
