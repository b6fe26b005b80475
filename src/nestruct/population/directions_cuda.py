"""Random directions on CUDA: one counter-based kernel, legal inside a graph capture."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.noise import derive_seed

BLOCK = 1024


@triton.jit
def _fill_kernel(
    out,
    step,
    first_pair,
    seed,
    size,
    sigma,
    GAUSSIAN: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    # All in the first axis of the grid: the others end at 65,535, and there may be more pairs.
    blocks = tl.cdiv(tl.cdiv(size, 4), BLOCK)
    row = tl.program_id(0) // blocks
    pair = row + first_pair
    # Philox: the key is (seed, step), the counter is (place, pair).
    key = seed + tl.load(step) * 0x9E3779B97F4A7C1
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    zero = place * 0
    a, b, c, d = tl.philox(key, place, zero + pair, zero, zero)
    base = out + row.to(tl.int64) * size
    if GAUSSIAN:
        x, y = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(a), tl.uint_to_uniform_float(b))
        z, w = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(c), tl.uint_to_uniform_float(d))
    else:
        x = tl.where((a & 1) == 0, -1.0, 1.0)
        y = tl.where((b & 1) == 0, -1.0, 1.0)
        z = tl.where((c & 1) == 0, -1.0, 1.0)
        w = tl.where((d & 1) == 0, -1.0, 1.0)
    # Each draw gives four values, for the same place in each quarter of the row.
    quarter = tl.cdiv(size, 4)
    inside = place < quarter
    tl.store(base + place, sigma * x, mask=inside & (place < size))
    place += quarter
    tl.store(base + place, sigma * y, mask=inside & (place < size))
    place += quarter
    tl.store(base + place, sigma * z, mask=inside & (place < size))
    place += quarter
    tl.store(base + place, sigma * w, mask=inside & (place < size))


def fill_directions_cuda(
    out: Tensor, first_pair: int, seed: int, step: int | Tensor, sigma: float, kind: str
) -> None:
    """See `nestruct.population.directions.fill_directions`."""
    pairs, size = out.shape
    if not isinstance(step, Tensor):
        step = torch.full((), step, device=out.device)
    quarter = triton.cdiv(size, 4)
    block = min(BLOCK, triton.next_power_of_2(quarter))
    grid = (triton.cdiv(quarter, block) * pairs,)
    with torch.cuda.device(out.device):
        _fill_kernel[grid](
            out,
            step,
            first_pair,
            derive_seed(seed),
            size,
            sigma,
            GAUSSIAN=kind == "gaussian",
            BLOCK=block,
        )
