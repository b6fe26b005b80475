"""Random directions in parameter space, each drawn from (seed, step, pair) alone.

On the CPU rows are filled by a kernel of our own on all threads; Gaussian numbers that are not
single precision come from one torch generator per pair. On CUDA one counter-based kernel (Philox,
Triton) fills all.
"""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from nestruct.kernels import spread_rows
from nestruct.noise import FIRST, GOLDEN, SECOND, derive_key
from nestruct.population.gaussian import fill_rows


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
    if kind == "gaussian" and out.dtype != torch.float32:
        for row, row_seed in zip(out, _seeds(seed, step, first_pair, len(out)), strict=True):
            row.normal_(std=sigma, generator=torch.Generator().manual_seed(int(row_seed)))
        return
    if out.element_size() < 4:  # numpy or numba know no such numbers
        wide = torch.empty_like(out, dtype=torch.float32)
        fill_directions(wide, first_pair, seed=seed, step=step, sigma=sigma, kind=kind)
        out.copy_(wide)
        return
    keys = _keys(_seeds(seed, step, first_pair, len(out)))
    rows, deviation = out.numpy(), out.numpy().dtype.type(sigma)

    def fill(part: slice) -> None:
        fill_rows(rows[part], keys[part], deviation, kind == "gaussian")

    spread_rows(fill, len(out), out.numel())


def _seeds(seed: int, step: int | Tensor, first_pair: int, count: int) -> NDArray[np.uint64]:
    """``derive_seed(seed, step, pair)`` of each pair."""
    pairs = np.arange(first_pair, first_pair + count, dtype=np.uint64)
    return _derive(derive_key(seed, int(step)), pairs) >> np.uint64(1)


def _keys(seeds: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """96 bits for each row."""
    first = _derive(0, seeds)
    low = first >> np.uint64(1)
    high = _derive(first, np.ones_like(seeds)) >> np.uint64(1)
    words = (low & np.uint64(0xFFFFFFFF), low >> np.uint64(31), high & np.uint64(0xFFFFFFFF))
    return np.stack(words, 1).astype(np.uint32)


def _derive(key: int | NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`derive_key` with one more value, for many values at once."""
    x = np.asarray(key, np.uint64) + np.uint64(GOLDEN) * (values + np.uint64(1))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return x ^ (x >> np.uint64(31))
