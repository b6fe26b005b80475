"""Kernels of populations on a machine without a GPU: Triton's interpreter runs them.

``TRITON_INTERPRET=1 pytest -m slow tests/population/test_interpreted.py``. It shows what a kernel
computes, not that it compiles, nor how fast it is.
"""

import os

import pytest
import torch
from toys import bits, gradient, vae

from nestruct import NES
from nestruct.population import layers, savings

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET is not 1", allow_module_level=True)
pytest.importorskip("triton")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("perturbed", ["all", "weights"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_step_with_kernels_is_the_plain_one(count, perturbed, monkeypatch):
    """All of a step but the draws, in float32: 45 pixels and 37 units, which no block divides."""
    model, x = vae(inputs=45, hidden=37).float(), bits(9, 45).float()
    nes = NES(
        sigma=0.2,
        population_size=40,
        directions="rank1",
        shaping="none",
        minibatch="per_pair",
        pair_batch_size=count,
        mode="vmap",
        perturb=None if perturbed == "all" else lambda name, p: p.dim() == 2,
    )
    nes.backward(model, x, seed=0)
    expected = gradient(model)
    from nestruct.population import savings_cuda  # which needs triton

    used, plain = [], savings_cuda.bernoulli

    def counted(*arguments):
        used.append(1)
        return plain(*arguments)

    monkeypatch.setattr(layers, "has_kernels", lambda like: True)
    monkeypatch.setattr(savings, "has_kernels", lambda like: True)
    monkeypatch.setattr(savings_cuda, "bernoulli", counted)
    nes.backward(model, x, seed=0)
    assert used
    torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-4)


def test_directions_do_not_depend_on_the_block():
    from nestruct.population.directions_cuda import _fill_kernel

    found = []
    for block in (16, 64):
        out = torch.empty(3, 90)
        grid = (-(-23 // block) * 3,)
        _fill_kernel[grid](out, torch.tensor(4), 7, 11, 90, 0.5, GAUSSIAN=True, BLOCK=block)
        found.append(out)
    assert torch.equal(*found)
    assert 0.3 < found[0].std() < 0.7
    assert len(found[0].unique()) > 260
