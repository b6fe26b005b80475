"""Random directions on CUDA: one counter-based kernel, legal inside a graph capture."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nestruct.noise import derive_seed

BLOCK = 1024


@triton.jit
def _normal_kernel(
    out,
    step,
    first_pair,
    seed,
    size,
    sigma,
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
    x, y = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(a), tl.uint_to_uniform_float(b))
    z, w = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(c), tl.uint_to_uniform_float(d))
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


@triton.jit
def _sign_kernel(
    out,
    step,
    first_pair,
    seed,
    size,
    sigma,
    BLOCK: tl.constexpr,  # noqa: N803
):
    # Of a draw all 128 bits are used: where one is made for four signs, drawing takes longer than
    # writing.
    blocks = tl.cdiv(size, 128 * BLOCK)
    row = tl.program_id(0) // blocks
    pair = row + first_pair
    key = seed + tl.load(step) * 0x9E3779B97F4A7C1
    group = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    zero = group * 0
    a, b, c, d = tl.philox(key, group, zero + pair, zero, zero)
    bit = tl.arange(0, 32)
    base = out + row.to(tl.int64) * size
    _store_signs(base, a, group, bit, 0, size, sigma)
    _store_signs(base, b, group, bit, 32, size, sigma)
    _store_signs(base, c, group, bit, 64, size, sigma)
    _store_signs(base, d, group, bit, 96, size, sigma)


@triton.jit
def _store_signs(base, word, group, bit, first, size, sigma):
    place = group[:, None] * 128 + first + bit[None, :]
    is_set = (word[:, None] >> bit[None, :].to(tl.uint32)) & 1
    tl.store(base + place, tl.where(is_set == 0, -sigma, sigma), mask=place < size)


def fill_directions_cuda(
    out: Tensor, first_pair: int, seed: int, step: int | Tensor, sigma: float, kind: str
) -> None:
    """See `nestruct.population.directions.fill_directions`."""
    pairs, size = out.shape
    if not isinstance(step, Tensor):
        step = torch.full((), step, device=out.device)
    numbers = (out, step, first_pair, derive_seed(seed), size, sigma)
    with torch.cuda.device_of(out):
        if kind == "gaussian":
            block = BLOCK if size > 1 << 16 else min(256, triton.next_power_of_2(size))
            _normal_kernel[(triton.cdiv(triton.cdiv(size, 4), block) * pairs,)](
                *numbers, BLOCK=block
            )
        else:
            block = 64 if size > 1 << 16 else 8  # groups of 128 signs
            _sign_kernel[(triton.cdiv(size, 128 * block) * pairs,)](*numbers, BLOCK=block)
